//! The programs at tunnel devices, with a VXLAN device of this machine's kernel. Workers accept the packets
//! that come back. The test needs root, VXLAN, eBPF and nft; without them it prints the reason.

use crate::tc::cookie::Cookie;
use crate::tc::tunnel_programs::{Source, TunnelPrograms, origin_of};
use heddle_flow::FlowKey;
use heddle_flow::key::tun_flag;
use heddle_packet::Packet;
use heddle_sys::tunnel_links::{TunnelLinkKind, TunnelLinks};
use heddle_sys::{Iov, LinkCtl, TapLinks, TapOpen, TapQueue};
use heddle_tunnel::{OptionTable, TunnelKind, TunnelPop};
use std::process::Command;
use std::time::{Duration, Instant};

const PORT: u16 = 5789;
const VNI: u32 = 77;
const VNET_HDR: usize = 12;
const ETH: usize = 14;
const ETH_SRC: [u8; 6] = [2, 0, 0, 0, 9, 9];

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

fn ip4(src: [u8; 4], dst: [u8; 4], proto: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut ip = vec![0x45, 0, len[0], len[1], 0, 1, 0x40, 0, 33, proto, 0, 0];
    ip.extend(src);
    ip.extend(dst);
    let csum = (!sum(&ip)).to_be_bytes();
    ip[10..12].copy_from_slice(&csum);
    ip.extend(payload);
    ip
}

/// The frame in VXLAN to this device.
fn outer(to: [u8; 6], inner: &[u8], csum: bool) -> Vec<u8> {
    let (src, dst) = ([172, 31, 0, 2], [172, 31, 0, 1]);
    let len = u16::try_from(16 + inner.len()).unwrap().to_be_bytes();
    let mut udp = vec![0xc0, 1];
    udp.extend(PORT.to_be_bytes());
    udp.extend([len[0], len[1], 0, 0, 8, 0, 0, 0]);
    udp.extend((VNI << 8).to_be_bytes());
    udp.extend(inner);
    if csum {
        let pseudo = [&src[..], &dst[..], &[0, 17], &len, &udp].concat();
        udp[6..8].copy_from_slice(&(!sum(&pseudo)).to_be_bytes());
    }
    [&to[..], &[2, 0, 0, 0, 0, 2, 8, 0], &ip4(src, dst, 17, &udp)].concat()
}

fn run(command: &str) -> bool {
    Command::new("sh")
        .args(["-c", command])
        .output()
        .unwrap()
        .status
        .success()
}

fn send(tap: &TapQueue, header: [u8; VNET_HDR], frame: &[u8]) {
    tap.write(&[Iov::new(&header), Iov::new(frame)]).unwrap();
}

