//! Gratuitous packets: after a failover, switches learn from them that stations are behind another link.

use super::{Bridge, Ofproto};
use crate::bond_port::{BondView, Mode, slb_bucket};
use crate::model::{BridgeView, PortBundle};
use crate::xlate::tags_on_output;
use heddle_flow::{Match, Vlan};
use heddle_openflow::message::PacketOut;
use heddle_openflow::{Action, Port as OfPort, Version};

/// EtherType of Reverse ARP (RFC 903), and the body of its requests in front of the addresses.
const RARP: [u8; 2] = [0x80, 0x35];
const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 3];

/// A reverse ARP request from `mac`, to which no station replies.
fn frame(mac: [u8; 6], tags: &[Vlan]) -> Vec<u8> {
    let mut frame = [[0xff; 6], mac].concat();
    for tag in tags.iter().filter(|t| t.present()) {
        frame.extend(tag.tpid.to_be_bytes());
        frame.extend((tag.tci & !Vlan::CFI).to_be_bytes());
    }
    frame.extend(RARP);
    frame.extend(REQUEST);
    for _ in 0..2 {
        frame.extend(mac);
        frame.extend([0; 4]);
    }
    frame
}

/// The member that sends packets from this address with this outer VLAN.
fn member(view: &BondView, mac: [u8; 6], vlan: u16) -> Option<OfPort> {
    match view.sends? {
        Mode::ActiveBackup => view.active,
        Mode::BalanceSlb => {
            let bucket = slb_bucket(mac, vlan, view.basis);
            view.buckets.get(usize::from(bucket)).copied().flatten()
        }
        // The partner knows which members carry packets.
        Mode::BalanceTcp => None,
    }
}

/// The frames of a bundle for the addresses that its bridge has learned elsewhere.
fn frames(view: &BridgeView, bundle: &PortBundle, now_ms: u64) -> Vec<(OfPort, Vec<u8>)> {
    let Some(bond) = &bundle.bond else {
        return Vec::new();
    };
    let bond = bond.shared.view.get();
    let of = |entry: crate::mac::MacEntry| {
        let key = entry.key;
        let tags = tags_on_output(bundle, key.vlan)?;
        let outer = tags.first().map_or(0, |t| t.vid());
        Some((member(&bond, key.mac, outer)?, frame(key.mac, &tags)))
    };
    let learned = view.mac.entries(now_ms).into_iter();
    learned
        .filter(|e| !bundle.ports.contains(&e.port))
        .filter_map(of)
        .collect()
}

impl Ofproto {
    /// Sends the gratuitous packets that bonds have to send. May wait for workers.
    pub fn send_learning_packets(&self) {
        for (id, name) in self.bonds().take_learning() {
            let snapshot = self.pipeline().snapshot();
            let (Some(view), Some(bridge)) = (snapshot.bridges.get(&id), self.bridge_by_id(id)) else {
                continue;
            };
            let bundle = view.bundles.values().find(|b| b.name == name);
            let frames = bundle.map_or(Vec::new(), |b| frames(view, b, self.now_ms()));
            log::debug!(target: "bond", "bond {name}: sending {} gratuitous learning packets", frames.len());
            for (port, frame) in frames {
                send(&bridge, port, frame);
            }
        }
    }
}

fn send(bridge: &Bridge, port: OfPort, data: Vec<u8>) {
    let out = PacketOut {
        metadata: Match::any(),
        buffer_id: None,
        actions: vec![Action::Output { port, max_len: 0 }],
        data,
    };
    if let Err(error) = bridge.packet_out(Version::V13, &out) {
        log::debug!(target: "bond", "{}: no gratuitous packet on port {port}: {error:?}", bridge.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of Open vSwitch's packet for the same address.
    #[test]
    fn frames_are_reverse_arp_requests() {
        let mac = [0x50, 0x54, 0, 0, 0, 7];
        let plain = frame(mac, &[]);
        assert_eq!(plain.len(), 42);
        assert_eq!(
            plain[12..],
            [
                0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3, 0x50, 0x54, 0, 0, 0, 7, 0, 0, 0, 0, 0x50, 0x54, 0, 0, 0,
                7, 0, 0, 0, 0
            ]
        );
        let tagged = frame(
            mac,
            &[Vlan {
                tpid: 0x8100,
                tci: Vlan::CFI | 5,
            }],
        );
        assert_eq!(tagged[12..18], [0x81, 0, 0, 5, 0x80, 0x35]);
    }
}
