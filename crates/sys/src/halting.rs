//! Whether an idle processor may halt.
//!
//! Problem: a thread that sleeps on a processor that has halted is woken late: by microseconds on bare metal, by 50 and more in a virtual machine, where the host has to
//! run the processor again. Linux lets one ask for each processor how long its waking may take
//! (`/sys/devices/system/cpu/cpuN/power/pm_qos_resume_latency_us`): "n/a" means no time at all, and the kernel's idle loop then looks for work instead of halting. The
//! processor is idle all the same, for threads that want it and for what is accounted to processes; it saves no power.
//!
//! Invariant: what stood there is put back: when a value is dropped, and after a process that was killed, by the next one that comes or goes with the same directory of notes
//! ([`put_back`]), whatever processors that one uses. A note says what stood there, and is locked as long as somebody lives who may write something else: so one who comes
//! while another forbids halts does not take that for what stood there. Who shares a processor undoes the others' wishes, which costs them latency and nothing else.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is written to have no halts.
const NEVER: &str = "n/a";
/// What stands there in a system that was left as it is.
const ANY: &str = "0";

/// How notes of processors are called, before the number.
const NOTE: &str = ".halting-cpu";

/// How often somebody else may be in the middle of the same, and how long that is waited for.
const ATTEMPTS: usize = 100;
const MOMENT: Duration = Duration::from_millis(1);

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
        drop(Halting::at(&place(cpu), &note.path()));
        if !place(cpu).exists() {
            let _ = fs::remove_file(note.path());
        }
    }
}

/// How notes are opened. Their directory may be one that others write to: no link is followed, no pipe waited for, and nobody else can lock it.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

/// Whether it is a file of this process's user, of one name only.
fn is_own(file: &File) -> io::Result<bool> {
    let m = file.metadata()?;
    Ok(m.is_file() && m.nlink() <= 1 && m.uid() == nix::unistd::geteuid().as_raw())
}

/// A note that is locked, shared with others who have the same processor.
#[derive(Debug)]
struct Note {
    file: File,
    path: PathBuf,
}

