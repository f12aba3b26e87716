//! The file of a move and its key, on disk or in a pipe.

use anyhow::{Context as _, Result, bail};
use heddle_migration::{Error, KEY_BYTES, Key, MAX_FILE_BYTES};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, IsTerminal as _, Read, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Permissions of others than the owner.
const OTHERS: u32 = 0o077;

/// Default age of a file that is accepted, seconds.
const DEFAULT_MAX_AGE_S: u64 = 3600;

#[derive(clap::Args)]
pub(super) struct AgeOption {
    /// Refuse a file that was written longer ago, or later than this node's clock shows; 0: no limit
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_MAX_AGE_S)]
    max_age: u64,
}

impl AgeOption {
    /// Compares the time of a file with the clock of this node. Both times are in seconds since 1970.
    pub(super) fn check(&self, made_s: u64, now_s: u64) -> Result<()> {
        let apart_s = now_s.abs_diff(made_s);
        if self.max_age == 0 || apart_s <= self.max_age {
            return Ok(());
        }
        match made_s < now_s {
            true => {
                bail!("the file was written {apart_s} s ago: export it again, or accept it with --max-age")
            }
            false => bail!(
                "the file was written {apart_s} s after this node's time: set the clocks, or accept it with --max-age"
            ),
        }
    }
}

#[derive(clap::Args)]
pub(super) struct KeyOption {
    /// File with a key of 16 bytes or more, the same at both nodes: proves that the file comes from there
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl KeyOption {
    pub(super) fn load(&self) -> Result<Option<Key>> {
        let Some(path) = &self.key_file else {
            return Ok(None);
        };
        let name = path.display();
        let mut file = File::open(path).with_context(|| name.to_string())?;
        let metadata = file.metadata()?;
        if can_have_writers(&metadata) && metadata.mode() & OTHERS != 0 {
            bail!("{name}: others may read the key (chmod go= {name})");
        }
        let mut bytes = Vec::new();
        let most = u64::try_from(KEY_BYTES.end() + 1).unwrap_or(u64::MAX);
        (&mut file)
            .take(most)
            .read_to_end(&mut bytes)
            .with_context(|| name.to_string())?;
        Key::new(&bytes).with_context(|| name.to_string()).map(Some)
    }
}

/// Whether permissions decide who writes what is read: not for a terminal or `/dev/null`.
fn can_have_writers(metadata: &Metadata) -> bool {
    !metadata.file_type().is_char_device()
}

/// Reads a whole file of a move, or standard input. Without a key, a file that other users may change is
/// refused.
pub(super) fn read(path: &Path, key: &KeyOption) -> Result<Vec<u8>> {
    if path.as_os_str() == "-" {
        return bounded(io::stdin().lock(), "standard input");
    }
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| name.clone())?;
    let metadata = file.metadata()?;
    let private = !can_have_writers(&metadata) || heddle_sys::files::is_private(&metadata);
    if key.key_file.is_none() && !private {
        bail!(
            "{name}: others may change this file: make it yours alone (chown, chmod go-w), or use --key-file"
        );
    }
    bounded(file, &name)
}

fn bounded(from: impl Read, name: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = u64::try_from(MAX_FILE_BYTES + 65).unwrap_or(u64::MAX);
    from.take(most)
        .read_to_end(&mut bytes)
        .with_context(|| name.to_owned())?;
    if bytes.len() > MAX_FILE_BYTES + 64 {
        return Err(Error::TooLarge("the length of the file")).with_context(|| name.to_owned());
    }
    Ok(bytes)
}

/// Opens a pipe or a device, which stays what it is. `None`: a regular file, or no file yet.
///
/// # Errors
/// A link to a regular file, which another user may have put there; a pipe of another user.
fn pipe_or_device(path: &Path) -> Result<Option<File>> {
    let name = path.display();
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {
            if fs::symlink_metadata(path)?.is_symlink() {
                bail!("{name} is a symbolic link to a file: name the file itself");
            }
            Ok(None)
        }
        Ok(_) => {
            let to = OpenOptions::new().write(true).open(path);
            let to = to.with_context(|| name.to_string())?;
            let metadata = to.metadata()?;
            if can_have_writers(&metadata) && !heddle_sys::files::is_private(&metadata) {
                bail!("{name}: others may change this pipe: make it yours alone (chown, chmod go-w)");
            }
            Ok(Some(to))
        }
        Err(_) => Ok(None),
    }
}

