//! Every field that rules may write is written into packets, or is the pipeline's own.

use super::lab::{Lab, out};
use heddle_flow::field::Prereq;
use heddle_flow::{FieldId, FieldValue};
use heddle_openflow::Action;
use heddle_openflow::text::parse_actions;

/// A packet that has the fields with this prerequisite, in the text of `ovs-ofctl`.
fn packet(prereq: Prereq) -> &'static str {
    match prereq {
        Prereq::None | Prereq::Ipv4 | Prereq::IpAny | Prereq::Tcp => {
            "in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=64,tcp_src=1,tcp_dst=80"
        }
        Prereq::Ethernet | Prereq::Vlan => "in_port=1,dl_vlan=5,dl_vlan_pcp=2,tcp,nw_src=10.0.0.1,nw_ttl=64",
        Prereq::Mpls => "in_port=1,mpls,mpls_label=7,mpls_ttl=64",
        Prereq::Udp => "in_port=1,udp,nw_src=10.0.0.1,nw_ttl=64,udp_src=1,udp_dst=53",
        Prereq::Sctp => "in_port=1,sctp,nw_src=10.0.0.1,nw_ttl=64,sctp_src=1,sctp_dst=2",
        Prereq::Icmpv4 => "in_port=1,icmp,nw_src=10.0.0.1,nw_ttl=64,icmp_type=8",
        Prereq::Icmpv6 => "in_port=1,icmp6,ipv6_src=fe80::1,nw_ttl=64,icmpv6_type=128",
        Prereq::Ipv6 => "in_port=1,tcp6,ipv6_src=fe80::1,nw_ttl=64,tcp_src=1",
        Prereq::Nd | Prereq::NdSolicit => {
            "in_port=1,icmp6,ipv6_src=fe80::1,nw_ttl=255,icmpv6_type=135,icmpv6_code=0,nd_target=fe80::2"
        }
        Prereq::NdAdvert => {
            "in_port=1,icmp6,ipv6_src=fe80::1,nw_ttl=255,icmpv6_type=136,icmpv6_code=0,nd_target=fe80::2"
        }
        Prereq::Arp => "in_port=1,arp,arp_op=1,arp_spa=10.0.0.1,arp_tpa=10.0.0.2",
        Prereq::Nsh => "in_port=1,dl_type=0x894f,nsh_mdtype=1,nsh_np=3,nsh_ttl=63,nsh_spi=1,nsh_si=2",
        other => panic!("{other:?}: no field that rules write has this prerequisite"),
    }
}

/// Fields that later tables, connections or tunnels read, and no header of the packet holds.
fn is_the_pipelines_own(field: FieldId) -> bool {
    let prefixes = ["tun_", "reg", "xreg", "xxreg", "metadata", "in_port", "ct_"];
    prefixes.iter().any(|p| field.name().starts_with(p))
}

#[test]
fn what_rules_may_write_is_written() {
    let mut n = 0;
    for field in FieldId::ALL.iter().filter(|f| f.info().writable) {
        if is_the_pipelines_own(*field) {
            continue;
        }
        let lab = Lab::new(&[2]);
        let text = packet(field.info().prereq);
        let key = Lab::key(text);
        let valid = field.full_mask().as_u128();
        // To zero, too: an ARP opcode is 1 here.
        let lowest = valid & valid.wrapping_neg();
        let value = FieldValue::from_u128(field.get(&key).as_u128() ^ lowest);
        let set = Action::SetField {
            field: *field,
            value,
            mask: field.full_mask(),
        };
        lab.rule((0, 0), "", vec![set, out(2)]);
        let said = lab.actions(text);
        assert!(said.ends_with(",2"), "{} of {text}: {said}", field.name());
        n += 1;
    }
    assert!(n > 40, "{n} fields");
}

/// A reply to a neighbour solicitation: the type of the option is written before its address.
#[test]
fn a_neighbour_advertisement() {
    let lab = Lab::new(&[2]);
    let acts = |text| parse_actions(text, None).unwrap();
    lab.rule(
        (0, 0),
        "icmp6,icmp_type=135",
        acts(
            "set_field:136->icmpv6_type,set_field:0xe0000000->nd_reserved,set_field:2->nd_options_type,resubmit(,1)",
        ),
    );
    lab.rule(
        (0, 1),
        "icmp6,icmp_type=136",
        acts("set_field:02:00:00:00:00:fe->nd_tll,in_port"),
    );
    let asker = "in_port=1,icmp6,ipv6_src=fe80::1,nw_ttl=255,icmpv6_type=135,icmpv6_code=0,nd_target=fe80::2,\
                 nd_sll=02:00:00:00:00:01,nd_options_type=1";
    assert_eq!(
        lab.actions(asker),
        "set(nd_ext(nd_reserved=0xe0000000,nd_options_type=2)),set(nd(tll=02:00:00:00:00:fe)),\
         set(icmpv6(type=136,code=0)),1"
    );
    // A reply to another sender writes the same, whatever its packet had there.
    let other = asker.replace("nd_options_type=1", "nd_options_type=0,nd_reserved=7");
    assert!(
        lab.actions(&other)
            .starts_with("set(nd_ext(nd_reserved=0xe0000000,")
    );
}
