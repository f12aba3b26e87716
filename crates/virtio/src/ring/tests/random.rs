//! Random ring memory: a driver that writes anything anywhere, with a bias to chains that are almost right.
//! The device may stop or drop; it must not panic, must not loop, and gives out only bytes of the guest's
//! memory.

use super::*;
use proptest::prelude::*;

/// One descriptor, mostly plausible.
#[derive(Clone, Debug)]
pub(super) struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) third: u16,
    pub(super) fourth: u16,
}

fn addr() -> impl Strategy<Value = u64> {
    let end = BASE + LEN as u64;
    prop_oneof![
        6 => BASE..end,
        2 => (BASE..BASE + 0x2000).prop_map(|a| a & !15),
        1 => (end - 300)..end + 300,
        1 => any::<u64>(),
    ]
}

fn len() -> impl Strategy<Value = u32> {
    prop_oneof![5 => 0_u32..2000, 3 => (0_u32..70).prop_map(|n| n * 16), 1 => 0_u32..200_000, 1 => any::<u32>()]
}

fn flags() -> impl Strategy<Value = u16> {
    let wrap = prop_oneof![3 => Just(F_AVAIL), 1 => Just(F_USED), 1 => Just(0), 1 => Just(F_AVAIL | F_USED)];
    (wrap, 0_u16..8, prop_oneof![9 => Just(0), 1 => any::<u16>()]).prop_map(|(w, f, x)| (w | f) ^ x)
}

fn desc() -> impl Strategy<Value = Desc> {
    (
        addr(),
        len(),
        flags(),
        prop_oneof![3 => 0_u16..17, 1 => any::<u16>()],
        any::<bool>(),
    )
        .prop_map(|(addr, len, flags, other, swap)| Desc {
            addr,
            len,
            third: if swap { flags } else { other },
            fourth: if swap { other } else { flags },
        })
}

/// A chain that is almost right: its faults are in its descriptors, not in how it is offered.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) indirect: bool,
    /// Descriptors as a split ring has them: flags, then `next`.
    pub(super) descs: Vec<Desc>,
}