/// The next packet in a tunnel to [`PORT`] that the miss device gets within this time.
fn next(miss: &TapQueue, within: Duration) -> Option<Vec<u8>> {
    let end = Instant::now() + within;
    let mut buffer = vec![0; 70_000];
    while Instant::now() < end {
        let n = miss.read(&mut buffer).unwrap();
        if n == 0 {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        let frame = &buffer[VNET_HDR..n];
        // The host's stack may send by the device, too.
        if frame[12..14] == [0x81, 0] || frame.get(36..38) == Some(&PORT.to_be_bytes()) {
            return Some(frame.to_vec());
        }
    }
    None
}

/// Decapsulates a packet as workers do.
fn popped(frame: &[u8], l3: u16) -> (Vec<u8>, FlowKey) {
    let (mut p, mut key) = (Packet::from_bytes(frame), FlowKey::default());
    let pop = TunnelPop {
        kind: TunnelKind::Vxlan,
        port: 9,
        options: OptionTable::default(),
    };
    pop.apply(&mut p, l3, &mut key).unwrap();
    (p.head().to_vec(), key)
}

fn try_it() -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let up = TapOpen::new("up0")
        .vnet_hdr_len(VNET_HDR)
        .open()
        .map_err(|e| text(&e))?;
    let miss = TapOpen::new("hdm1")
        .vnet_hdr_len(VNET_HDR)
        .open()
        .map_err(|e| text(&e))?;
    up.enable_offloads();
    miss.enable_offloads();
    let name = TunnelLinkKind::Vxlan.device_name(PORT);
    let made = TunnelLinks::new().and_then(|links| links.make(TunnelLinkKind::Vxlan, PORT, 7));
    made.map_err(|e| text(&e))?;
    let (links, ctl) = (TapLinks::new(None).unwrap(), LinkCtl::new().unwrap());
    for device in ["up0", "hdm1", &name] {
        links.bring_up(ctl.ifindex(device).unwrap(), 7).unwrap();
    }
    let mut programs = TunnelPrograms::load().map_err(|why| text(&why))?;
    programs.attach_first(&name).map_err(|e| text(&e))?;
    programs.attach_last(&name).map_err(|e| text(&e))?;
    let origin = origin_of(Cookie { owner: 7, era: 3 }, 5).unwrap();
    let nft = "ip addr add 172.31.0.1/24 dev up0; echo 0 >/proc/sys/net/ipv4/conf/up0/rp_filter; \
               nft add table netdev t && \
               nft 'add chain netdev t c { type filter hook ingress device up0 priority 0; }'";
    let mark = format!(
        "nft add rule netdev t c meta l4proto udp meta priority set {:x}:{:x}",
        origin >> 16,
        origin & 0xffff
    );
    if !run(nft) {
        return Err("nft has no ingress hook here".to_owned());
    }
    let mac = ctl.mac("up0").unwrap();
    let source = Source {
        miss: ctl.ifindex("hdm1").unwrap(),
        eth_dst: mac,
        eth_src: ETH_SRC,
        port: PORT,
        is_geneve: false,
    };
    programs.set(origin, source).unwrap();
    let inner = |rest: &[u8]| [&[2, 0, 0, 0, 0, 0xa, 2, 0, 0, 0, 0, 0xb], rest].concat();
    let udp = |n: usize| {
        let len = u16::try_from(8 + n).unwrap().to_be_bytes();
        let datagram = [&[3, 0xe8, 0x13, 0x89, len[0], len[1], 0, 0], &vec![7; n][..]].concat();
        ip4([10, 9, 0, 2], [10, 9, 0, 1], 17, &datagram)
    };
    // Without an origin the tunnel device drops the packet: the first one that comes back is another one.
    send(
        &up,
        [0; VNET_HDR],
        &outer(mac, &inner(&[&[8, 0][..], &udp(3)].concat()), false),
    );
    std::thread::sleep(Duration::from_millis(300));
    assert!(run(&mark), "nft sets no priority");
    for csum in [false, true] {
        let plain = [0, 1, 7, 64, 65, 128, 1300].map(|n| inner(&[&[8, 0][..], &udp(n)].concat()));
        let arp = inner(&[&[8, 6][..], &[1; 28]].concat());
        let other = inner(&[&[0x88, 0xb5][..], &[5; 99]].concat());
        let tagged = inner(&[&[0x81, 0, 0x20, 0xa, 8, 0][..], &udp(50)].concat());
        for frame in plain.iter().chain([&arp, &other, &tagged]) {
            send(&up, [0; VNET_HDR], &outer(mac, frame, csum));
            let back = next(&miss, Duration::from_secs(30)).expect("the packet comes back");
            // The tag of a tagged one has gone inside, and one without VLAN is outside.
            let l3 = if back[12..14] == [0x81, 0] { ETH + 4 } else { ETH };
            assert_eq!((&back[..6], &back[6..12]), (&mac[..], &ETH_SRC[..]));
            let (out, key) = popped(&back, u16::try_from(l3).unwrap());
            assert_eq!(&out, frame);
            assert_eq!(
                (key.tun_src, key.tun_dst, key.tun_id),
                (0xac1f_0002, 0xac1f_0001, u64::from(VNI))
            );
            assert_eq!((key.tun_ttl, key.tun_flags & tun_flag::CSUM != 0), (33, csum));
        }
    }
    // An origin that was forgotten.
    programs.forget(origin);
    send(
        &up,
        [0; VNET_HDR],
        &outer(mac, &inner(&[&[8, 0][..], &udp(3)].concat()), false),
    );
    let more = next(&miss, Duration::from_millis(300));
    assert_eq!(more, None, "a packet without a source is dropped");
    Ok(())
}

/// In a network namespace of the test's own.
#[test]
fn packets_without_a_filter_come_back_as_they_came() {
    let done = std::thread::spawn(|| {
        #[expect(
            deprecated,
            reason = "its successor is unsafe; nothing that processes share is unshared here"
        )]
        if rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).is_err() {
            return println!("not tested: not root");
        }
        if let Err(why) = try_it() {
            println!("not tested: {why}");
        }
    });
    done.join().unwrap();
}
