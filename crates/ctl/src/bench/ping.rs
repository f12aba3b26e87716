//! `heddle bench ping`.

use super::measurement::connect;
use super::options::{DeviceOptions, core};
use anyhow::{Result, bail};
use heddle_loadgen::frame::Shape;
use heddle_loadgen::load::Load;
use heddle_loadgen::ping::{Plan, exchange};
use heddle_loadgen::run::Endpoint;
use std::time::Duration;

/// Prints one line of JSON with numbers of packets, and round trips in microseconds.
///
/// Packets are sent, received unchanged, lost (not there in time), corrupt (changed) or foreign. Foreign
/// packets are late ones, or of another program, such as neighbour discovery.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The two ports' sockets, as for `heddle bench vhost`
    #[arg(long = "port", value_name = "ENDPOINT", required = true)]
    ports: Vec<Endpoint>,
    /// Packets in each direction
    #[arg(long, default_value_t = 1000)]
    count: u32,
    /// Shortest frame
    #[arg(long, default_value_t = 60)]
    min: usize,
    /// Longest frame
    #[arg(long, default_value_t = 1514)]
    max: usize,
    /// Flows
    #[arg(long, default_value_t = 16)]
    flows: u32,
    /// Seconds that a packet may take
    #[arg(long = "patience", default_value_t = 1.0, value_name = "PATIENCE")]
    timeout_s: f64,
    /// Longest pause before each packet, microseconds; any length up to it comes
    #[arg(long, default_value_t = 0)]
    pause: u64,
    /// The core of the generator; any without it
    #[arg(long)]
    core: Option<usize>,
    #[command(flatten)]
    device: DeviceOptions,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        if self.ports.len() != 2 {
            bail!("two ports are needed");
        }
        if let Some(n) = self.core {
            core(n)?;
        }
        let load = Load {
            shape: Shape::Udp(self.max),
            ..Load::default()
        };
        let mut engine = connect(&self.ports, &self.device.setup(), &[load])?;
        let plan = Plan {
            count: self.count,
            sizes: (self.min, self.max),
            flows: self.flows,
            timeout: Duration::try_from_secs_f64(self.timeout_s)?,
            pause: Duration::from_micros(self.pause),
        };
        let out = exchange(engine.ports_mut(), &plan)?;
        engine.close()?;
        let read = crate::console::out(&(serde_json::to_string(&out)? + "\n"));
        if !out.is_perfect() {
            bail!(
                "{} of {} packets did not arrive as they were sent",
                out.sent - out.received,
                out.sent
            );
        }
        read
    }
}
