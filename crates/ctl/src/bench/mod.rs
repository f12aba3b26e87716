//! `heddle bench`: the command line of the load generator.

mod floor;
pub(crate) mod interrupt;
mod measurement;
mod options;
mod output;
mod ping;
mod rules;
mod switch;
mod vhost;

pub(crate) use interrupt::ended;

use clap::Subcommand;

/// The kind of measurement.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// A switch with vhost-user ports: the program is the guests' side of them
    Vhost(vhost::Args),
    /// A switch under established traffic; a second pair of ports may send a storm
    Switch(switch::Args),
    /// The OpenFlow rules that belong to the generator's flows, for `ovs-ofctl add-flows`
    Rules(rules::Args),
    /// Packets one by one between two vhost-user ports, every byte checked; prints JSON, fails when one is
    /// lost or changed
    Ping(ping::Args),
    /// The limit of this machine: the same load through a loop in this process that only moves descriptors
    /// and copies
    Floor(floor::Args),
    /// The time that a cache line takes from one core to another and back
    Line {
        /// The two cores
        #[arg(default_values_t = [0, 1], num_args = 2)]
        cores: Vec<usize>,
    },
}

impl Command {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Vhost(args) => args.run(),
            Self::Switch(args) => args.run(),
            Self::Rules(args) => args.run(),
            Self::Ping(args) => args.run(),
            Self::Floor(args) => args.run(),
            Self::Line { cores } => {
                let &[a, b] = cores.as_slice() else {
                    anyhow::bail!("two cores are needed");
                };
                match heddle_loadgen::line::round_trip_ns(a, b) {
                    Some(ns) => crate::console::out(&format!("{ns:.0} ns\n")),
                    None => anyhow::bail!("the cores {a} and {b} could not be used at the same time"),
                }
            }
        }
    }
}