impl Offer {
    /// Writes it as the `nth` chain of a ring of 16 entries, which it takes one of when it is indirect.
    fn write(&self, rig: &Rig, nth: u16) {
        const INDIRECT: u16 = 4;
        let packed = rig.cfg.packed();
        let wrap = if (nth / 16).is_multiple_of(2) {
            F_AVAIL
        } else {
            F_USED
        };
        let table = BASE + 0xc000 + 0x200 * u64::from(nth % 16);
        let first = nth % 16;
        // A packed ring's descriptors have the identifier before the flags.
        let last_two = |flags: u16, next: u16| if packed { (nth % 16, flags) } else { (flags, next) };
        for (i, d) in (0..).zip(&self.descs) {
            let (third, fourth) = last_two(d.third, d.fourth);
            if self.indirect {
                let e = u128::from(d.addr)
                    | u128::from(d.len) << 64
                    | u128::from(third) << 96
                    | u128::from(fourth) << 112;
                rig.write(table + 16 * i, &e.to_le_bytes());
            } else {
                let wrap = if packed { wrap } else { 0 };
                let (third, fourth) = last_two(d.third | wrap, d.fourth);
                rig.poke((first + i as u16) % 16, d.addr, d.len, third, fourth);
            }
        }
        if self.indirect {
            let flags = INDIRECT | if packed { wrap } else { 0 };
            let (third, fourth) = last_two(flags, 0);
            rig.poke(first, table, 16 * self.descs.len() as u32, third, fourth);
        }
        if !packed {
            rig.offer(nth, first);
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Act {
    Desc(u16, Desc),
    /// Descriptors at the place that others name as a table.
    Table(u64, Vec<Desc>),
    Head(u16, u16),
    AvailIdx(u16),
    /// The next chain, offered as a driver does it.
    Offer(Offer),
    /// Queues and indices from the start.
    Reset,
    Area(u8, u16, u16),
    Bytes(u64, Vec<u8>),
    Receive,
    Complete,
    Send(Vec<usize>),
    Arm,
    Disarm,
    Table2,
}

fn act() -> impl Strategy<Value = Act> {
    let near = prop_oneof![8 => 0_u16..20, 1 => any::<u16>()];
    prop_oneof![
        8 => (0_u16..16, desc()).prop_map(|(i, d)| Act::Desc(i, d)),
        2 => ((BASE..BASE + 0x2000).prop_map(|a| a & !15), proptest::collection::vec(desc(), 1..5)).prop_map(|(a, d)| Act::Table(a, d)),
        3 => (0_u16..16, near.clone()).prop_map(|(i, h)| Act::Head(i, h)),
        5 => near.clone().prop_map(Act::AvailIdx),
        6 => (any::<bool>(), proptest::collection::vec(desc(), 1..5)).prop_map(|(indirect, descs)| {
            Act::Offer(Offer { indirect, descs })
        }),
        1 => Just(Act::Reset),
        1 => (0_u8..2, 0_u16..300, any::<u16>()).prop_map(|(w, at, v)| Act::Area(w, at, v)),
        1 => (addr(), proptest::collection::vec(any::<u8>(), 1..40)).prop_map(|(a, b)| Act::Bytes(a, b)),
        6 => Just(Act::Receive),
        3 => Just(Act::Complete),
        4 => proptest::collection::vec(14_usize..3000, 1..4).prop_map(Act::Send),
        1 => Just(Act::Arm),
        1 => Just(Act::Disarm),
        1 => Just(Act::Table2),
    ]
}

/// The outcome of a run, coarsely: runs with different outcomes went different ways.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen {
    packed: bool,
    pub(super) errors: std::collections::BTreeSet<&'static str>,
    /// Packets received and sent: none, one, several.
    pub(super) received: usize,
    pub(super) sent: usize,
    /// Whether one had a tail, of one piece or more.
    tails: usize,
    drops: [bool; 3],
    full: bool,
    too_long: bool,
    /// An indirect table's `next` was refused.
    pub(super) next_in_table: bool,
}

impl Seen {
    /// The single things that happened, each with the layout that it happened in.
    pub(super) fn parts(&self) -> impl Iterator<Item = (bool, String)> + '_ {
        let flags = [
            ("received", self.received > 0),
            ("sent", self.sent > 0),
            ("tail", self.tails > 0),
            ("tails", self.tails > 1),
            ("runt", self.drops[0]),
            ("too long", self.drops[1]),
            ("header", self.drops[2]),
            ("full", self.full),
            ("no buffer", self.too_long),
            ("next beyond an indirect table", self.next_in_table),
        ];
        let on = flags.into_iter().filter(|f| f.1).map(|f| f.0);
        on.chain(self.errors.iter().copied())
            .map(|what| (self.packed, what.to_owned()))
    }
}

/// Plays the acts; they must break nothing.
pub(super) fn run(features: Features, acts: &[Act]) -> Seen {
    let mut seen = Seen {
        packed: features.contains(Features::RING_PACKED),
        ..Seen::default()
    };
    let rig = Rig::new(features, 16);
    let mem = rig.shared.get();
    let (mut pool, mut burst) = (Pool::new(8), Burst::new());
    let (mut rx, mut tx) = (rig.rx(), rig.tx());
    let (mut opened, mut given) = (0, 0);
    let (mut offered, mut last_indirect) = (0_u16, false);
    for a in acts {
        match a {
            Act::Offer(o) => {
                o.write(&rig, offered);
                offered = offered.wrapping_add(1);
                last_indirect = o.indirect;
            }
            Act::Reset => {
                burst.drain(..).for_each(|p| pool.put(p));
                rx.complete();
                rig.write(rig.cfg.desc, &[0; 16 * 16]);
                rig.write(rig.cfg.driver + 2, &[0; 2]);
                (rx, tx, offered) = (rig.rx(), rig.tx(), 0);
            }
            Act::Desc(i, d) => rig.poke(*i, d.addr, d.len, d.third, d.fourth),
            Act::Table(at, ds) => {
                for (i, d) in ds.iter().enumerate() {
                    let e = (u128::from(d.addr)
                        | u128::from(d.len) << 64
                        | u128::from(d.third) << 96
                        | u128::from(d.fourth) << 112)
                        .to_le_bytes();
                    let _ = mem.write(at + 16 * i as u64, &e);
                }
            }
            Act::Head(i, h) => rig.write(
                rig.cfg.driver
                    + if rig.cfg.packed() {
                        0
                    } else {
                        4 + 2 * u64::from(*i)
                    },
                &h.to_le_bytes(),
            ),
            Act::AvailIdx(i) => rig.write(rig.cfg.driver + 2, &i.to_le_bytes()),
            Act::Area(which, at, v) => {
                let area = [rig.cfg.driver, rig.cfg.device][usize::from(*which)];
                rig.write(area + u64::from(*at), &v.to_le_bytes());
            }
            Act::Bytes(at, b) => drop(mem.write(*at, b)),
            Act::Receive => {
                given += rx.rx(&mut pool, &mut burst);
                for p in &burst {
                    // Reads each byte: outside the mapping this would be a fault.
                    assert!(p.len() >= 14 && p.to_vec().len() == p.len());
                    seen.tails = seen.tails.max(p.segs().len().min(2));
                }
            }
            Act::Complete => {
                burst.drain(..).for_each(|p| pool.put(p));
                rx.complete();
            }
            Act::Send(lens) => {
                let packets: Vec<Packet> = lens.iter().map(|&n| Packet::from_bytes(&pattern(n, 1))).collect();
                let out = tx.tx(&packets.iter().collect::<Vec<_>>());
                assert_eq!(out.sent + out.full + out.too_long + out.down, lens.len() as u64);
                seen.sent = (seen.sent + out.sent as usize).min(2);
                seen.full |= out.full > 0;
                seen.too_long |= out.too_long > 0;
            }
            Act::Arm => drop((rx.arm(), tx.arm())),
            Act::Disarm => {
                rx.disarm();
                tx.disarm();
            }
            Act::Table2 => drop(rig.shared.replace(mem.with_log(None))),
        }
        let next = |e| matches!(e, Some(RingError::Next(_)));
        seen.next_in_table |= last_indirect && (next(rx.error()) || next(tx.error()));
        seen.errors.extend(
            [rx.error(), tx.error()]
                .into_iter()
                .flatten()
                .map(RingError::name),
        );
        let d = rx.drops();
        for (to, n) in seen.drops.iter_mut().zip([d.runt, d.too_long, d.header]) {
            *to |= n > 0;
        }
        if rx.error().is_some_and(|e| !e.may_recover()) && opened < 20 {
            // The driver resets the queue: the test continues with the content of the memory.
            burst.drain(..).for_each(|p| pool.put(p));
            rx.complete();
            rx = rig.rx();
            opened += 1;
        }
        if tx.error().is_some_and(|e| !e.may_recover()) && opened < 20 {
            tx = rig.tx();
            opened += 1;
        }
    }
    assert!(given <= acts.len() * heddle_packet::BURST);
    seen.received = given.min(2);
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 200 }, ..ProptestConfig::default() })]

    #[test]
    fn random_memory_breaks_nothing(acts in proptest::collection::vec(act(), 1..120), bits in 0_usize..32) {
        let features = combinations().nth(bits).unwrap();
        run(features, &acts);
    }
}
