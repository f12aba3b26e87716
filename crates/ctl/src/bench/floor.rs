//! `heddle bench floor`.

use super::options::{DeviceOptions, LoadOptions, core};
use super::output::Output;
use anyhow::Result;
use clap::ValueEnum;
use heddle_bench::floor::{Floor, Kind};
use heddle_bench::line;

/// What the loop does with a packet.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Loop {
    /// Move descriptors and copy once
    OneCopy,
    /// Copy twice, by way of private memory
    TwoCopies,
    /// One copy by Heddle's own rings with all of their checks
    Rings,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the loop does with a packet
    #[arg(long, value_enum, default_value = "one-copy")]
    kind: Loop,
    /// Ports
    #[arg(long, default_value_t = 2)]
    ports: usize,
    #[command(flatten)]
    device: DeviceOptions,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    output: Output,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let (setup, timing) = (self.device.setup(), self.load.timing()?);
        let kind = match self.kind {
            Loop::OneCopy => Kind::OneCopy,
            Loop::TwoCopies => Kind::TwoCopies,
            Loop::Rings => Kind::Rings,
        };
        self.output.begin();
        for &size in &self.load.size {
            let line = line::round_trip_ns(self.load.core, self.load.switch_core);
            core(self.load.core)?;
            let loads = [self.load.load(size)];
            let (floor, mut engine) = Floor::start(kind, self.ports, self.load.switch_core, &setup, &loads)?;
            let before = floor.work();
            let outcome = engine.measure_and_tell(&timing, &mut |step| self.output.step(step))?;
            let work = floor.stop()?.since(before);
            self.output.row(size, &outcome, line, Some(work.cycles()))?;
        }
        Ok(())
    }
}
