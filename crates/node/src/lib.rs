//! Sets a machine up for the switch, as one file describes it, and undoes that.
//!
//! **Problem.** A node needs many settings in many places: modules, processors for the datapath, the NIC's
//! address on a bridge, queues of NICs. A mistake with the address makes the machine unreachable.
//!
//! **How.** Each thing is a [`setting`] that can be read, compared and set. `apply` sets only the settings
//! that differ. It first writes down the old value ([`state`]), so it can be repeated at any time and undone
//! later, also after a crash. A check address has to reply before and after. If it does not reply afterwards,
//! the changes of this run are undone.

mod bridge;
mod check;
mod conf;
mod db;
mod eswitch;
mod files;
mod interrupts;
mod pci;
mod setting;
mod state;

use anyhow::{Context, Result, bail};
use conf::Conf;
use heddle_sys::signal::{Signal, Signals};
use setting::{Machine, STAGES, Target, Wanted, wanted};
use state::SavedValues;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Default path of the description.
pub const DEFAULT_FILE: &str = "/etc/heddle/node.toml";
/// Default path of the values before the first change.
pub const DEFAULT_STATE: &str = "/var/lib/heddle/node.json";

/// A change that was begun.
struct Change {
    target: Target,
    /// Value before; `None`: not set.
    before: Option<String>,
    /// The value is that before the first apply: it need not be known any more once it is set back.
    forget: bool,
}

/// A machine and its description.
pub struct Node {
    conf: Conf,
    machine: Machine,
    state: SavedValues,
}

