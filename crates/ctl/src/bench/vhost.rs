//! `heddle bench vhost`.

use super::options::{DeviceOptions, LoadOptions, core};
use super::output::Output;
use anyhow::{Result, bail};
use heddle_bench::line;
use heddle_bench::run::{Endpoint, Engine};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A port's socket, in the order of the ports: `listen:PATH` (or only PATH) where the switch connects to us, `connect:PATH` where it listens. Ports 0 and 1, 2 and 3, … are partners
    #[arg(long = "port", value_name = "ENDPOINT", required = true)]
    ports: Vec<Endpoint>,
    /// Wait for a switch that goes away, go on with the next one, tell the pauses
    #[arg(long)]
    reconnect: bool,
    #[command(flatten)]
    device: DeviceOptions,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    output: Output,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        if self.load.size.is_empty() {
            bail!("no sizes");
        }
        let (setup, timing) = (self.device.setup(), self.load.timing()?);
        self.output.begin();
        for &size in &self.load.size {
            let line = line::round_trip_ns(self.load.core, self.load.switch_core);
            core(self.load.core)?;
            let mut engine = Engine::connect(&self.ports, &setup, &[self.load.load(size)])?;
            if self.reconnect {
                engine.reconnecting();
            }
            let outcome = engine.measure_and_tell(&timing, &mut |step| self.output.step(step))?;
            engine.close()?;
            self.output.row(size, &outcome, line, None)?;
        }
        Ok(())
    }
}