impl Note {
    /// Takes it, and what it says; `now` tells what stands there now.
    fn take(path: &Path, now: impl Fn() -> io::Result<String>) -> io::Result<(Self, String)> {
        for _ in 0..ATTEMPTS {
            let new = options().create_new(true).mode(0o600).open(path);
            let is_new = new.is_ok();
            let file = match new.or_else(|_| options().open(path)) {
                Ok(file) if is_own(&file)? => file,
                // Gone since.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                // A link, a pipe, or somebody else's, which nobody may have written to in our name.
                _ => {
                    fs::remove_file(path)?;
                    continue;
                }
            };
            let note = Self {
                file,
                path: path.to_owned(),
            };
            let alone = note.file.try_lock().is_ok();
            if !alone && note.file.try_lock_shared().is_err() || !note.is_there() {
                std::thread::sleep(MOMENT);
                continue;
            }
            let mut was = note.read();
            if alone {
                // Nobody changes it now.
                let now = now()?;
                if is_new || was.is_empty() && now != NEVER {
                    // Whoever died before he wrote it had changed nothing.
                    was = now;
                }
            }
            if !is_sound(&was) {
                // It can only have forbidden halts.
                ANY.clone_into(&mut was);
            }
            if alone {
                note.file.write_all_at(was.as_bytes(), 0)?;
                note.file.set_len(was.len() as u64)?;
                note.file.unlock()?;
                note.file.lock_shared()?;
                if !note.is_there() {
                    continue;
                }
            }
            return Ok((note, was));
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
    /// Whether it is still the one of this name: the last one who has a note removes it.
    fn is_there(&self) -> bool {
        let number = |of: io::Result<fs::Metadata>| of.ok().map(|m| (m.dev(), m.ino()));
        number(self.file.metadata()) == number(fs::metadata(&self.path))
    }
    fn read(&self) -> String {
        let mut text = [0; 16];
        let n = self.file.read_at(&mut text, 0).unwrap_or(0);
        String::from_utf8_lossy(&text[..n]).trim().to_owned()
    }
    /// Whether nobody else has it; nobody else gets it from now on, then.
    fn is_last(&self) -> bool {
        self.file.unlock().is_ok() && self.file.try_lock().is_ok() && self.is_there()
    }
}

/// One processor's.
#[derive(Debug)]
pub struct Halting {
    file: File,
    note: Note,
    /// What stood there before.
    was: String,
    forbidden: bool,
}

impl Halting {
    /// Of processor `cpu`; `notes` is a directory for what has to be put back, best one for all processes that might use the processor.
    ///
    /// # Errors
    /// The system has no such file, or does not let this process write there (a container), or the note cannot be written.
    pub fn of(cpu: usize, notes: &Path) -> io::Result<Self> {
        Self::at(&place(cpu), &notes.join(format!("{NOTE}{cpu}")))
    }

    fn at(file: &Path, note: &Path) -> io::Result<Self> {
        let read = || fs::read_to_string(file).map(|t| t.trim().to_owned());
        let place = OpenOptions::new().write(true).open(file)?;
        let (note, was) = Note::take(note, read)?;
        let halting = Self {
            file: place,
            note,
            was,
            forbidden: false,
        };
        // What a process may have left there that was killed.
        if read()? != halting.was {
            halting.write(&halting.was);
        }
        Ok(halting)
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
        // Also in place of what somebody left there who was killed.
        self.write(&self.was);
        if self.note.is_last() {
            // Nobody is in between any more.
            self.write(&self.was);
            let _ = fs::remove_file(&self.note.path);
        }
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
            Halting::at(&self.0.join("file"), &self.0.join("note")).unwrap()
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

    /// Its process ends without a word: descriptors are closed, and locks go with them.
    fn killed(h: Halting) {
        h.note.file.unlock().unwrap();
        std::mem::forget(h);
    }

    #[test]
    fn what_stood_there_is_put_back() {
        let place = Place::new("back", "125\n");
        let mut h = place.open();
        assert!(place.says("125") && place.noted());
        h.forbid();
        assert!(place.says(NEVER) && h.forbidden);
        h.allow();
        assert!(place.says("125") && !h.forbidden);
        h.forbid();
        drop(h);
        assert!(place.says("125") && !place.noted());
    }

    #[test]
    fn also_after_a_process_that_was_killed() {
        let place = Place::new("killed", "125\n");
        let mut h = place.open();
        h.forbid();
        killed(h);
        let next = place.open();
        assert!(place.says("125"), "the next one begins with what stood there");
        drop(next);
        assert!(place.says("125") && !place.noted());
    }

    /// What another has written is not what stood there, whoever goes first, and however.
    #[test]
    fn two_of_one_processor() {
        for (first_goes, is_killed) in [(true, false), (true, true), (false, false), (false, true)] {
            let place = Place::new("two", "125\n");
            let mut first = place.open();
            first.forbid();
            let mut second = place.open();
            assert!(place.says("125"), "a newcomer knows what stood there");
            second.forbid();
            second.allow();
            assert!(place.says("125"));
            second.forbid();
            let (goes, mut stays) = if first_goes {
                (first, second)
            } else {
                (second, first)
            };
            if is_killed {
                killed(goes);
                assert!(place.says(NEVER));
            } else {
                drop(goes);
                assert!(place.says("125"));
            }
            assert!(place.noted());
            stays.forbid();
            drop(stays);
            assert!(place.says("125") && !place.noted(), "{first_goes} {is_killed}");
        }
    }

    /// Processes that come and go at the same time.
    #[test]
    fn many_at_once() {
        let place = Place::new("many", "125\n");
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..50 {
                        let mut h = place.open();
                        assert_eq!(h.was, "125");
                        h.forbid();
                    }
                });
            }
        });
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

    /// A directory that others write to: nothing outside of it is written to, and nobody is kept waiting.
    #[test]
    fn what_is_no_note_is_replaced() {
        let place = Place::new("odd", "125\n");
        let (note, victim) = (place.0.join("note"), place.0.join("victim"));
        let odd: [&dyn Fn(); 3] = [
            &|| std::os::unix::fs::symlink(&victim, &note).unwrap(),
            &|| fs::hard_link(&victim, &note).unwrap(),
            &|| nix::unistd::mkfifo(&note, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        ];
        for make in odd {
            fs::write(&victim, "something long").unwrap();
            make();
            let mut h = place.open();
            assert_eq!(h.note.file.metadata().unwrap().mode() & 0o777, 0o600);
            h.forbid();
            drop(h);
            assert!(place.says("125") && !place.noted());
            assert_eq!(fs::read_to_string(&victim).unwrap(), "something long");
        }
        fs::create_dir(&note).unwrap();
        assert!(Halting::at(&place.0.join("file"), &note).is_err());
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
                &dir.join("none")
            )
            .is_err()
        );
        assert!(!dir.join("none").exists());
    }
}
