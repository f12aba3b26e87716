//! Common parts of measurements: options, and one row for each size.

use super::interrupt;
use super::options::{DeviceOptions, LoadOptions, core};
use super::output::Output;
use crate::console;
use anyhow::{Result, bail};
use heddle_loadgen::line;
use heddle_loadgen::load::{Load, Setup, Timing};
use heddle_loadgen::report::Outcome;
use heddle_loadgen::run::{Endpoint, Engine};
use std::sync::atomic::Ordering::Relaxed;

#[derive(clap::Args)]
pub(crate) struct Measurement {
    #[command(flatten)]
    device: DeviceOptions,
    #[command(flatten)]
    pub(super) load: LoadOptions,
    #[command(flatten)]
    output: Output,
}

impl Measurement {
    /// Calls `one` for each size, with the options of devices, load and time, on the generator's core. `one`
    /// returns the outcome, and the cycles per packet if the loop is this program's.
    pub(super) fn each(
        &self,
        mut one: impl FnMut(&Setup, Load, &Timing) -> Result<(Outcome, Option<f64>)>,
    ) -> Result<()> {
        if self.load.size.is_empty() {
            bail!("no sizes");
        }
        let (setup, timing) = (self.device.setup(), self.load.timing()?);
        self.output.begin();
        for &size in &self.load.size {
            let line = line::round_trip_ns(self.load.core, self.load.switch_core);
            core(self.load.core)?;
            let (outcome, cycles) = one(&setup, self.load.load(size), &timing)?;
            self.output.row(size, &outcome, line, cycles)?;
            if interrupt::enough()?.load(Relaxed) {
                break;
            }
        }
        Ok(())
    }
    /// Measures with `engine`, until the program is interrupted, and prints the steps.
    pub(super) fn run(&self, engine: &mut Engine, timing: &Timing) -> Result<Outcome> {
        engine.until(interrupt::enough()?);
        Ok(engine.measure_with_progress(timing, &mut |step| self.output.step(step))?)
    }
}

/// Waits for the switch at all ports.
pub(super) fn connect(ports: &[Endpoint], setup: &Setup, loads: &[Load]) -> Result<Engine> {
    Ok(Engine::connect_with_progress(
        ports,
        setup,
        loads,
        &mut console::waiting,
    )?)
}
