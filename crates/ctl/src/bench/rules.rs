//! `heddle bench rules`.

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use heddle_loadgen::load::Load;
use heddle_loadgen::rules::Kind;

/// A set of rules.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Set {
    /// One rule per input port
    InPort,
    /// A learning switch
    Normal,
    /// One rule about the destination port that all flows have
    Tuple,
    /// One rule for each of --count flows, of all five fields
    Exact,
    /// --count rules of falling priority, each about other bits of the ports
    Masks,
    /// --count tables, one after the other
    Pipeline,
    /// A short list of rules that allow packets by one field each, and a rule for all other packets
    Acl,
    /// One rule that looks at addresses and ports of each packet, so that every flow is cached by itself
    Each,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Set of rules
    #[arg(long, value_enum)]
    kind: Set,
    /// Number of flows, masks or tables
    #[arg(long, default_value_t = 1)]
    count: u32,
    /// Ports of the generator; OpenFlow port 1 is the generator's port 0
    #[arg(long, default_value_t = 2)]
    ports: usize,
    /// Only for the pair of ports with this number
    #[arg(long)]
    pair: Option<usize>,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let kind = match self.kind {
            Set::InPort => Kind::InPort,
            Set::Normal => Kind::Normal,
            Set::Tuple => Kind::Tuple,
            Set::Exact => Kind::Exact(self.count),
            Set::Masks => Kind::Masks(u16::try_from(self.count)?),
            Set::Pipeline => Kind::Pipeline(u8::try_from(self.count)?),
            Set::Acl => Kind::Acl,
            Set::Each => Kind::Each,
        };
        let both = Load {
            both_ways: true,
            ..Load::default()
        };
        let ports = (0..self.ports).filter(|p| self.pair.is_none_or(|pair| p / 2 == pair));
        for port in ports {
            let to = both.target(port, self.ports).unwrap_or(port);
            let number = |p: usize| u16::try_from(p + 1);
            let rules = kind.rules(number(port)?, number(to)?, u8::try_from(port)?);
            crate::console::out(&rules.map_err(|e| anyhow!(e))?.to_string())?;
            if matches!(kind, Kind::Normal) {
                break; // one rule is for all ports
            }
        }
        Ok(())
    }
}
