//! `heddle bench switch`.

use super::measurement::{Measurement, connect};
use anyhow::{Result, bail};
use clap::ValueEnum;
use heddle_loadgen::flows::{Order, Spread};
use heddle_loadgen::load::Checks;
use heddle_loadgen::load::Load;
use heddle_loadgen::run::Endpoint;

/// The traffic of the storm.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Storm {
    /// Each packet is a flow of its own
    NewFlows,
    /// Packets crafted to multiply masks (`heddle bench rules --kind acl`)
    Explosion,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A port's socket, as for `heddle bench vhost`. With --storm ports 0 and 1 carry the established
    /// traffic, ports 2 and 3 the storm
    #[arg(long = "port", value_name = "ENDPOINT", required = true)]
    ports: Vec<Endpoint>,
    /// A storm beside the established traffic
    #[arg(long, value_enum)]
    storm: Option<Storm>,
    /// Packets per second of the storm; without it, the maximum that the switch takes
    #[arg(long)]
    storm_rate: Option<f64>,
    #[command(flatten)]
    measurement: Measurement,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        if self.storm.is_some() && self.ports.len() < 4 {
            bail!("a storm needs four ports");
        }
        let m = &self.measurement;
        m.each(|setup, established, timing| {
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
            let mut engine = connect(&self.ports, setup, &loads)?;
            let outcome = m.run(&mut engine, timing)?;
            engine.close()?;
            Ok((outcome, None))
        })
    }
}
