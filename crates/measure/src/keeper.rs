//! Putting back what was changed, whatever happens.
//!
//! **Problem.** A measurement makes namespaces, devices and ports, and changes settings. It may be
//! interrupted, killed, or crash at any moment.
//!
//! **How.** A process of its own, the keeper, receives the way to undo a step *before* the step is made. When
//! its stream ends, for whatever reason, it undoes all, the last first. That is the only way in which
//! anything is put back, so each run tests it. The keeper is in a process group of its own, out of reach of
//! the terminal's interrupt key.

use crate::agent::{line, send};
use anyhow::{Context as _, Result, bail};
use heddle_sys::signal::{Signal, Signals};
use serde::{Deserialize, Serialize};
use std::io::{BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// One way to undo a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Undo {
    /// A command; its error output is reported if it fails.
    Run(Vec<String>),
    /// A command whose failure is ignored: the thing may be gone already, or may never have been made.
    Quietly(Vec<String>),
    /// Ends a process that was started with this command name.
    End {
        /// The process.
        pid: u32,
        /// The process's name, in case another process has its number by then.
        name: String,
    },
}

impl Undo {
    fn run(&self) -> Result<()> {
        match self {
            Self::Run(argv) => run(argv).map(drop),
            Self::Quietly(argv) => {
                let _ = run(argv);
                Ok(())
            }
            Self::End { pid, name } => {
                let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                if comm.trim() == name {
                    let _ = run(&["kill".into(), pid.to_string()]);
                }
                Ok(())
            }
        }
    }
}

/// Runs a command to its end. Returns its output; on failure, the last line of its error output.
///
/// # Errors
/// The command cannot be started, or fails.
pub fn run(argv: &[String]) -> Result<String> {
    let Some((program, args)) = argv.split_first() else {
        bail!("no command")
    };
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| program.clone())?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    let said = text
        .lines()
        .map(str::trim)
        .rfind(|l| !l.is_empty())
        .unwrap_or("failed");
    bail!("`{}`: {said}", argv.join(" "))
}

/// The words of a command line that has no quotes.
pub fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The handle of the keeper, for the process that makes steps.
#[derive(Debug)]
pub struct Keeper {
    input: BufReader<UnixStream>,
    output: UnixStream,
    child: Child,
}

impl Keeper {
    /// Starts the keeper: `heddle measure keeper`.
    ///
    /// # Errors
    /// No process can be started.
    pub fn start() -> Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(std::env::current_exe().context("where is this program?")?);
        command.args(["measure", "keeper"]).process_group(0);
        let child = command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .context("the process that puts things back")?;
        let mut keeper = Self {
            input: BufReader::new(ours.try_clone()?),
            output: ours,
            child,
        };
        // The first reply means that the keeper holds its signals from now on.
        keeper.answer()?;
        Ok(keeper)
    }

    fn answer(&mut self) -> Result<()> {
        match line(&mut self.input) {
            Ok(Some(_)) => Ok(()),
            _ => bail!("the process that puts things back has ended"),
        }
    }

    /// Notifies the keeper how to undo the next step.
    ///
    /// # Errors
    /// The keeper has been killed: nothing more may be changed.
    pub fn will(&mut self, undo: &Undo) -> Result<()> {
        send(&mut self.output, undo).context("the process that puts things back")?;
        self.answer()
    }

    /// Notifies the keeper how to undo a command, and runs the command.
    ///
    /// # Errors
    /// The command fails.
    pub fn step(&mut self, argv: &str, undo: &str) -> Result<String> {
        self.will(&Undo::Quietly(words(undo)))?;
        run(&words(argv))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.output.shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

/// The keeper's process.
///
/// # Errors
/// The process's signals cannot be held.
pub fn serve() -> Result<()> {
    Signals::hold(&[Signal::INT, Signal::TERM, Signal::HUP])?;
    let stream = UnixStream::from(rustix::io::dup(rustix::stdio::stdin())?);
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    let mut all: Vec<Undo> = Vec::new();
    let mut answer = output.write_all(b"1\n");
    while answer.is_ok()
        && let Ok(Some(line)) = line(&mut input)
    {
        all.extend(serde_json::from_str::<Undo>(&line).ok());
        answer = output.write_all(b"1\n");
    }
    for undo in all.iter().rev() {
        if let Err(e) = undo.run() {
            eprintln!("heddle: could not be put back: {e:#}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_complaints() {
        assert_eq!(run(&words("echo a b")).unwrap(), "a b\n");
        let text = run(&words("ls /no/such/file")).unwrap_err().to_string();
        assert!(
            text.starts_with("`ls /no/such/file`: ls: ") && !text.contains('\n'),
            "{text}"
        );
        assert!(run(&words("no-such-program-of-ours")).is_err());
        assert!(run(&[]).is_err());
    }

    #[test]
    fn only_the_process_that_was_meant_is_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        // The kernel gives a process its new name shortly after its program was started.
        let comm = format!("/proc/{}/comm", child.id());
        while std::fs::read_to_string(&comm).unwrap() != "sleep\n" {
            std::thread::yield_now();
        }
        let end = |name: &str| {
            Undo::End {
                pid: child.id(),
                name: name.into(),
            }
            .run()
            .unwrap()
        };
        end("another");
        assert!(child.try_wait().unwrap().is_none());
        let mut child = child;
        let pid = child.id();
        Undo::End {
            pid,
            name: "sleep".into(),
        }
        .run()
        .unwrap();
        child.wait().unwrap();
    }
}