/// A file that appears when it is complete, or standard output.
pub(super) struct Output {
    to: Box<dyn Write>,
    bytes: u64,
    /// Paths of the temporary file, and of the final one.
    paths: Option<(PathBuf, PathBuf)>,
}

impl Output {
    pub(super) fn new(path: &Path) -> Result<Self> {
        if path.as_os_str() == "-" {
            if io::stdout().is_terminal() {
                bail!("the file is nothing for a terminal: --file FILE, or a pipe");
            }
            return Ok(Self {
                to: Box::new(io::stdout()),
                bytes: 0,
                paths: None,
            });
        }
        if let Some(to) = pipe_or_device(path)? {
            return Ok(Self {
                to: Box::new(to),
                bytes: 0,
                paths: None,
            });
        }
        let mut part = path.as_os_str().to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(part);
        // Left by a command of this number that was killed.
        let _ = fs::remove_file(&part);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&part).with_context(|| part.display().to_string())?;
        Ok(Self {
            to: Box::new(file),
            bytes: 0,
            paths: Some((part, path.to_owned())),
        })
    }
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes).context("the file cannot be written")
    }
    /// Makes the file appear; returns its length.
    pub(super) fn end(mut self) -> Result<u64> {
        self.to.flush().context("the file cannot be written")?;
        if let Some((part, path)) = self.paths.take() {
            // Without `fsync`, for which the paused guest would wait: the seal shows whether a file is whole.
            fs::rename(&part, &path).with_context(|| path.display().to_string())?;
        }
        Ok(self.bytes)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((part, _)) = &self.paths {
            let _ = fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("moved");
        let names = || fs::read_dir(dir.path()).expect("the directory").count();
        let mut output = Output::new(&path).expect("a new file");
        output.write(b"abc").expect("room");
        assert!(!path.exists() && names() == 1);
        drop(output);
        assert_eq!(names(), 0);
        for text in ["first", "second"] {
            let mut output = Output::new(&path).expect("a file");
            output.write(text.as_bytes()).expect("room");
            assert_eq!(output.end().expect("a whole file"), text.len() as u64);
            assert_eq!(fs::read(&path).expect("the file"), text.as_bytes());
        }
        assert_eq!(fs::metadata(&path).expect("the file").mode() & 0o777, 0o600);
        assert_eq!(names(), 1);
    }

    #[test]
    fn links_and_pipes_of_others_get_no_connections() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let why = |name: &str| Output::new(&at(name)).map(drop).expect_err("refused").to_string();
        fs::write(at("victim"), b"keep").expect("a file");
        symlink(at("victim"), at("link")).expect("a link");
        assert!(
            why("link").contains("is a symbolic link to a file"),
            "{}",
            why("link")
        );
        assert_eq!(fs::read(at("victim")).expect("the file"), b"keep");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let number = std::os::fd::AsRawFd::as_raw_fd(&writer);
        let mut output = Output::new(Path::new(&format!("/proc/self/fd/{number}"))).expect("a pipe");
        output.write(b"through").expect("room");
        assert_eq!(output.end().expect("the end"), 7);
        drop(writer);
        assert_eq!(io::read_to_string(reader).expect("text"), "through");
        let made = std::process::Command::new("mkfifo").arg(at("fifo")).status();
        assert!(made.expect("mkfifo").success());
        fs::set_permissions(at("fifo"), fs::Permissions::from_mode(0o666)).expect("a mode");
        // A reader, so that opening the FIFO does not wait for one.
        let reader = OpenOptions::new().read(true).write(true).open(at("fifo"));
        assert!(
            why("fifo").contains("others may change this pipe"),
            "{}",
            why("fifo")
        );
        drop(reader);
        Output::new(Path::new("/dev/null")).map(drop).expect("a device");
    }

    #[test]
    fn old_files_and_files_of_the_future_are_refused() {
        let check = |max_age, made_s| {
            AgeOption { max_age }
                .check(made_s, 10_000)
                .map_err(|e| e.to_string())
        };
        for (max_age, made_s) in [
            (3600, 10_000),
            (3600, 6400),
            (3600, 13_600),
            (0, 0),
            (0, u64::MAX),
        ] {
            assert_eq!(check(max_age, made_s), Ok(()));
        }
        let old = check(3600, 6399).expect_err("an old file");
        assert!(old.starts_with("the file was written 3601 s ago"), "{old}");
        let early = check(3600, u64::MAX).expect_err("a file of the future");
        assert!(early.contains("after this node's time"), "{early}");
    }
}
