use super::*;
use crate::netlink::Message;
use netlink_packet_route::neighbour::NeighbourMessage;
use proptest::prelude::*;

fn bytes(inner: M) -> Vec<u8> {
    let mut message = Message::from(inner);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

#[test]
fn notices_say_what_to_read() {
    let mut neighbour = NeighbourMessage::default();
    neighbour.header.family = AddressFamily::Bridge;
    assert!(
        changes(&bytes(M::NewNeighbour(neighbour.clone()))).is_nothing(),
        "of a bridge"
    );
    neighbour.header.family = AddressFamily::Inet6;
    let of_neighbour = Changed {
        neighbours: true,
        routes: false,
    };
    assert_eq!(changes(&bytes(M::DelNeighbour(neighbour.clone()))), of_neighbour);
    let both = [
        bytes(M::NewNeighbour(neighbour)),
        bytes(M::NewLink(LinkMessage::default())),
    ]
    .concat();
    assert_eq!(changes(&both), Changed::ALL);
    assert_eq!(changes(&both[..both.len() - 1]), Changed::ALL, "cut");
    assert!(changes(&[]).is_nothing());
}

proptest! {
    #[test]
    fn nonsense_ends(data in prop::collection::vec(any::<u8>(), 0..100)) {
        changes(&data);
    }
}

/// Every host has a loopback device, its addresses, their routes and the rule that looks them up.
#[test]
fn this_host_is_as_all_are() {
    let mut events = HostEvents::new().unwrap();
    let net = HostNet::new().unwrap();
    let links = net.links().unwrap();
    let Some((_, lo)) = links.iter().find(|(_, l)| &*l.name == "lo" && l.up) else {
        return println!("SKIP this_host_is_as_all_are: lo is down");
    };
    assert!(lo.mtu_bytes.is_some());
    let all = net.routes(&links).unwrap();
    let own: IpAddr = [127, 0, 0, 1].into();
    let address = all.addresses.iter().find(|a| a.addr == own).unwrap();
    assert_eq!(
        (&*address.device, address.prefix_len, address.scope),
        ("lo", 8, 254)
    );
    let local = all
        .routes
        .iter()
        .find(|r| r.table == 255 && (r.dst, r.dst_len) == (own, 32))
        .unwrap();
    assert_eq!(local.kind, HostRouteKind::Local);
    assert_eq!(&*local.hops[0].device, "lo");
    let first = all.rules.iter().find(|r| !r.v6).unwrap();
    assert_eq!(
        (first.priority, first.action),
        (0, HostRuleAction::Table(255, None))
    );
    assert!(net.neighbours(&links, |_| false).unwrap().is_empty());
    assert!(events.read(8).is_ok());
}
