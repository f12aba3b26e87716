//! `heddle bench switch`.

use super::options::{DeviceOptions, LoadOptions, core};
use super::output::Output;
use anyhow::{Result, bail};
use clap::ValueEnum;
use heddle_bench::flows::{Order, Spread};
use heddle_bench::line;
use heddle_bench::run::{Endpoint, Engine, Load};
use heddle_bench::traffic::Checks;

/// What storms.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Storm {
    /// Each packet is a flow of its own
    NewFlows,
    /// Packets crafted to multiply masks (`heddle bench rules --kind acl`)
    Explosion,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A port's socket, as for `heddle bench vhost`. With --storm ports 0 and 1 carry the established traffic, ports 2 and 3 the storm
    #[arg(long = "port", value_name = "ENDPOINT", required = true)]
    ports: Vec<Endpoint>,
    /// A storm beside the established traffic
    #[arg(long, value_enum)]
    storm: Option<Storm>,
    /// Packets per second of the storm; without it as many as the switch takes
    #[arg(long)]
    storm_rate: Option<f64>,
    #[command(flatten)]
    device: DeviceOptions,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    output: Output,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        if self.storm.is_some() && self.ports.len() < 4 {
            bail!("a storm needs four ports");
        }
        let (setup, timing) = (self.device.setup(), self.load.timing()?);
        self.output.begin();
        for &size in &self.load.size {
            let established = self.load.load(size);
            let mut loads = vec![established];
            if let Some(storm) = self.storm {
                loads.push(Load {
                    flows: u32::MAX,
                    order: Order::RoundRobin,
                    spread: match storm {
                        Storm::NewFlows => Spread::Plain,
                        Storm::Explosion => Spread::Explosion,
                    },
                    rate: self.storm_rate,
                    checks: Checks::Lengths,
                    ..established
                });
            }
            let line = line::round_trip_ns(self.load.core, self.load.switch_core);
            core(self.load.core)?;
            let mut engine = Engine::connect(&self.ports, &setup, &loads)?;
            let outcome = engine.measure_and_tell(&timing, &mut |step| self.output.step(step))?;
            engine.close()?;
            self.output.row(size, &outcome, line, None)?;
        }
        Ok(())
    }
}
