//! Cached packets keep their source's entry from expiring.

use super::learn::Learn;
use super::{MacKey, MacTable};
use heddle_datapath_api::Credit;
use heddle_openflow::Port;
use std::sync::Arc;

/// Learns again, from packets that a cached translation forwarded, what the translation learned.
pub struct MacCredit {
    /// The table to learn in.
    pub table: Arc<MacTable>,
    /// Source address and VLAN.
    pub key: MacKey,
    /// Input port of the packets.
    pub port: Port,
    /// That port is part of a bond.
    pub bond: bool,
    /// Generation of the source's slot, when it was learned.
    pub generation: u64,
}

impl Credit for MacCredit {
    fn credit(&self, packets: u64, _bytes: u64, used_ms: u64, _tcp_flags: u16) {
        if packets > 0 {
            // Not as gratuitous: the lock begins when the packet comes, not when it is credited.
            let l = Learn {
                key: self.key,
                port: self.port,
                bond: self.bond,
                gratuitous_arp: false,
                now_ms: used_ms,
            };
            self.table.learn_again(l, self.generation);
        }
    }
}
