//! The corpus of scripts, and the search for more of them.

use super::Dice;
use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A directory of scripts.
#[derive(Clone, Debug)]
pub struct Corpus(PathBuf);

impl Corpus {
    /// The directory `name` in `corpus` of the crate at `manifest_dir` (`env!("CARGO_MANIFEST_DIR")`).
    pub fn new(manifest_dir: &str, name: &str) -> Self {
        Self([manifest_dir, "corpus", name].iter().collect())
    }
    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for file in std::fs::read_dir(&self.0)? {
            files.push(file?.path());
        }
        files.sort();
        Ok(files)
    }
    /// All scripts, in the order of their names.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn scripts(&self) -> io::Result<Vec<Vec<u8>>> {
        self.files()?.iter().map(std::fs::read).collect()
    }
    /// Replaces the corpus by those of `scripts`, in their order, that have an outcome which no earlier one
    /// has.
    fn renew<O: Ord>(&self, scripts: Vec<Vec<u8>>, play: impl Fn(&[u8]) -> BTreeSet<O>) -> io::Result<()> {
        std::fs::create_dir_all(&self.0)?;
        for old in self.files()? {
            std::fs::remove_file(old)?;
        }
        let (mut done, mut kept) = (BTreeSet::new(), 0);
        for script in scripts {
            let before = done.len();
            done.extend(play(&script));
            if done.len() > before {
                std::fs::write(self.0.join(format!("{kept:03}")), script)?;
                kept += 1;
            }
        }
        println!("{kept} scripts in the corpus for {} outcomes", done.len());
        Ok(())
    }
}

/// The fuzzer of one subject, which [`explore`] plays.
pub trait Fuzzer {
    /// One event in a run of a script.
    type Outcome: Ord;
    /// An outcome in coarser classes: the corpus has a script for each.
    type OutcomeClass: Ord;
    /// Name for files and messages.
    const NAME: &'static str;
    /// Maximum length of a script, bytes.
    const MAX_SCRIPT_LEN: usize;
    /// Plays a script, and returns its outcomes. Panics if the script breaks something.
    fn play(&self, script: &[u8]) -> (BTreeSet<Self::Outcome>, BTreeSet<Self::OutcomeClass>);
    /// First scripts, beside the corpus.
    fn seeds(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
    /// Makes a new script of those in `of`.
    fn mutant(&self, dice: &mut Dice, of: &[Vec<u8>]) -> Vec<u8> {
        dice.mutant(of, Self::MAX_SCRIPT_LEN)
    }
    /// Sorts scripts so that preferred ones come first; may remove scripts.
    fn rank(&self, scripts: &mut Vec<Vec<u8>>) {
        scripts.sort_by_key(Vec::len);
    }
}

/// Takes turns for `FUZZ_SECONDS` seconds, with the seed `FUZZ_SEED` if it is set. A turn writes its input
/// into its script, which is kept in a file if the turn fails. Returns the number of turns, and the duration
/// of the slowest.
///
/// # Panics
/// When a turn does.
pub fn rounds(name: &str, mut turn: impl FnMut(&mut Dice, &mut Vec<u8>)) -> (u64, Duration) {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let end = Instant::now() + Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(60).min(86_400));
    let failed = std::env::temp_dir().join(format!("fuzz-{name}-failed-{}", std::process::id()));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = number("FUZZ_SEED").unwrap_or(u64::from(now.subsec_nanos()) ^ now.as_secs() << 30);
    // A memory fault ends the process before the script is written: this seed repeats the run.
    println!("FUZZ_SEED={seed}");
    let mut dice = Dice::new(seed);
    let (mut runs, mut slowest, mut script) = (0_u64, Duration::ZERO, Vec::new());
    while Instant::now() < end {
        let began = Instant::now();
        let played = catch_unwind(AssertUnwindSafe(|| turn(&mut dice, &mut script)));
        played.unwrap_or_else(|why| {
            match std::fs::write(&failed, &script) {
                Ok(()) => eprintln!("a script that fails is in {}", failed.display()),
                Err(e) => eprintln!("a script fails, and cannot be kept ({e}): {script:?}"),
            }
            resume_unwind(why)
        });
        slowest = slowest.max(began.elapsed());
        runs += 1;
    }
    (runs, slowest)
}

/// Looks for scripts with new outcomes (see the crate's header).
///
/// # Errors
/// The corpus cannot be read or written.
///
/// # Panics
/// When a script fails.
pub fn explore<F: Fuzzer>(fuzzer: &F, corpus: &Corpus) -> io::Result<()> {
    let mut scripts = fuzzer.seeds();
    scripts.extend(corpus.scripts()?);
    let mut seen: BTreeSet<F::Outcome> = scripts.iter().flat_map(|s| fuzzer.play(s).0).collect();
    let mut new = 0;
    let (runs, slowest) = rounds(F::NAME, |dice, script| {
        *script = fuzzer.mutant(dice, &scripts);
        let (outcome, _) = fuzzer.play(script);
        let had = seen.len();
        seen.extend(outcome);
        if seen.len() > had {
            new += 1;
            scripts.push(script.clone());
        }
    });
    let all = seen.len();
    println!("{runs} scripts, {new} new outcomes, {all} in all, the slowest took {slowest:?}");
    if std::env::var_os("FUZZ_KEEP").is_some() {
        fuzzer.rank(&mut scripts);
        corpus.renew(scripts, |s| fuzzer.play(s).1)?;
    }
    Ok(())
}
