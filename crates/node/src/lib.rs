//! Sets a machine up for the switch, as one file describes it, and takes that back.
//!
//! **Problem.** What a node needs (modules, processors for the datapath, the NIC's address on a bridge,
//! queues of NICs) is spread over many places, and a mistake with the address loses the machine.
//!
//! **How.** Each thing is a [`setting`] that can be read, compared and set. `apply` sets what differs,
//! after it has written down what was there ([`state`]), so that it can be repeated at any time and undone
//! later, also after a crash. Before and after, a check address has to answer; if it does not answer
//! afterwards, what this run has changed is set back.

mod bridge;
mod check;
mod conf;
mod db;
mod setting;
mod state;

use anyhow::{Context, Result, bail};
use conf::Conf;
use heddle_sys::signal::{Signal, Signals};
use setting::{Machine, Target, Wanted, wanted};
use state::State;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Where the description is if nobody says.
pub const DEFAULT_FILE: &str = "/etc/heddle/node.toml";
/// Where it is kept what was there before.
pub const DEFAULT_STATE: &str = "/var/lib/heddle/node.json";

/// A machine and its description.
pub struct Node {
    conf: Conf,
    machine: Machine,
    state: State,
}

/// Tells what is done. Whoever watched may be gone: then it is done all the same.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn shown(value: Option<&str>) -> &str {
    value.unwrap_or("not set")
}

impl Node {
    /// Reads the description, and what was kept.
    ///
    /// # Errors
    /// Files that cannot be read, or are malformed.
    pub fn open(file: &Path, state: &Path) -> Result<Self> {
        let conf = Conf::read(file)?;
        Ok(Self {
            machine: Machine::new(&conf.database),
            state: State::open(state)?,
            conf,
        })
    }

    /// What differs: each target with what it is now, and what it shall be.
    fn differences(&mut self) -> Result<Vec<(Wanted, Option<String>)>> {
        let mut all = Vec::new();
        for (target, value) in wanted(&self.conf)? {
            let now = self.machine.get(&target)?;
            if now != value {
                all.push(((target, value), now));
            }
        }
        Ok(all)
    }

    /// Prints what [`Node::apply`] would change.
    ///
    /// # Errors
    /// What cannot be read: a device that is not there, a database that does not answer.
    pub fn plan(mut self) -> Result<()> {
        let all = self.differences()?;
        for ((target, value), now) in &all {
            say(&format!(
                "{target}: {} -> {}",
                shown(now.as_deref()),
                shown(value.as_deref())
            ));
        }
        if all.is_empty() {
            say("nothing to do");
        }
        Ok(())
    }

    /// Prints each setting.
    ///
    /// # Errors
    /// As [`Node::plan`]; and if something differs.
    pub fn status(mut self) -> Result<()> {
        let mut differs = 0;
        for (target, value) in wanted(&self.conf)? {
            let now = self.machine.get(&target)?;
            let mark = if now == value { "ok     " } else { "differs" };
            differs += usize::from(now != value);
            say(&format!("{mark} {target}: {}", shown(now.as_deref())));
        }
        if let Some(check) = &self.conf.check {
            let answers = check::answers(check, Duration::ZERO)?;
            let mark = if answers { "ok     " } else { "differs" };
            differs += usize::from(!answers);
            say(&format!(
                "{mark} check address {check}: {}",
                if answers { "answers" } else { "no answer" }
            ));
        }
        match differs {
            0 => Ok(()),
            n => bail!("{n} of these are not as described (heddle node apply)"),
        }
    }

    /// Makes the machine as described.
    ///
    /// # Errors
    /// As [`Node::plan`]; the check address does not answer before, or not after: then, and if a change
    /// fails, all that this call has changed is as it was.
    pub fn apply(mut self) -> Result<()> {
        let all = self.differences()?;
        if all.is_empty() {
            say("nothing to do");
            return Ok(());
        }
        let limit = Duration::from_secs(self.conf.check_seconds);
        let is_deaf = self.machine.is_deaf(all.iter().map(|((target, _), _)| target))?;
        if let Some(check) = &self.conf.check
            && !is_deaf
            && !check::answers(check, limit)?
        {
            bail!("the check address {check} does not answer now; nothing was changed");
        }
        // The terminal may hang up when the address moves.
        Signals::hold(&[Signal::HUP, Signal::INT, Signal::TERM]).context("signals")?;
        let mut done: Vec<(Target, Option<String>)> = Vec::new();
        let mut outcome = Ok(());
        for ((target, value), now) in all {
            say(&format!(
                "{target}: {} -> {}",
                shown(now.as_deref()),
                shown(value.as_deref())
            ));
            done.push((target.clone(), now.clone()));
            outcome = self
                .state
                .note(&target, now)
                .and_then(|()| self.machine.set(&target, value.as_deref()));
            if outcome.is_err() {
                break;
            }
        }
        if outcome.is_ok()
            && let Some(check) = &self.conf.check
            && !check::answers(check, limit).unwrap_or(false)
        {
            outcome = Err(anyhow::anyhow!(
                "the check address {check} does not answer any more"
            ));
        }
        let Err(why) = outcome else { return Ok(()) };
        say(&format!("taking it back: {why:#}"));
        match self.take_back(done.into_iter().rev()) {
            Ok(()) => Err(why.context("all is as it was")),
            Err(also) => Err(why.context(format!("taking it back failed, too ({also:#})"))),
        }
    }

    fn take_back(&mut self, entries: impl Iterator<Item = (Target, Option<String>)>) -> Result<()> {
        let mut first = Ok(());
        for (target, before) in entries {
            // The connection may be what has failed.
            let mut machine = Machine::new(&self.conf.database);
            let done = machine.set(&target, before.as_deref());
            match done
                .with_context(|| target.to_string())
                .and_then(|()| self.state.forget(&target))
            {
                Ok(()) => say(&format!("{target}: {}", shown(before.as_deref()))),
                Err(e) if first.is_ok() => first = Err(e),
                Err(_) => {}
            }
        }
        first
    }

    /// Makes all as it was before the first [`Node::apply`], the last change first.
    ///
    /// # Errors
    /// The first that failed; all others were tried. What failed is tried again the next time.
    pub fn undo(file: &Path, state: &Path) -> Result<()> {
        let mut node = Self::open(file, state)?;
        let entries = node.state.entries.clone();
        if entries.is_empty() {
            say("nothing to undo");
            return Ok(());
        }
        Signals::hold(&[Signal::HUP, Signal::INT, Signal::TERM]).context("signals")?;
        node.take_back(entries.into_iter().rev().map(|e| (e.target, e.before)))
    }
}
