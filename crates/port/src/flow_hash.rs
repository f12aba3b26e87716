//! Choice of a device's transmit queue for a packet by its flow (`tx-steering=hash`).
//!
//! The packets of a flow stay in one queue and so in order; flows spread over all. Addresses, protocol and
//! ports decide. For fragments, of which only the first has ports, and for other packets than IP, the
//! addresses decide. A wrong guess spreads badly, it misforwards nothing.

const VLANS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Protocols whose header begins with two ports: TCP, UDP, SCTP.
const PORTS: [u8; 3] = [6, 17, 132];

/// A number that all packets of a flow have in common. `head` begins with the Ethernet header.
pub(crate) fn hash(head: &[u8]) -> u32 {
    let mut at = 12;
    let kind = loop {
        match head.get(at..at + 2) {
            Some(tag) if at < 20 && VLANS.iter().any(|v| v == tag) => at += 4,
            kind => break kind,
        }
    };
    let l3 = head.get(at + 2..).unwrap_or_default();
    let sum = match kind {
        Some(k) if k == IPV4 => ipv4(l3),
        Some(k) if k == IPV6 => ipv6(l3),
        _ => None,
    };
    let sum = sum.unwrap_or_else(|| mix(0, head.get(..12).unwrap_or_default()));
    // Neighbouring numbers are to be far apart (Murmur3's last step).
    let mut h = sum;
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

fn ipv4(l3: &[u8]) -> Option<u32> {
    let header = usize::from(l3.first()? & 15) * 4;
    let proto = *l3.get(9)?;
    let sum = mix(u32::from(proto), l3.get(12..20)?);
    let fragment = l3.get(6)? & 0x3f != 0 || *l3.get(7)? != 0;
    Some(ports(sum, proto, l3.get(header..).filter(|_| !fragment)))
}

fn ipv6(l3: &[u8]) -> Option<u32> {
    let proto = *l3.get(6)?;
    let sum = mix(u32::from(proto), l3.get(8..40)?);
    Some(ports(sum, proto, l3.get(40..)))
}

fn ports(sum: u32, proto: u8, l4: Option<&[u8]>) -> u32 {
    let known = l4.filter(|_| PORTS.contains(&proto));
    known.and_then(|l4| l4.get(..4)).map_or(sum, |p| mix(sum, p))
}

fn mix(sum: u32, bytes: &[u8]) -> u32 {
    let words = bytes.chunks(4).map(|c| {
        let mut w = [0; 4];
        w[..c.len()].copy_from_slice(c);
        u32::from_be_bytes(w)
    });
    words.fold(sum, |h, w| (h.rotate_left(5) ^ w).wrapping_mul(0x9e37_79b1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tcp4(src: u32, port: u16, fragment: u16, vlan: bool) -> Vec<u8> {
        let mut f = vec![2; 12];
        if vlan {
            f.extend([0x81, 0, 0, 7]);
        }
        f.extend(IPV4);
        f.extend([0x45, 0, 0, 40, 0, 1]);
        f.extend(fragment.to_be_bytes());
        f.extend([64, 6, 0, 0]);
        f.extend(src.to_be_bytes());
        f.extend([10, 0, 0, 1]);
        f.extend(port.to_be_bytes());
        f.extend([0, 80, 1, 2, 3, 4]);
        f
    }

    #[test]
    fn flows_spread_and_stay() {
        for n in [2, 3, 4, 8] {
            let mut hits = vec![0; n];
            for port in 0..1000 {
                let f = tcp4(0x0a00_0002, port, 0, false);
                hits[hash(&f) as usize % n] += 1;
                assert_eq!(
                    hash(&f),
                    hash(&tcp4(0x0a00_0002, port, 0x4000, false)),
                    "DF is no fragment"
                );
            }
            let share = 1000 / n;
            assert!(hits.iter().all(|&h| h > share / 2 && h < share * 2), "{hits:?}");
        }
        let first = tcp4(0x0a00_0002, 1, 0x2000, true);
        let later = tcp4(0x0a00_0002, 0x5555, 0x0010, true);
        assert_eq!(hash(&first), hash(&later), "fragments stay together");
        assert_ne!(hash(&tcp4(1, 1, 0, false)), hash(&tcp4(2, 1, 0, false)));
    }

    proptest! {
        #[test]
        fn any_bytes(head in proptest::collection::vec(any::<u8>(), 0..130)) {
            hash(&head);
        }
    }
}
