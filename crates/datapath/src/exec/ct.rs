//! What programs know of packets' connections.
//!
//! A packet that is tracked and looked up again carries the connection's state, mark, label, zone and original
//! addresses ([`CtFields`]). Within a program each packet has its own, also where the other steps are taken for
//! all packets of a run at once ([`Tracked`]).

use heddle_flow::FlowKey;
use heddle_packet::BURST;

/// What is known of a packet's connection; all zero: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CtFields {
    pub(crate) state: u32,
    pub(crate) mark: u32,
    /// Network order.
    pub(crate) label: [u8; 16],
    pub(crate) zone: u16,
    /// Protocol and ports in the original direction.
    pub(crate) proto: u8,
    pub(crate) v6: bool,
    pub(crate) ports: (u16, u16),
    /// Source and destination in the original direction; of IPv4 the first four bytes.
    pub(crate) addrs: [[u8; 16]; 2],
}

fn v4(a: [u8; 16]) -> u32 {
    u32::from_be_bytes([a[0], a[1], a[2], a[3]])
}

impl CtFields {
    /// Those of a key.
    pub(crate) fn of(key: &FlowKey) -> Self {
        let v6 = key.ct_ipv6_src != [0; 16] || key.ct_ipv6_dst != [0; 16];
        let wide = |a: u32| {
            let mut b = [0; 16];
            b[..4].copy_from_slice(&a.to_be_bytes());
            b
        };
        Self {
            state: key.ct_state,
            mark: key.ct_mark,
            label: key.ct_label,
            zone: key.ct_zone,
            proto: key.ct_nw_proto,
            v6,
            ports: (key.ct_tp_src, key.ct_tp_dst),
            addrs: match v6 {
                true => [key.ct_ipv6_src, key.ct_ipv6_dst],
                false => [wide(key.ct_nw_src), wide(key.ct_nw_dst)],
            },
        }
    }
    /// Writes them into a key.
    #[inline]
    pub(crate) fn write_to(&self, key: &mut FlowKey) {
        key.ct_state = self.state;
        key.ct_mark = self.mark;
        key.ct_label = self.label;
        key.ct_zone = self.zone;
        key.ct_nw_proto = self.proto;
        (key.ct_tp_src, key.ct_tp_dst) = self.ports;
        let [src, dst] = self.addrs;
        if self.v6 {
            (key.ct_ipv6_src, key.ct_ipv6_dst) = (src, dst);
            (key.ct_nw_src, key.ct_nw_dst) = (0, 0);
        } else {
            (key.ct_nw_src, key.ct_nw_dst) = (v4(src), v4(dst));
            (key.ct_ipv6_src, key.ct_ipv6_dst) = ([0; 16], [0; 16]);
        }
    }
}

/// What a program has made of its packets' connections.
#[derive(Debug)]
pub(crate) struct Tracked {
    fields: [CtFields; BURST],
    /// Packets that have other fields than they came with, and packets whose headers were translated: a bit
    /// each, by their number in the run.
    changed: u64,
    pub(crate) translated: u64,
}

impl Tracked {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            fields: [CtFields::default(); BURST],
            changed: 0,
            translated: 0,
        })
    }
    /// Of packets to which nothing was done yet.
    pub(crate) fn begin(&mut self) {
        (self.changed, self.translated) = (0, 0);
    }
    /// What packet `i` has that it did not come with.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> Option<&CtFields> {
        (self.changed >> i & 1 != 0).then(|| self.fields.get(i))?
    }
    /// Whether packet `i`'s headers were translated.
    #[inline]
    pub(crate) fn is_translated(&self, i: usize) -> bool {
        self.translated >> i & 1 != 0
    }
    #[inline]
    pub(crate) fn set(&mut self, i: usize, fields: CtFields) {
        if let Some(place) = self.fields.get_mut(i) {
            *place = fields;
            self.changed |= 1 << i;
        }
    }
}
