//! One bridge with two ports and rules: what the examples translate for.

use heddle_datapath_api::PortNo;
use heddle_flow::Match;
use heddle_ofproto::Ofproto;
use heddle_ofproto::bridge::{BridgeConfig, FailMode, PortBundleConfig, PortConfig, PortTarget};
use heddle_openflow::message::{FlowMod, FlowModCommand};
use heddle_openflow::text::parse_instructions;
use heddle_openflow::{Port, Version};
use heddle_sync::Clock;
use std::sync::Arc;

/// A rule: table, priority, match, actions.
type Rule = (u8, u16, String, String);

fn rule(table: u8, priority: u16, matches: &str, actions: &str) -> Rule {
    (table, priority, matches.into(), actions.into())
}

/// Rules as `heddle bench rules` has them; `masks` and `exact` are for the flows of
/// [`crate::memory::Traffic`].
fn rules(case: &str, count: u32) -> Vec<Rule> {
    match case {
        "tuple" => vec![rule(0, 1, "in_port=1,udp,tp_dst=5001", "output:2")],
        "normal" => vec![rule(0, 0, "", "NORMAL")],
        "each" => vec![rule(
            0,
            1,
            "in_port=1,udp",
            "move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],move:NXM_OF_IP_DST[]->NXM_NX_REG1[],\
             move:NXM_OF_UDP_SRC[]->NXM_NX_REG2[0..15],move:NXM_OF_UDP_DST[]->NXM_NX_REG2[16..31],output:2",
        )],
        "acl" => ["nw_src=10.0.0.1", "nw_dst=20.0.0.1", "tp_src=12345", "tp_dst=443"]
            .iter()
            .zip((397..=400).rev())
            .map(|(field, priority)| rule(0, priority, &format!("in_port=1,udp,{field}"), "output:2"))
            .chain([rule(0, 1, "in_port=1", "output:2")])
            .collect(),
        "pipeline" => (0..30)
            .map(|table| {
                let next = table + 1;
                let go = match next {
                    30 => "output:2".into(),
                    _ => format!("load:{next}->NXM_NX_REG{}[0..7],resubmit(,{next})", table % 8),
                };
                let what = ["", ",dl_type=0x0800", ",ip,nw_src=0.0.0.0/1", ",udp,tp_dst=5001"];
                rule(
                    table,
                    100,
                    &format!("in_port=1{}", what[usize::from(table) % 4]),
                    &go,
                )
            })
            .collect(),
        // Packets of kind `n` are compared with the rules before rule `n`, so their mask has one bit more of
        // the address.
        "masks" => (0..count)
            .map(|n| (n, 1000 - u16::try_from(n).unwrap_or(1000)))
            .map(|(n, priority)| {
                let prefix = 16 + n % 16;
                let matches = format!("in_port=1,udp,nw_dst=10.1.0.1/{prefix},tp_dst={n}");
                rule(0, priority, &matches, "output:2")
            })
            .collect(),
        "exact" => exact(0, count),
        // The same, behind a recirculation.
        "again" => [rule(0, 1, "in_port=1", "debug_recirc,resubmit(,1)")]
            .into_iter()
            .chain(exact(1, count))
            .collect(),
        _ => Vec::new(),
    }
}

/// Rules in a table for a flow of [`crate::memory::Traffic`] each.
fn exact(table: u8, count: u32) -> Vec<Rule> {
    (0..count)
        .map(|n| std::net::Ipv4Addr::from(0x0a00_0000 + n))
        .map(|src| {
            let matches = format!("in_port=1,udp,nw_src={src},nw_dst=10.1.0.1,tp_src=7,tp_dst=5001");
            rule(table, 1, &matches, "output:2")
        })
        .collect()
}

/// A switch with two ports and the rules of a case, `count` of them where that is a question.
pub(crate) fn switch(case: &str, count: u32) -> Arc<Ofproto> {
    let of = Ofproto::new(Arc::new(Clock::default()));
    let config = BridgeConfig {
        fail_mode: FailMode::Secure,
        ..BridgeConfig::default()
    };
    let bridge = of.add_bridge("br0", config);
    let name = |n: u32| format!("port{n}");
    let bundles = (1..=2).map(|n| PortBundleConfig {
        name: name(n),
        ..PortBundleConfig::default()
    });
    let ports = (1..=2).map(|n| PortConfig {
        no: Port(n),
        name: name(n),
        bundle: name(n),
        target: PortTarget::Datapath(PortNo(n)),
        mac: [2, 0, 0, 0, 0, 9],
        mtu: 1500,
        admin_up: true,
        link_up: true,
        speed_bps: 0,
        bfd: None,
        lacp: None,
        standby: None,
    });
    bridge.set_ports(bundles.collect(), ports.collect());
    of.publish();
    rules(case, count).iter().for_each(|r| change(&of, r, false));
    of
}

/// Adds a rule, or deletes it.
pub(crate) fn change(of: &Ofproto, (table, priority, matches, actions): &Rule, delete: bool) {
    let matches = Match::parse_text(matches, None).expect("a match");
    let instructions = parse_instructions(actions, None).expect("actions");
    let command = if delete {
        FlowModCommand::DeleteStrict
    } else {
        FlowModCommand::Add
    };
    let mut flow_mod = FlowMod::new(command, matches, *priority, instructions);
    flow_mod.table_id = *table;
    let bridge = of.bridge("br0").expect("a bridge");
    bridge.flow_mod(Version::V13, &flow_mod).expect("a rule");
}