/// Prints a step. An output that is closed changes nothing: the step is done all the same.
fn print_step(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn shown(value: Option<&str>) -> &str {
    value.unwrap_or("not set")
}

impl Node {
    /// Reads the description, and the values before the first change.
    ///
    /// # Errors
    /// A file cannot be read, or is malformed.
    pub fn open(file: &Path, state: &Path) -> Result<Self> {
        let conf = Conf::read(file)?;
        Ok(Self {
            machine: Machine::new(&conf.database),
            state: SavedValues::open(state)?,
            conf,
        })
    }

    /// Settings that differ: each target with its wanted value, and its present value.
    fn differences(&mut self) -> Result<Vec<(Wanted, Option<String>)>> {
        let mut all = Vec::new();
        // A driver that has yet to get its device makes the network device. So do functions and modes.
        let mut comes = false;
        for (target, value) in wanted(&self.conf)? {
            if !target.is_possible() && !comes {
                bail!("{target}: {}", target.why_impossible());
            }
            let now = self.now(&target)?;
            if now != value {
                comes |= target.makes_devices();
                all.push(((target, value), now));
            }
        }
        Ok(all)
    }

    /// The present value of a target; `None`: not set, or its device is not there.
    fn now(&mut self, target: &Target) -> Result<Option<String>> {
        match target.is_possible() {
            true => self.machine.get(target),
            false => Ok(None),
        }
    }

    /// Prints the changes that [`Node::apply`] would make.
    ///
    /// # Errors
    /// A setting cannot be read: there is no such device, or the database does not reply.
    pub fn plan(mut self) -> Result<()> {
        let all = self.differences()?;
        for ((target, value), now) in &all {
            print_step(&format!(
                "{target}: {} -> {}",
                shown(now.as_deref()),
                shown(value.as_deref())
            ));
        }
        if all.is_empty() {
            print_step("nothing to do");
        }
        Ok(())
    }

    /// Prints each setting.
    ///
    /// # Errors
    /// The errors of [`Node::plan`], and a setting that differs.
    pub fn status(mut self) -> Result<()> {
        let mut differs = 0;
        for (target, value) in wanted(&self.conf)? {
            let now = self.now(&target)?;
            let mark = if now == value { "ok     " } else { "differs" };
            differs += usize::from(now != value);
            print_step(&format!("{mark} {target}: {}", shown(now.as_deref())));
        }
        if let Some(check) = &self.conf.check {
            let replies = check::replies(check, Duration::ZERO)?;
            let mark = if replies { "ok     " } else { "differs" };
            differs += usize::from(!replies);
            print_step(&format!(
                "{mark} check address {check}: {}",
                if replies { "replies" } else { "no reply" }
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
    /// The errors of [`Node::plan`]. The check address does not reply before: nothing is changed. A change
    /// fails, or the check address does not reply after: all changes of this call are undone.
    pub fn apply(mut self) -> Result<()> {
        let all = self.differences()?;
        if all.is_empty() {
            print_step("nothing to do");
            return Ok(());
        }
        let limit = Duration::from_secs(self.conf.check_seconds);
        let is_deaf = self.machine.is_deaf(all.iter().map(|((target, _), _)| target))?;
        if let Some(check) = &self.conf.check
            && !is_deaf
            && !check::replies(check, limit)?
        {
            bail!("the check address {check} does not reply now; nothing was changed");
        }
        // The terminal may hang up when the address moves.
        Signals::hold(&[Signal::HUP, Signal::INT, Signal::TERM]).context("signals")?;
        let mut done = Vec::new();
        let mut outcome = Ok(());
        for stage in 0..STAGES {
            outcome = self.apply_stage(stage, &mut done);
            if outcome.is_err() {
                break;
            }
        }
        if outcome.is_ok()
            && let Some(check) = &self.conf.check
            && !check::replies(check, limit).unwrap_or(false)
        {
            outcome = Err(anyhow::anyhow!("the check address {check} no longer replies"));
        }
        let Err(why) = outcome else { return Ok(()) };
        print_step(&format!("taking it back: {why:#}"));
        match self.take_back(done.into_iter().rev()) {
            Ok(()) => Err(why.context("all is as it was")),
            Err(also) => Err(why.context(format!("taking it back failed, too ({also:#})"))),
        }
    }

    /// Makes the settings of a stage, and adds each one to `done` before.
    fn apply_stage(&mut self, stage: usize, done: &mut Vec<Change>) -> Result<()> {
        for ((target, value), now) in self.differences()? {
            if target.stage() != stage {
                continue;
            }
            print_step(&format!(
                "{target}: {} -> {}",
                shown(now.as_deref()),
                shown(value.as_deref())
            ));
            let forget = self.state.note(&target, now.clone())?;
            done.push(Change {
                target: target.clone(),
                before: now,
                forget,
            });
            self.machine.set(&target, value.as_deref())?;
            if target.has_to_be_checked() {
                let now = self.machine.get(&target)?;
                if now != value {
                    bail!(
                        "{target}: {} is set in place of {}: the driver has other values",
                        shown(now.as_deref()),
                        shown(value.as_deref())
                    );
                }
            }
        }
        Ok(())
    }

    /// Sets changes back. The value before the first apply stays known, unless the change was the first one.
    fn take_back(&mut self, changes: impl Iterator<Item = Change>) -> Result<()> {
        let mut first = Ok(());
        for Change {
            target,
            before,
            forget,
        } in changes
        {
            // A new connection, since the old one may be the cause of the failure.
            let mut machine = Machine::new(&self.conf.database);
            let done = match target.has_gone() {
                true => Ok(()),
                false => machine.set(&target, before.as_deref()),
            };
            let done = done.with_context(|| target.to_string());
            let done = match forget {
                true => done.and_then(|()| self.state.forget(&target)),
                false => done,
            };
            match done {
                Ok(()) => print_step(&format!("{target}: {}", shown(before.as_deref()))),
                Err(e) if first.is_ok() => first = Err(e),
                Err(_) => {}
            }
        }
        first
    }

    /// Makes all as it was before the first [`Node::apply`], the last change first.
    ///
    /// # Errors
    /// The first change that failed; all others were tried. The next call tries a failed one again.
    pub fn undo(file: &Path, state: &Path) -> Result<()> {
        let mut node = Self::open(file, state)?;
        let entries = node.state.entries.clone();
        if entries.is_empty() {
            print_step("nothing to undo");
            return Ok(());
        }
        Signals::hold(&[Signal::HUP, Signal::INT, Signal::TERM]).context("signals")?;
        node.take_back(entries.into_iter().rev().map(|e| Change {
            target: e.target,
            before: e.before,
            forget: true,
        }))
    }
}
