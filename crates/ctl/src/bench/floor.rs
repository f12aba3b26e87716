//! `heddle bench floor`.

use super::measurement::Measurement;
use anyhow::Result;
use clap::ValueEnum;
use heddle_loadgen::floor::{Floor, Kind};

/// The loop's way to move a packet.
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
    /// The loop's way to move a packet
    #[arg(long, value_enum, default_value = "one-copy")]
    kind: Loop,
    /// Ports
    #[arg(long, default_value_t = 2)]
    ports: usize,
    #[command(flatten)]
    measurement: Measurement,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let kind = match self.kind {
            Loop::OneCopy => Kind::OneCopy,
            Loop::TwoCopies => Kind::TwoCopies,
            Loop::Rings => Kind::Rings,
        };
        let m = &self.measurement;
        let core = m.load.switch_core;
        m.each(|setup, load, timing| {
            let (floor, mut engine) = Floor::start(kind, self.ports, core, setup, &[load])?;
            let before = floor.work();
            let outcome = m.run(&mut engine, timing)?;
            let work = floor.stop()?.since(before);
            Ok((outcome, Some(work.cycles())))
        })
    }
}
