//! Filters that lead into tunnels.

use super::{Attributes, canonical, flow, golden, nlas, options_into, out};
use crate::tc::TcPolicy;
use crate::tc::actions::IntoTunnel;
use crate::tc::encap::Encap;
use crate::tc::flows::FilterTable;
use crate::{Op, PortLink, Rule, Why};
use heddle_datapath_api::PortNo;
use heddle_sys::tunnel_links::TunnelLinkKind;
use heddle_tunnel::outer::SOURCE_PORTS;
use heddle_tunnel::{Encap as Kind, Outer, TunnelPush};
use std::net::IpAddr;
use std::sync::Arc;

/// Linux with all attributes of `tunnel_key`.
const KERNEL: (u32, u32) = (6, 12);

/// Headers of a tunnel between these addresses.
fn outer(src: &str, dst: &str, encap: Kind, f: impl FnOnce(&mut Outer)) -> TunnelPush {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let mut outer = Outer {
        eth_src: [2, 0, 0, 0, 7, 1],
        eth_dst: [2, 0, 0, 0, 7, 2],
        src: ip(src),
        dst: ip(dst),
        tos: 4,
        ttl: 63,
        df: false,
        label: 0,
        csum: false,
        source_ports: SOURCE_PORTS,
        encap,
        tunnel_port: 5,
        out_port: 6,
        mtu: 0,
        numbers: Default::default(),
    };
    f(&mut outer);
    outer.build().unwrap()
}

fn vxlan(gbp: bool) -> Kind {
    Kind::Vxlan {
        port: 4789,
        vni: 77,
        gbp: gbp.then_some(Default::default()),
        gpe: None,
    }
}

fn geneve(options: Vec<u8>, oam: bool) -> Kind {
    Kind::Geneve {
        port: 6081,
        vni: 66051,
        oam,
        critical: true,
        options,
    }
}

/// The attributes of actions in one order; `tc` sends those of `tunnel_key` in another.
fn sorted(actions: &[Attributes]) -> Vec<Vec<(u16, Vec<u8>)>> {
    const ENC_OPTS: u16 = 11;
    let each = |action: &Attributes| {
        let mut all = nlas(&action[&2]);
        all.sort();
        for (kind, value) in &mut all {
            if *kind == ENC_OPTS {
                // Whether an attribute is marked as nested makes no difference.
                let options = nlas(value).into_iter();
                *value = options
                    .flat_map(|(kind, value)| [vec![u8::try_from(kind).unwrap()], value].concat())
                    .collect();
            }
        }
        all
    };
    actions.iter().map(each).collect()
}

fn compare(push: TunnelPush, name: &str) {
    let encap = Encap::of(&push, KERNEL).unwrap();
    let (key, mask) = flow();
    let rule = Rule {
        outer: Some(Arc::new(push)),
        ops: [Op::Encap, Op::Output(PortNo(6))].into(),
        ..Rule::new(&key, &mask, &[out(6)]).unwrap()
    };
    let into = IntoTunnel {
        encap: &encap,
        ifindex: 2,
    };
    let (_, bytes) = options_into(&rule, 0, Some(into));
    let ((keys, actions), (tc_keys, tc_actions)) = (canonical(&bytes), canonical(&golden(name)));
    assert_eq!(keys, tc_keys);
    assert_eq!(sorted(&actions), sorted(&tc_actions));
}

#[test]
fn tunnel_keys_are_those_that_tc_sends() {
    compare(outer("10.5.0.1", "10.5.0.2", vxlan(false), |_| {}), "vxlan");
    let options = [
        [1, 2, 0x80, 1, 0, 7, 0, 9].as_slice(),
        &[1, 2, 0x81, 2, 0, 0, 0, 1, 0, 0, 0, 2],
    ]
    .concat();
    let push = outer("fd00:5::1", "fd00:5::2", geneve(options, false), |outer| {
        outer.csum = true
    });
    compare(push, "geneve");
}

/// The longest packets of the input device have to fit with their outer headers, which are 50 bytes here.
#[test]
fn outer_headers_count_in_lengths() {
    let link = |no, mtu| PortLink {
        no: PortNo(no),
        name: format!("p{no}"),
        ifindex: no + 10,
        mtu,
        internal: false,
    };
    let fits = |output_mtu, path_mtu, max_frame| {
        let mut table = FilterTable::new(7, TcPolicy::SkipHw, true).unwrap();
        table.ports.set(&[link(1, 1400), link(6, output_mtu)]);
        let push = outer("10.5.0.1", "10.5.0.2", vxlan(false), |o| o.mtu = path_mtu);
        let (key, mask) = flow();
        let rule = Rule {
            outer: Some(Arc::new(push)),
            max_frame,
            ..Rule::new(&key, &mask, &[out(6)]).unwrap()
        };
        let input = *table.ports.get(PortNo(1)).unwrap();
        table.fits(&rule, input)
    };
    assert!(fits(1450, 0, None) && fits(0, 1450, Some(1414)));
    assert!(!fits(1449, 0, None), "the output's MTU");
    assert!(!fits(1500, 1449, None), "the path's MTU");
    assert!(!fits(1500, 0, Some(1413)), "the pipeline's limit");
}

#[test]
fn headers_that_tc_cannot_write_are_refused() {
    let of = |encap, f: &dyn Fn(&mut Outer)| {
        let push = outer("10.5.0.1", "10.5.0.2", encap, |outer| f(outer));
        Encap::of(&push, KERNEL).map(|encap| (encap.kind, encap.key.dont_fragment))
    };
    assert_eq!(of(vxlan(false), &|_| {}), Ok((TunnelLinkKind::Vxlan, false)));
    assert_eq!(
        of(vxlan(false), &|o| o.df = true),
        Ok((TunnelLinkKind::Vxlan, true))
    );
    assert_eq!(
        of(geneve(vec![], false), &|_| {}),
        Ok((TunnelLinkKind::Geneve, false))
    );
    assert!(matches!(of(vxlan(true), &|_| {}), Err(Why::Tunnel(_))));
    assert!(matches!(of(vxlan(false), &|o| o.ttl = 0), Err(Why::Tunnel(_))));
    assert!(matches!(of(geneve(vec![], true), &|_| {}), Err(Why::Tunnel(_))));
    // An option without data.
    assert!(matches!(
        of(geneve(vec![1, 2, 3, 0], false), &|_| {}),
        Err(Why::Tunnel(_))
    ));
    let gre = Kind::Gre {
        proto: 0x6558,
        key: None,
        seq: false,
    };
    assert!(matches!(of(gre, &|_| {}), Err(Why::Tunnel(_))));
    let labelled = outer("fd00::1", "fd00::2", vxlan(false), |o| o.label = 5);
    assert!(matches!(Encap::of(&labelled, KERNEL), Err(Why::Tunnel(_))));
    // The don't-fragment bit is younger than the rest.
    let push = outer("10.5.0.1", "10.5.0.2", vxlan(false), |o| o.df = true);
    assert!(matches!(Encap::of(&push, (6, 1)), Err(Why::Tunnel(_))));
    // A header that ends early.
    for n in 0..push.header.len() {
        let mut short = push.clone();
        short.header.truncate(n);
        assert!(Encap::of(&short, KERNEL).is_err(), "{n} bytes");
    }
}
