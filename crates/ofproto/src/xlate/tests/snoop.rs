//! Neighbours that are learned from packets on their way to this host.

use super::lab::{Lab, to};
use heddle_datapath_api::Purpose;
use heddle_openflow::Port;
use heddle_tunnel::routes::Address;
use std::net::IpAddr;

const REPLY: &str =
    "in_port=1,dl_dst=02:00:00:00:00:01,arp,arp_op=2,arp_spa=10.0.0.2,arp_tpa=10.0.0.1,arp_sha=";
const ADVERT: &str = "in_port=1,icmp6,icmpv6_type=136,icmpv6_code=0,ipv6_src=fd00::2,ipv6_dst=fd00::1,\
                      nd_target=fd00::2,nd_tll=";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// `br0`, which has addresses and outputs all packets to its local port; packets come in by port 1.
fn lab() -> Lab {
    let lab = Lab::new(&[2]);
    lab.rule((0, 0), "", vec![to(Port::LOCAL)]);
    let routes = &lab.pipeline.underlay().routes;
    routes.add_address(Address::new("br0".into(), ip("10.0.0.1"), 24));
    routes.add_address(Address::new("br0".into(), ip("fd00::1"), 64));
    lab
}

impl Lab {
    fn known(&self, text: &str) -> Option<[u8; 6]> {
        self.pipeline.underlay().neighbours.lookup("br0", ip(text), 1000)
    }
    /// Sends a packet. Returns whether its translation still holds afterwards.
    fn send(&self, packet: &str) -> bool {
        let t = self.translate(&Self::key(packet), Purpose::Miss);
        !t.uncacheable && self.generations.hold(&t.deps)
    }
}

#[test]
fn replies_teach() {
    let lab = lab();
    assert!(lab.send(&format!("{REPLY}02:00:00:00:00:02")));
    assert_eq!(lab.known("10.0.0.2"), Some([2, 0, 0, 0, 0, 2]));
    assert!(lab.send(&format!("{ADVERT}02:00:00:00:00:03")));
    assert_eq!(lab.known("fd00::2"), Some([2, 0, 0, 0, 0, 3]));
    // A gratuitous ARP request.
    assert!(lab.send("in_port=1,arp,arp_op=1,arp_spa=10.0.0.7,arp_tpa=10.0.0.7,arp_sha=02:00:00:00:00:07"));
    assert_eq!(lab.known("10.0.0.7"), Some([2, 0, 0, 0, 0, 7]));
}

#[test]
fn others_do_not() {
    let lab = lab();
    for packet in [
        "in_port=1,arp,arp_op=1,arp_spa=10.0.0.2,arp_tpa=10.0.0.1,arp_sha=02:00:00:00:00:02",
        "in_port=1,arp,arp_op=2,arp_spa=10.0.0.2,arp_tpa=10.0.0.9,arp_sha=02:00:00:00:00:02",
        "in_port=1,arp,arp_op=2,arp_spa=10.0.0.2,arp_tpa=10.0.0.1",
    ] {
        assert!(lab.send(packet));
    }
    let packet = format!("{ADVERT}02:00:00:00:00:03");
    assert!(lab.send(&packet.replace("ipv6_dst=fd00::1", "ipv6_dst=fd00::9")));
    assert_eq!((lab.known("10.0.0.2"), lab.known("fd00::2")), (None, None));
    // Without an address, no tunnel ends here.
    lab.pipeline.underlay().routes.remove_addresses("br0");
    assert!(lab.send(&format!("{REPLY}02:00:00:00:00:02")));
    assert_eq!(lab.known("10.0.0.2"), None);
}

/// Each VLAN has neighbours of its own; tunnels use only neighbours outside of VLANs.
#[test]
fn a_vlan_has_neighbours_of_its_own() {
    let lab = lab();
    assert!(lab.send(&format!("{REPLY}02:00:00:00:00:02")));
    assert!(lab.send(&format!("{ADVERT}02:00:00:00:00:03")));
    let gratuitous = "in_port=1,arp,arp_op=1,arp_spa=10.0.0.2,arp_tpa=10.0.0.2,arp_sha=02:00:00:00:00:0e";
    let said = [
        format!("{REPLY}02:00:00:00:00:0e"),
        format!("{ADVERT}02:00:00:00:00:0e"),
        gratuitous.to_owned(),
    ];
    for packet in &said {
        assert!(lab.send(&packet.replace("in_port=1,", "in_port=1,dl_vlan=3000,")));
        assert_eq!(lab.known("10.0.0.2"), Some([2, 0, 0, 0, 0, 2]), "{packet}");
        assert_eq!(lab.known("fd00::2"), Some([2, 0, 0, 0, 0, 3]), "{packet}");
    }
    // A tag with VLAN 0 carries only a priority.
    assert!(lab.send(&gratuitous.replace("in_port=1,", "in_port=1,dl_vlan=0,dl_vlan_pcp=5,")));
    assert_eq!(lab.known("10.0.0.2"), Some([2, 0, 0, 0, 0, 0xe]));
}

#[test]
fn only_packets_teach() {
    let lab = lab();
    let reply = Lab::key(&format!("{REPLY}02:00:00:00:00:02"));
    lab.translate(&reply, Purpose::Revalidate);
    assert_eq!(lab.known("10.0.0.2"), None);
}

/// Two cached translations with different addresses of one neighbour are never both in force.
#[test]
fn a_neighbour_that_moves_makes_earlier_translations_stale() {
    let lab = lab();
    let (a, b) = (
        format!("{REPLY}02:00:00:00:00:0a"),
        format!("{REPLY}02:00:00:00:00:0b"),
    );
    let first = lab.translate(&Lab::key(&a), Purpose::Miss);
    assert!(lab.send(&a), "the same again is nothing new");
    assert!(lab.generations.hold(&first.deps));
    assert!(lab.send(&b));
    assert!(!lab.generations.hold(&first.deps));
    assert_eq!(lab.known("10.0.0.2"), Some([2, 0, 0, 0, 0, 0xb]));
    assert!(lab.send(&a));
    assert_eq!(lab.known("10.0.0.2"), Some([2, 0, 0, 0, 0, 0xa]));
}

/// The translation of a packet that teaches nothing does not match packets that teach.
#[test]
fn masks_tell_teaching_packets_apart() {
    let lab = lab();
    let teaches = [
        format!("{REPLY}02:00:00:00:00:02"),
        format!("{ADVERT}02:00:00:00:00:02"),
    ];
    for packet in teaches {
        let key = Lab::key(&packet);
        for other in [
            packet.replace(":02", ":03"),
            packet.replace("arp_op=2", "arp_op=1"),
            packet.replace("in_port=1,", "in_port=1,dl_vlan=7,"),
            packet.replace("arp_tpa=10.0.0.1", "arp_tpa=10.0.0.9"),
            packet.replace("ipv6_dst=fd00::1", "ipv6_dst=fd00::9"),
            packet
                .replace("icmpv6_type=136", "icmpv6_type=135")
                .replace("nd_tll", "nd_sll"),
            packet
                .replace("icmp6,icmpv6_type=136,icmpv6_code=0", "udp6")
                .split(",nd_")
                .next()
                .unwrap_or("")
                .to_owned(),
        ] {
            let other = Lab::key(&other);
            if other == key {
                continue;
            }
            let mask = lab.translate(&other, Purpose::Miss).mask;
            let same = key
                .words()
                .iter()
                .zip(other.words())
                .zip(mask.0.words())
                .all(|((a, b), m)| (a ^ b) & m == 0);
            assert!(!same, "{other} takes {key} along");
        }
    }
}
