//! What programs know of packets' connections.
//!
//! A packet that is tracked and looked up again carries the connection's state, mark, label, zone and
//! original addresses ([`CtFields`]). Within a program each packet has its own, also where the other steps
//! are taken for all packets of a run at once ([`Tracked`]).

use super::{Exec, LiveId, Meta};
use heddle_conntrack::{
    At, Checked, CtAction, Endpoint, Event, Events, Found, Packet as View, Prior, ReadGuard, Tuple, Verdict,
};
use heddle_flow::FlowKey;
use heddle_flow::extract::NO_OFFSET;
use heddle_packet::{BURST, Csum, Packet};
use heddle_sync::Counter;
use heddle_wire::checksum::Sum;
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::split;

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

/// As [`CtFields::addrs`].
#[inline]
fn addr(e: &Endpoint, v6: bool) -> [u8; 16] {
    if v6 { e.addr } else { e.addr << 96 }.to_be_bytes()
}

fn v4(a: [u8; 16]) -> u32 {
    u32::from_be_bytes([a[0], a[1], a[2], a[3]])
}

impl CtFields {
    /// What the tracker said.
    #[inline]
    fn of(v: &Verdict) -> Self {
        let orig = v.orig.unwrap_or_default();
        Self {
            state: v.state.into(),
            mark: v.mark,
            label: v.label.to_be_bytes(),
            zone: v.zone,
            proto: orig.proto,
            v6: orig.ipv6,
            ports: orig.tp(),
            addrs: [addr(&orig.src, orig.ipv6), addr(&orig.dst, orig.ipv6)],
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

impl CtFields {
    /// As the tracker wants to know it.
    pub(crate) fn prior(&self, found: Option<Found>) -> Prior {
        let end = |a: [u8; 16], l4: u16| Endpoint {
            addr: if self.v6 {
                u128::from_be_bytes(a)
            } else {
                v4(a).into()
            },
            l4: l4.into(),
        };
        let [src, dst] = self.addrs;
        let orig = Tuple {
            src: end(src, self.ports.0),
            dst: end(dst, self.ports.1),
            proto: self.proto,
            ipv6: self.v6,
        };
        Prior {
            state: u8::try_from(self.state & 0xff).unwrap_or(0),
            zone: self.zone,
            orig: (self.proto != 0).then_some(orig),
            found,
        }
    }
}

/// What a packet carried when it was looked up, as the tracker wants to know it.
#[inline]
fn carried_prior(carried: Option<&FlowKey>) -> Prior {
    let Some(key) = carried.filter(|k| k.ct_state != 0) else {
        return Prior::default();
    };
    let wide = |a: u32| (u128::from(a) << 96).to_be_bytes();
    let v6 = key.ct_ipv6_src != [0; 16] || key.ct_ipv6_dst != [0; 16];
    let fields = CtFields {
        state: key.ct_state,
        zone: key.ct_zone,
        proto: key.ct_nw_proto,
        v6,
        ports: (key.ct_tp_src, key.ct_tp_dst),
        addrs: match v6 {
            true => [key.ct_ipv6_src, key.ct_ipv6_dst],
            false => [wide(key.ct_nw_src), wide(key.ct_nw_dst)],
        },
        ..CtFields::default()
    };
    fields.prior(None)
}

/// How often each of [`Event::ALL`] was met, in that order.
pub(crate) type Tally = [u64; Event::ALL.len()];

/// Adds one tally to another.
pub(crate) fn add_all(to: &mut Tally, more: Tally) {
    for (to, more) in to.iter_mut().zip(more) {
        *to += more;
    }
}

/// What was met while connections were tracked; one worker's.
#[derive(Debug)]
pub(crate) struct CtCounts([Counter; Event::ALL.len()]);

impl Default for CtCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl CtCounts {
    #[cold]
    fn add(&self, events: Events) {
        for (event, counter) in Event::ALL.into_iter().zip(&self.0) {
            if events.has(event) {
                counter.add(1);
            }
        }
    }
    /// How often each was met.
    pub(crate) fn get(&self) -> Tally {
        std::array::from_fn(|i| self.0[i].get())
    }
}

impl Exec<'_> {
    /// Tracks packets of a run; a bit in `failed` leaves one out.
    pub(crate) fn track_all(
        &mut self,
        action: &CtAction,
        ids: std::ops::Range<LiveId>,
        failed: u64,
        meta: &Meta,
    ) {
        let reading = ReadGuard::begin();
        for (i, id) in ids.enumerate().filter(|(i, _)| failed >> i & 1 == 0) {
            let prior = self
                .tracked
                .prior(i)
                .unwrap_or_else(|| carried_prior(self.carried));
            let (fields, found, translated) = self.track(&reading, action, id, meta, &prior);
            self.tracked.set(i, (fields, found));
            self.tracked.translated |= u64::from(translated) << i;
        }
    }
    /// Tracks one packet; `before` is what an earlier action of the same program said.
    pub(crate) fn track_one(
        &mut self,
        action: &CtAction,
        id: LiveId,
        meta: &Meta,
        before: Option<(CtFields, Option<Found>)>,
    ) -> (CtFields, Option<Found>) {
        let prior = match before {
            Some((fields, found)) => fields.prior(found),
            None => carried_prior(self.carried),
        };
        let (fields, found, _) = self.track(&ReadGuard::begin(), action, id, meta, &prior);
        (fields, found)
    }
    #[inline]
    fn track(
        &mut self,
        reading: &ReadGuard,
        action: &CtAction,
        id: LiveId,
        meta: &Meta,
        prior: &Prior,
    ) -> (CtFields, Option<Found>, bool) {
        let p = self.live.get(id);
        let verify = || l4_is_right(p, meta);
        let view = view(p, meta, self.carried, &verify);
        let verdict = match view.as_ref().map(View::read) {
            Some(Ok(subject)) => {
                let hash = self.tracker.hash(&subject.tuple, action.zone);
                self.tracker
                    .track(self.now_ms, reading, &subject, hash, prior, action)
            }
            Some(Err(why)) => self.tracker.invalid(action.zone, why),
            None => self
                .tracker
                .invalid(action.zone, heddle_conntrack::Invalid::Malformed),
        };
        if !verdict.events.is_empty() {
            self.ct_counts.add(verdict.events);
        }
        if let (Some(rewrite), Some(v)) = (verdict.rewrite, view) {
            let at = At {
                l3: v.l3,
                l4: v.l4,
                ipv6: v.ipv6,
                proto: v.proto,
                partial: matches!(p.offload.csum, Csum::Partial { start, .. } if usize::from(start) == v.l4),
            };
            rewrite.apply(self.live.get_mut(id).head_mut(), at);
        }
        (CtFields::of(&verdict), verdict.found, verdict.rewrite.is_some())
    }
}

/// What a program has made of its packets' connections.
#[derive(Debug)]
pub(crate) struct Tracked {
    fields: [CtFields; BURST],
    /// The connections that were found, for packets that are tracked twice.
    found: [Option<Found>; BURST],
    /// Packets that have other fields than they came with, and packets whose headers were translated: a bit
    /// each, by their number in the run.
    changed: u64,
    pub(crate) translated: u64,
}

impl Tracked {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            fields: [CtFields::default(); BURST],
            found: [None; BURST],
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
    pub(crate) fn set(&mut self, i: usize, (fields, found): (CtFields, Option<Found>)) {
        if let (Some(place), Some(of)) = (self.fields.get_mut(i), self.found.get_mut(i)) {
            (*place, *of) = (fields, found);
            self.changed |= 1 << i;
        }
    }
    /// What an earlier action of the same program said.
    #[inline]
    fn prior(&self, i: usize) -> Option<Prior> {
        let fields = self.get(i)?;
        Some(fields.prior(self.found.get(i).copied().flatten()))
    }
}

/// A packet as the tracker sees it; `None`: it is not IP. `carried`: its key's part outside of the compact
/// one, which knows of fragments. `verify` says whether its L4 checksum is right.
#[inline]
pub(crate) fn view<'a>(
    p: &'a Packet,
    meta: &Meta,
    carried: Option<&FlowKey>,
    verify: &'a dyn Fn() -> bool,
) -> Option<View<'a>> {
    if meta.l3 == NO_OFFSET || carried.is_some_and(|k| !matches!(k.dl_type, 0 | 0x0800 | 0x86dd)) {
        return None;
    }
    let (head, l3) = (p.head(), usize::from(meta.l3));
    let (ipv6, end) = extent(head, l3)?;
    // A train may be longer than its header can say.
    let end = if p.offload.gso.is_some() {
        p.len()
    } else {
        end.min(p.len())
    };
    let l4 = if meta.l4 == NO_OFFSET { end } else { meta.l4.into() };
    Some(View {
        head,
        l3,
        l4,
        end,
        ipv6,
        proto: meta.proto,
        fragment: meta.later_fragment || carried.is_some_and(|k| k.nw_frag != 0),
        l3_sum: Checked::Unknown,
        l4_sum: match p.offload.csum {
            Csum::Unknown => Checked::Unknown,
            Csum::Valid | Csum::Partial { .. } => Checked::Good,
        },
        verify,
    })
}

