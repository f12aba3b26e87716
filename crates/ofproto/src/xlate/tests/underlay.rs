//! Tunnels whose packets leave by a device that is no port of a bridge.

use super::lab::{Lab, out, to};
use crate::tunnels::Tunnel;
use crate::underlay_port::{UnderlayPort, UnderlayPorts};
use heddle_datapath_api::{Action, DropReason, PortNo, Purpose, Translation};
use heddle_flow::FlowKey;
use heddle_openflow::Port;
use heddle_tunnel::neigh::{KernelRequest, NeighKey, SystemNeighbour};
use heddle_tunnel::routes::{
    Address, Kind, LOCAL, MAIN, PathLimits, PathReport, Prefix, System, SystemHop, SystemRoute,
};
use heddle_tunnel::{TooBig, TunnelType, config};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TUNNEL: u32 = 2;
/// Datapath ports of the tunnels and of eth0.
const VXLAN: PortNo = PortNo(50);
const ETH0: PortNo = PortNo(60);
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const NEXT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn tunnel(remote: &str) -> Arc<Tunnel> {
    let options = [("remote_ip", remote), ("key", "7")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let (config, _) = config::parse("t0", TunnelType::Vxlan, &options.into()).expect("a tunnel");
    Arc::new(Tunnel::new(config, VXLAN))
}

fn eth0() -> UnderlayPorts {
    UnderlayPorts(vec![UnderlayPort {
        no: ETH0,
        device: "eth0".into(),
        mac: OWN_MAC,
        mtu: 1500,
    }])
}

/// `br0` sends all packets of port 1 into a tunnel to 10.0.0.2, which is on the network of eth0.
fn lab() -> Lab {
    let mut lab = Lab::new(&[2]);
    lab.rule((0, 0), "in_port=1", vec![out(TUNNEL)]);
    lab.rule((0, 0), "in_port=2", vec![to(Port::LOCAL)]);
    lab.bridges[0].tunnels.insert(Port(TUNNEL), tunnel("10.0.0.2"));
    lab.underlay = eth0();
    lab.bridges[0].mtus.insert(Port(1), 1346);
    lab.publish();
    let route = |table, to, len, kind| SystemRoute {
        table,
        prefix: Prefix::new(ip(to), len).expect("a prefix"),
        kind,
        metric: 0,
        prefsrc: None,
        scope: 0,
        mtu_bytes: None,
        hops: vec![SystemHop {
            device: "eth0".into(),
            device_mtu_bytes: Some(1400),
            gateway: None,
            weight: 1,
        }],
    };
    lab.pipeline.underlay().routes.set_system(&System {
        addresses: vec![Address::new("eth0".into(), ip("10.0.0.1"), 24)],
        rules: Vec::new(),
        routes: vec![
            route(MAIN, "10.0.0.0", 24, Kind::Unicast),
            route(LOCAL, "10.0.0.1", 32, Kind::Local),
        ],
    });
    lab
}

impl Lab {
    fn meet(&self, mac: [u8; 6]) {
        let key = NeighKey {
            bridge: "eth0".into(),
            ip: ip("10.0.0.2"),
        };
        let known = SystemNeighbour { mac, in_doubt: false };
        self.pipeline
            .underlay()
            .neighbours
            .set_system([(key, known)].into());
    }
    fn pod_packet(&self) -> Translation {
        self.translate(&Self::key("in_port=1,ip"), Purpose::Miss)
    }
    fn is_right(&self, t: &Translation) -> bool {
        !t.uncacheable && self.generations.hold(&t.deps)
    }
    /// The translation for a packet that comes in by eth0.
    fn eth0_packet(&self, packet: &str) -> Translation {
        let key = FlowKey::parse_text(packet, None).expect("a packet");
        let key = FlowKey {
            in_port: ETH0.0,
            ..key
        };
        self.translate(&key, Purpose::Miss)
    }
}

#[test]
fn packets_leave_by_the_device_as_soon_as_the_kernel_knows_the_neighbour() {
    let lab = lab();
    let first = lab.pod_packet();
    assert!(
        matches!(&first.actions[..], [Action::Wait(_)]),
        "{:?}",
        first.actions
    );
    let request = KernelRequest {
        device: "eth0".into(),
        target: ip("10.0.0.2"),
    };
    assert_eq!(
        lab.pipeline.underlay().neighbours.take_kernel_requests(),
        [request]
    );
    assert!(lab.is_right(&first));
    lab.meet(NEXT_MAC);
    assert!(!lab.is_right(&first), "the neighbour is known now");
    let second = lab.pod_packet();
    let [Action::TunnelPush(push), Action::Output(ETH0)] = &second.actions[..] else {
        panic!("{:?}", second.actions);
    };
    assert_eq!(push.header[..12], [NEXT_MAC, OWN_MAC].concat());
    assert_eq!((push.out_port, push.mtu), (ETH0.0, 1400), "the route's MTU");
    assert!(lab.is_right(&second));
    lab.meet(OWN_MAC);
    assert!(!lab.is_right(&second), "the neighbour has moved");
}

/// An ICMP error of a router shortens the frames to its destination.
#[test]
fn the_mtu_of_a_path_is_used() {
    let lab = lab();
    lab.meet(NEXT_MAC);
    let before = lab.pod_packet();
    let report = PathReport {
        source: ip("10.0.0.1"),
        destination: ip("10.0.0.2"),
        mtu_bytes: 1300,
        is_configured: false,
    };
    let limits = PathLimits {
        min_v4_bytes: 552,
        v4_lifetime: Duration::from_secs(600),
        v6_lifetime: Duration::from_secs(600),
    };
    let routes = &lab.pipeline.underlay().routes;
    assert_eq!(
        routes.learn_path_mtus(&[report], &limits, Instant::now()).len(),
        1
    );
    assert!(!lab.is_right(&before), "its route has another MTU now");
    let after = lab.pod_packet();
    let [Action::CheckPktLen { len, less_equal, .. }] = &after.actions[..] else {
        panic!("{:?}", after.actions);
    };
    assert_eq!(*len, 1300 - 50 + 14);
    let [Action::TunnelPush(push), _] = &less_equal[..] else {
        panic!("{less_equal:?}");
    };
    assert_eq!(push.mtu, 1300);
}

/// Errors count only if they quote outer headers of a tunnel.
#[test]
fn errors_quote_packets_of_a_tunnel() {
    let mut lab = lab();
    let quoted = TooBig {
        source: ip("10.0.0.1"),
        destination: ip("10.0.0.2"),
        protocol: 17,
        port: 4789,
        mtu_bytes: 1300,
    };
    let sends = |lab: &Lab, quoted: &TooBig| lab.pipeline.snapshot().tunnels.sends(quoted);
    assert_eq!(sends(&lab, &quoted), Some(true));
    for other in [
        TooBig { port: 4790, ..quoted },
        TooBig {
            protocol: 6,
            ..quoted
        },
        TooBig {
            destination: ip("10.0.0.3"),
            ..quoted
        },
    ] {
        assert_eq!(sends(&lab, &other), None, "{other:?}");
    }
    lab.bridges[0].tunnels.insert(Port(TUNNEL), tunnel("flow"));
    lab.publish();
    let other = TooBig {
        destination: ip("10.0.0.3"),
        ..quoted
    };
    assert_eq!(sends(&lab, &other), Some(false), "flows choose the destination");
}

/// Longer frames than the route carries go back as errors, unless the input port has none.
#[test]
fn frames_that_are_too_long_for_the_route_come_back() {
    let mut lab = lab();
    lab.meet(NEXT_MAC);
    let mtu_of_the_pod = |lab: &mut Lab, mtu: u32| {
        lab.bridges[0].mtus.insert(Port(1), mtu);
        lab.publish();
    };
    mtu_of_the_pod(&mut lab, 1346);
    let fits = lab.pod_packet();
    assert!(matches!(
        &fits.actions[..],
        [Action::TunnelPush(_), Action::Output(ETH0)]
    ));
    mtu_of_the_pod(&mut lab, 1347);
    assert!(!lab.is_right(&fits), "the pod's MTU has changed");
    let compared = lab.pod_packet();
    let [
        Action::CheckPktLen {
            len,
            greater,
            less_equal,
        },
    ] = &compared.actions[..]
    else {
        panic!("{:?}", compared.actions);
    };
    assert_eq!(*len, 1400 - 50 + 14);
    let [
        Action::TooBig { frame_len: 1364 },
        Action::CtClear,
        Action::Recirc(id),
    ] = greater[..]
    else {
        panic!("{greater:?}");
    };
    assert!(matches!(
        &less_equal[..],
        [Action::TunnelPush(_), Action::Output(ETH0)]
    ));
    let frozen = lab.pipeline.frozen(id).expect("a pipeline");
    let metadata = &frozen.frozen.metadata;
    let address = |text: &str| text.parse::<std::net::Ipv4Addr>().expect("an address").into();
    assert_eq!(metadata.in_port, TUNNEL);
    assert_eq!(
        (metadata.tun_src, metadata.tun_dst),
        (address("10.0.0.2"), address("10.0.0.1"))
    );
    assert_eq!(metadata.tun_id, 7);
}

#[test]
fn packets_to_this_host_and_by_unknown_devices_are_dropped() {
    let mut lab = lab();
    lab.meet(NEXT_MAC);
    let sent = lab.pod_packet();
    lab.underlay = UnderlayPorts::default();
    lab.publish();
    assert!(!lab.is_right(&sent), "the device is no port any more");
    let lost = lab.pod_packet();
    assert_eq!(lost.actions, [Action::Drop(DropReason::TunnelRoute)]);
    lab.underlay = eth0();
    lab.bridges[0].tunnels.insert(Port(TUNNEL), tunnel("10.0.0.1"));
    lab.publish();
    assert!(!lab.is_right(&lost), "there is another port");
    assert_eq!(lab.pod_packet().actions, [Action::Drop(DropReason::TunnelRoute)]);
}

#[test]
fn only_packets_of_tunnels_to_this_host_come_in() {
    let mut lab = lab();
    let arrived = lab.eth0_packet("udp,nw_src=10.0.0.2,nw_dst=10.0.0.1,udp_dst=4789");
    let [Action::TunnelPop(pop)] = &arrived.actions[..] else {
        panic!("{:?}", arrived.actions);
    };
    assert_eq!(pop.port, VXLAN.0);
    assert!(lab.is_right(&arrived));
    // A tag without a VLAN id has only a priority.
    let tagged = lab.eth0_packet("udp,vlan_tci=0xf000,nw_src=10.0.0.2,nw_dst=10.0.0.1,udp_dst=4789");
    assert!(
        matches!(tagged.actions[..], [Action::TunnelPop(_)]),
        "{:?}",
        tagged.actions
    );
    for other in [
        "udp,nw_src=10.0.0.2,nw_dst=10.0.0.9,udp_dst=4789",
        "udp,nw_src=10.0.0.2,nw_dst=10.0.0.1,udp_dst=53",
        "tcp,nw_src=10.0.0.2,nw_dst=10.0.0.1,tcp_dst=4789",
        "udp,dl_vlan=5,nw_src=10.0.0.2,nw_dst=10.0.0.1,udp_dst=4789",
        "arp",
    ] {
        let dropped = lab.eth0_packet(other);
        assert_eq!(dropped.actions, [Action::Drop(DropReason::NoTunnel)], "{other}");
    }
    // The address moves away: the packets are not for this host.
    let routes = &lab.pipeline.underlay().routes;
    routes.set_system(&System::default());
    assert!(!lab.is_right(&arrived));
    let dropped = lab.eth0_packet("udp,nw_src=10.0.0.2,nw_dst=10.0.0.1,udp_dst=4789");
    assert_eq!(dropped.actions, [Action::Drop(DropReason::NoTunnel)]);
    lab.underlay = UnderlayPorts::default();
    lab.publish();
    assert!(!lab.is_right(&dropped));
    assert_eq!(lab.eth0_packet("arp").actions, [Action::Drop(DropReason::NoPort)]);
}
