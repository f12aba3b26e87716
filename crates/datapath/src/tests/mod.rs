//! The datapath as a whole, on ports made of memory.

mod balance;
mod changing;
mod checksums;
mod connections;
mod fake;
mod flows;
mod fragments;
mod hierarchy;
mod limits;
mod marks;
mod moves;
mod observer;
mod ports;
mod raced;
mod recirc;
mod tunnels;
mod waiting;

use crate::exec::Meta;
use crate::worker::parse::{ReadAs, parse};
use heddle_flow::FlowKey;
use heddle_packet::Packet;

pub(crate) use fake::{FakePort, Tally, Toy, ToyRule, udp};

/// Returns the results of [`parse`].
pub(crate) fn parsed(p: &mut Packet, packet_type: u32, vlan_limit: u8) -> (FlowKey, Meta) {
    let (mut key, mut meta) = Default::default();
    let how = ReadAs {
        packet_type,
        vlan_limit,
    };
    parse(p, how, &mut key, &mut meta);
    (key, meta)
}
