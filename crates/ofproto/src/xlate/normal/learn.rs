//! MAC learning: the port of a packet's source address.

use super::super::ctx::{Ctx, of_port};
use super::InBundle;
use crate::mac::{Learn, Learned, MacCredit, MacKey};
use heddle_openflow::Port;
use heddle_wire::eth::ethertype as eth;
use std::sync::Arc;

/// ARP opcodes (RFC 826).
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;

impl Ctx<'_> {
    /// Whether the packet announces that its sender has moved: a broadcast ARP reply, or a request for the
    /// sender's own address (RFC 5227, 3).
    pub(super) fn is_gratuitous_arp(&mut self) -> bool {
        if self.flow.dl_type != eth::ARP || self.flow.dl_dst != [0xff; 6] {
            return false;
        }
        self.out.mask.0.nw_proto = u8::MAX;
        match self.flow.nw_proto {
            ARP_REPLY => true,
            ARP_REQUEST => {
                self.out.mask.0.nw_src = u32::MAX;
                self.out.mask.0.nw_dst = u32::MAX;
                self.flow.nw_src == self.flow.nw_dst
            }
            _ => false,
        }
    }

    /// Learns the source, and has cached packets of it refresh the entry. Returns the address and its port if
    /// another thread was at the table: the packet is forwarded as if they were learned.
    pub(super) fn learn_source(
        &mut self,
        from: &InBundle<'_>,
        vlan: u16,
        gratuitous_arp: bool,
    ) -> Option<(MacKey, Port)> {
        let bundle = from.bundle()?;
        let key = MacKey {
            mac: self.flow.dl_src,
            vlan,
        };
        if key.is_multicast() || self.at.is_flood_vlan(vlan) || self.flow.packet_type != 0 {
            return None;
        }
        let mut unlearned = None;
        // Stations are behind the bond, whichever member their packets take.
        let bond = bundle.ports.len() > 1;
        let port = match bundle.ports.first() {
            Some(first) if bond => *first,
            _ => of_port(self.flow.in_port),
        };
        let bridge = self.at.bridge;
        let table = &bridge.mac;
        // Read first: an entry that is removed from here on moves the slot.
        let source = self.input.pipeline.generations.read(table.source_slot(key));
        self.out.deps.push(source);
        if self.input.learn {
            let l = Learn {
                key,
                port,
                bond,
                gratuitous_arp,
                now_ms: self.input.now_ms,
            };
            match table.learn(l) {
                Learned::New | Learned::Moved => {
                    let (m, name) = (key.mac, &bundle.name);
                    self.report_debug(|| {
                        format!(
                            "learned that {:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x} is on port {name} in VLAN {vlan}",
                            m[0], m[1], m[2], m[3], m[4], m[5]
                        )
                    });
                }
                Learned::Busy => {
                    self.out.uncacheable = true;
                    unlearned = Some((key, port));
                }
                Learned::Same | Learned::Refused => {}
            }
        } else if table.lookup(key) != Some(port) {
            // The next packet has to learn or move the address before its destination is looked up.
            self.out.uncacheable = true;
        }
        let credit = Arc::new(MacCredit {
            table: table.clone(),
            key,
            port,
            bond,
            generation: source.generation,
        });
        self.out.credit_source(table, key, credit);
        unlearned
    }
}
