//! Options that several measurements share.

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use heddle_loadgen::flows::{Order, Spread};
use heddle_loadgen::frame::Shape;
use heddle_loadgen::load::{Aim, Load, Setup, Timing};
use heddle_loadgen::load::{Checks, Touch};
use heddle_vhost_user::frontend::HugePages;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Order of flows.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FlowOrder {
    /// One after the other
    RoundRobin,
    /// Uniformly at random
    Random,
}

/// The packets that receivers read.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Check {
    /// No packets: lengths only, no latency
    Lengths,
    /// One of --probe-every, for latency
    Probes,
    /// Every byte of every packet
    Content,
}

/// The part of each packet that the guests touch.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Touched {
    /// Only what differs from the packet before in the same buffer
    Changes,
    /// The first 128 bytes of each packet are written and read
    Heads,
    /// All of each packet is written and read
    Packets,
}

/// Hugepages for the guests' memory.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Huge {
    /// If there are enough
    Try,
    /// Fail if there are not enough
    Need,
    /// Never
    No,
}

/// Switches that can be turned off.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum OnOff {
    On,
    Off,
}

/// Options of the guests' devices.
#[derive(Args, Clone)]
pub(crate) struct DeviceOptions {
    /// Packed rings instead of split ones
    #[arg(long)]
    packed: bool,
    /// Mergeable receive buffers
    #[arg(long, value_enum, default_value = "on")]
    mergeable: OnOff,
    /// Negotiate IN_ORDER
    #[arg(long)]
    in_order: bool,
    /// Negotiate EVENT_IDX
    #[arg(long)]
    event_idx: bool,
    /// Entries of each ring
    #[arg(long, default_value_t = 256)]
    ring: u16,
    /// Queue pairs of each port
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    queues: u16,
    /// Bytes of a receive buffer (2048 with mergeable buffers, else what the longest frame needs)
    #[arg(long)]
    rx_buffer: Option<u32>,
    /// Hugepages for the guests' memory
    #[arg(long, value_enum, default_value = "try")]
    huge: Huge,
}

impl DeviceOptions {
    pub(crate) fn setup(&self) -> Setup {
        Setup {
            packed: self.packed,
            mergeable: matches!(self.mergeable, OnOff::On),
            in_order: self.in_order,
            event_idx: self.event_idx,
            ring: self.ring,
            pairs: self.queues,
            rx_buffer: self.rx_buffer,
            huge: match self.huge {
                Huge::Try => HugePages::Try,
                Huge::Need => HugePages::Need,
                Huge::No => HugePages::Never,
            },
        }
    }
}

/// Options of the traffic, and durations.
#[derive(Args, Clone)]
pub(crate) struct LoadOptions {
    /// Bytes of the frames, without the check sequence; several: one measurement each
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub(crate) size: Vec<usize>,
    /// Send TCP GSO packets of that size, with segments of MSS bytes of payload
    #[arg(long, value_name = "MSS")]
    tso: Option<u16>,
    /// Send single segments of established TCP connections; they carry no stamps (--check lengths)
    #[arg(long, conflicts_with_all = ["tso", "masks"])]
    tcp: bool,
    /// Each port sends, not only the first of each pair
    #[arg(long)]
    both: bool,
    /// Flows (5-tuples) of each sending port
    #[arg(long, default_value_t = 1)]
    flows: u32,
    /// Order of flows
    #[arg(long, value_enum, default_value = "round-robin")]
    order: FlowOrder,
    /// Each packet is a flow of its own, for ever (instead of --flows)
    #[arg(long)]
    new_flows: bool,
    /// Both send: the second port of a pair sends the reverse direction of the first one's flows
    #[arg(long = "answers", conflicts_with_all = ["masks", "tso", "new_flows"])]
    replies: bool,
    /// Flows hit rules with COUNT different masks (`heddle bench rules --kind masks`)
    #[arg(long, value_name = "COUNT")]
    masks: Option<u16>,
    /// Send to a router's Ethernet address, not to the partner's
    #[arg(long, value_name = "MAC", value_parser = ethernet)]
    gateway: Option<[u8; 6]>,
    /// First ports of pairs send to this address, not to that of the flow: a load balancer's
    #[arg(long, value_name = "IPV4", conflicts_with = "tso")]
    to: Option<Ipv4Addr>,
    /// Second ports of pairs send to this address, not to that of the flow: a translated source's
    #[arg(long = "answer-to", value_name = "IPV4", conflicts_with = "tso")]
    reply_to: Option<Ipv4Addr>,
    /// Packets per second of all ports together; without it, the maximum that the switch takes
    #[arg(long)]
    rate: Option<f64>,
    /// The packets that receivers read
    #[arg(long, value_enum, default_value = "probes")]
    check: Check,
    /// One of this number of packets carries a time stamp
    #[arg(long, default_value_t = 64)]
    probe_every: u16,
    /// The part of each packet that the guests touch
    #[arg(long, value_enum, default_value = "heads")]
    touch: Touched,
    /// Maximum number of packets posted at once
    #[arg(long, default_value_t = 64)]
    burst: usize,
    /// Seconds that are measured, fewer if the program is interrupted (Ctrl-C)
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// At the end, missing packets are lost when none has come for this time
    #[arg(long, value_name = "SECONDS", default_value_t = 0.005)]
    drain: f64,
    /// Seconds before that do not count
    #[arg(long, default_value_t = 0.3)]
    warm_up: f64,
    /// The core of the generator
    #[arg(long, default_value_t = 0)]
    pub(crate) core: usize,
    /// The core of the switch: a cache line's round trip to it is printed beside the numbers
    #[arg(long, default_value_t = 1)]
    pub(crate) switch_core: usize,
}