/// Whether IPv6, and where the IP packet ends by its own header. `None`: no IP header.
#[inline]
fn extent(head: &[u8], l3: usize) -> Option<(bool, usize)> {
    let ip = head.get(l3..)?;
    match ip.first()? >> 4 {
        4 => split::<Ipv4>(ip).map(|(h, _)| (false, l3 + usize::from(h.total_len.get()))),
        6 => split::<Ipv6>(ip).map(|(h, _)| (true, l3 + Ipv6::LEN + usize::from(h.payload_len.get()))),
        _ => None,
    }
}

/// Bytes of a packet that are summed at a time.
const PIECE_BYTES: usize = 512;

/// Whether the checksum of TCP, UDP or ICMP is right.
#[cold]
pub(crate) fn l4_is_right(p: &Packet, meta: &Meta) -> bool {
    let right = || {
        let (head, l3, l4) = (p.head(), usize::from(meta.l3), usize::from(meta.l4));
        let (ipv6, end) = extent(head, l3)?;
        let len = end.min(p.len()).checked_sub(l4)?;
        let pseudo_len = u32::try_from(len).ok()?;
        let sum = if ipv6 {
            let (ip, _) = split::<Ipv6>(head.get(l3..)?)?;
            Sum::ZERO.pseudo_v6(&ip.src, &ip.dst, meta.proto, pseudo_len)
        } else if meta.proto == proto::ICMP {
            Sum::ZERO
        } else {
            let (ip, _) = split::<Ipv4>(head.get(l3..)?)?;
            Sum::ZERO.pseudo_v4(ip.src.get(), ip.dst.get(), meta.proto, pseudo_len)
        };
        let private = head.get(l4..)?;
        if private.len() >= len {
            return Some(sum.bytes(private.get(..len)?).checksum() == 0);
        }
        let (mut sum, mut done) = (sum, 0);
        let mut piece = [0; PIECE_BYTES];
        while done < len {
            let most = PIECE_BYTES.min(len - done);
            // Only the last piece may be of odd length.
            if p.copy_from(l4 + done, &mut piece[..most]) < most {
                return None;
            }
            sum = sum.bytes(&piece[..most]);
            done += most;
        }
        Some(sum.checksum() == 0)
    };
    right().unwrap_or(false)
}
