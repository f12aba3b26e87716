//! Whether an idle processor may halt.
//!
//! Problem: a thread that sleeps on a processor that has halted is woken late: by microseconds on bare metal, by 50 and more in a virtual machine, where the host has to
//! run the processor again. Linux lets one ask for each processor how long its waking may take
//! (`/sys/devices/system/cpu/cpuN/power/pm_qos_resume_latency_us`): "n/a" means no time at all, and the kernel's idle loop then looks for work instead of halting. The
//! processor is idle all the same, for threads that want it and for what is accounted to processes; it saves no power.
//!
//! Invariant: what stood there is put back: when the value is dropped, and after a process that was killed, by the next one with the same directory of notes
//! ([`put_back`]), whatever processors that one uses.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What is written to have no halts.
const NEVER: &str = "n/a";

/// How notes of processors are called, before the number.
const NOTE: &str = ".halting-cpu";

fn place(cpu: usize) -> PathBuf {
    format!("/sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us").into()
}

/// What the kernel may have said. Notes may hold anything.
fn is_sound(text: &str) -> bool {
    text == NEVER || text.parse::<u32>().is_ok()
}

/// Puts back what processes noted in this directory that were killed: to be called before the first [`Halting::of`]. Processors for which that is impossible are gone, or
/// another's.
pub fn put_back(notes: &Path) {
    for note in fs::read_dir(notes).into_iter().flatten().flatten() {
        let name = note.file_name();
        let Some(cpu) = name.to_str().and_then(|n| n.strip_prefix(NOTE)?.parse().ok()) else {
            continue;
        };
        // Opened and closed: that is all it takes.
        drop(Halting::at(&place(cpu), note.path()));
        let _ = fs::remove_file(note.path());
    }
}

/// One processor's.
#[derive(Debug)]
pub struct Halting {
    file: File,
    note: PathBuf,
    /// What stood there before.
    was: String,
    forbidden: bool,
}

impl Halting {
    /// Of processor `cpu`; `notes` is a directory for what has to be put back.
    ///
    /// # Errors
    /// The system has no such file, or does not let this process write there (a container), or the note cannot be written.
    pub fn of(cpu: usize, notes: &Path) -> io::Result<Self> {
        Self::at(&place(cpu), notes.join(format!("{NOTE}{cpu}")))
    }

    fn at(file: &Path, note: PathBuf) -> io::Result<Self> {
        let now = fs::read_to_string(file)?.trim().to_string();
        let mut file = OpenOptions::new().write(true).open(file)?;
        // A note that is there was left by somebody who could put nothing back.
        let was = match File::open(&note) {
            Ok(left) => {
                let mut text = String::new();
                let _ = left.take(16).read_to_string(&mut text);
                // It can only have forbidden halts.
                Some(text.trim().to_string())
                    .filter(|t| is_sound(t))
                    .unwrap_or("0".into())
            }
            Err(_) => now.clone(),
        };
        fs::write(&note, &was)?;
        if was != now {
            file.write_all(was.as_bytes())?;
        }
        Ok(Self {
            file,
            note,
            was,
            forbidden: false,
        })
    }

    /// From now on it does not halt.
    pub fn forbid(&mut self) {
        if !self.forbidden {
            self.forbidden = true;
            self.write(NEVER);
        }
    }
    /// From now on it may, unless it might not before either.
    pub fn allow(&mut self) {
        if self.forbidden {
            self.forbidden = false;
            self.write(&self.was);
        }
    }
    /// Whether it is kept from halting.
    pub fn is_forbidden(&self) -> bool {
        self.forbidden
    }
    /// If it fails, the processor is gone: there is nothing to keep from halting, or to let halt.
    fn write(&self, text: &str) {
        let _ = self.file.write_at(text.as_bytes(), 0);
    }
}

impl Drop for Halting {
    fn drop(&mut self) {
        self.allow();
        let _ = fs::remove_file(&self.note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in place of the kernel's, which takes whole values.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str, text: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("halting-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("file"), text).unwrap();
            Self(dir)
        }
        fn open(&self) -> Halting {
            Halting::at(&self.0.join("file"), self.0.join("note")).unwrap()
        }
        /// The first `n` bytes: a file keeps what a shorter value does not cover.
        fn says(&self, text: &str) -> bool {
            fs::read_to_string(self.0.join("file")).unwrap().starts_with(text)
        }
        fn noted(&self) -> bool {
            self.0.join("note").exists()
        }
    }
    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_stood_there_is_put_back() {
        let place = Place::new("back", "125\n");
        let mut h = place.open();
        assert!(place.says("125") && place.noted());
        h.forbid();
        assert!(place.says(NEVER) && h.is_forbidden());
        h.allow();
        assert!(place.says("125") && !h.is_forbidden());
        h.forbid();
        drop(h);
        assert!(place.says("125") && !place.noted());
    }

    #[test]
    fn also_after_a_process_that_was_killed() {
        let place = Place::new("killed", "125\n");
        let mut h = place.open();
        h.forbid();
        std::mem::forget(h);
        let next = place.open();
        assert!(place.says("125"), "the next one begins with what stood there");
        drop(next);
        assert!(place.says("125") && !place.noted());
    }

    #[test]
    fn a_note_of_rubbish_is_no_hindrance() {
        for rubbish in ["", "rubbish", "n/a\nfoo", &"1".repeat(100), "-5"] {
            let place = Place::new("rubbish", "n/a\n");
            fs::write(place.0.join("note"), rubbish).unwrap();
            drop(place.open());
            assert!(place.says("0") && !place.noted(), "{rubbish}");
        }
    }

    #[test]
    fn notes_of_processors_that_are_gone_go_too() {
        let place = Place::new("gone", "0");
        for name in [".halting-cpu99999", ".halting-cpux", "other"] {
            fs::write(place.0.join(name), "0").unwrap();
        }
        put_back(&place.0);
        let there = |name| place.0.join(name).exists();
        assert!(!there(".halting-cpu99999") && there(".halting-cpux") && there("other"));
    }

    #[test]
    fn who_has_forbidden_it_for_good_is_obeyed() {
        let place = Place::new("good", "n/a\n");
        let mut h = place.open();
        h.forbid();
        h.allow();
        drop(h);
        assert!(place.says(NEVER));
    }

    #[test]
    fn a_system_without_it_says_so() {
        let dir = std::env::temp_dir();
        assert!(
            Halting::at(
                Path::new("/sys/devices/system/cpu/cpu99999/power/none"),
                dir.join("none")
            )
            .is_err()
        );
        assert!(!dir.join("none").exists());
    }
}