impl LoadOptions {
    pub(crate) fn load(&self, size: usize) -> Load {
        Load {
            shape: match self.tso {
                Some(mss) => Shape::Tso { size, mss },
                None if self.tcp => Shape::Tcp(size),
                None => Shape::Udp(size),
            },
            both_ways: self.both || self.replies,
            flows: if self.new_flows { u32::MAX } else { self.flows },
            spread: match self.masks {
                Some(masks) => Spread::Masks(masks),
                None if self.replies => Spread::BothDirections,
                None => Spread::Plain,
            },
            order: match self.order {
                FlowOrder::RoundRobin => Order::RoundRobin,
                FlowOrder::Random => Order::Random,
            },
            rate: self.rate,
            checks: match self.check {
                Check::Lengths => Checks::Lengths,
                Check::Probes => Checks::Probes(self.probe_every),
                Check::Content => Checks::Content,
            },
            touch: match self.touch {
                Touched::Changes => Touch::Changes,
                Touched::Heads => Touch::Heads,
                Touched::Packets => Touch::Packets,
            },
            burst: self.burst,
            aim: Aim {
                gateway: self.gateway,
                address: [self.to, self.reply_to].map(|a| a.map(u32::from)),
            },
        }
    }
    pub(crate) fn timing(&self) -> Result<Timing> {
        let seconds = |s: f64| Duration::try_from_secs_f64(s);
        if self.seconds > 3600.0 || self.warm_up > 60.0 || self.drain > 60.0 {
            bail!("at most an hour, after at most a minute of warming up, and a minute for the last packets");
        }
        if self.seconds <= 0.0 {
            bail!("--seconds {}: nothing would be measured", self.seconds);
        }
        let quiet = seconds(self.drain)?;
        Ok(Timing {
            warm_up: seconds(self.warm_up)?,
            measure: seconds(self.seconds)?,
            drain: Timing::default().drain.max(quiet * 4),
            quiet,
        })
    }
}

/// Six bytes in hexadecimal with colons.
fn ethernet(text: &str) -> Result<[u8; 6], String> {
    let byte = |part: &str| {
        let digits = matches!(part.len(), 1 | 2) && part.bytes().all(|b| b.is_ascii_hexdigit());
        u8::from_str_radix(part, 16).ok().filter(|_| digits)
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| "an Ethernet address is six bytes, as 02:00:00:00:00:01".into())
}

/// Binds this thread to core `n`.
pub(crate) fn core(n: usize) -> Result<()> {
    heddle_sys::cpu::pin(&[n]).with_context(|| format!("core {n} for the generator"))
}

#[cfg(test)]
mod tests {
    use super::ethernet;

    #[test]
    fn ethernet_addresses() {
        assert_eq!(ethernet("02:68:64:6c:00:1"), Ok([2, b'h', b'd', b'l', 0, 1]));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "02:00:00:00:00:+1",
            "02:00:00:00:00:100",
        ] {
            assert!(ethernet(wrong).is_err(), "{wrong}");
        }
    }
}
