//! `heddle bench vhost`.

use super::measurement::{Measurement, connect};
use anyhow::{Result, bail};
use heddle_loadgen::run::Endpoint;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A port's socket, in the order of the ports: `listen:PATH` (or only PATH) where the switch connects to
    /// us, `connect:PATH` where it listens. Ports 0 and 1, 2 and 3, … are partners
    #[arg(long = "port", value_name = "ENDPOINT", required = true)]
    ports: Vec<Endpoint>,
    /// If the switch goes away, wait for the next one, continue, and report the pauses
    #[arg(long)]
    reconnect: bool,
    #[command(flatten)]
    measurement: Measurement,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        if !self.ports.len().is_multiple_of(2) {
            bail!(
                "{} ports: they come in pairs, each sends to its partner",
                self.ports.len()
            );
        }
        let m = &self.measurement;
        m.each(|setup, load, timing| {
            let mut engine = connect(&self.ports, setup, &[load])?;
            if self.reconnect {
                engine.reconnecting();
            }
            let outcome = m.run(&mut engine, timing)?;
            engine.close()?;
            Ok((outcome, None))
        })
    }
}
