//! Pipelines with connections in chains of tc, beside the twin of the eBPF program. A packet is forwarded as
//! there, or handed over as it came in.

use super::{canonical, golden, nlas};
use crate::ebpf::tests::{Behind, Shape, behind, connections, frame, pipeline, rule, shape};
use crate::ebpf::twin;
use crate::tc::actions;
use crate::tc::ct::{self, ConnMatch};
use crate::tc::entries::{KernelZones, back_of, forth_of};
use crate::tc::fields::KnownHeaders;
use crate::tc::keys::Keys;
use crate::tc::message::{self, FilterId};
use crate::tc::plan::{PathState, Plan, Step, Undo, can_be_established, plan, rule_of, variants};
use crate::{Ct, Headers, Op, Rule, Why};
use heddle_conntrack::offloaded::Offloadable;
use heddle_conntrack::{Endpoint, Tuple};
use heddle_datapath_api::PortNo;
use heddle_kernel_conntrack::Established;
use netlink_packet_core::Emitable as _;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Zones of the kernel for a zone of rules.
fn zones(zone: u16) -> KernelZones {
    KernelZones {
        forth: 0xa000 + 2 * zone,
        back: 0xa001 + 2 * zone,
    }
}

/// The result of `ct`: the zone, and the entry with the direction.
type Lookup<'a> = Option<(u16, Option<(&'a Established, bool)>)>;

/// A model of the kernel: its connections, and filters of these rules.
struct Kernel<'a> {
    rules: &'a [Rule],
    entries: Vec<Established>,
}

#[derive(PartialEq, Eq, Debug)]
enum Outcome {
    Sent(Vec<u8>),
    Handed(Vec<u8>),
}

/// Writes the ends of a tuple.
fn write_tuple(out: &mut [u8], t: &Tuple) {
    let (at, n, l4) = if t.ipv6 { (22, 16, 54) } else { (26, 4, 34) };
    for (i, Endpoint { addr, l4: port }) in [t.src, t.dst].into_iter().enumerate() {
        out[at + i * n..at + (i + 1) * n].copy_from_slice(&addr.to_be_bytes()[16 - n..]);
        out[l4 + 2 * i..l4 + 2 * i + 2].copy_from_slice(&u16::try_from(port).unwrap().to_be_bytes());
    }
}

impl<'a> Kernel<'a> {
    /// The action `ct`.
    fn track(&'a self, zone: u16, nat: bool, out: &mut [u8], found: &mut Lookup<'a>) {
        if found.is_none_or(|(of, _)| of != zone) {
            let t = twin::tuple(&twin::read(out).1);
            let mut of_zone = self.entries.iter().filter(|e| e.zone == zone);
            let entry = of_zone.find(|e| e.orig == t || e.reply == t);
            *found = Some((zone, entry.map(|e| (e, e.orig != t))));
        }
        if let Some((_, Some((e, reply)))) = found.filter(|_| nat) {
            let back = if reply { e.orig } else { e.reply };
            write_tuple(out, &back.reversed());
        }
    }
    fn meets(conn: Option<ConnMatch>, found: Lookup<'_>) -> bool {
        let Some(c) = conn else { return true };
        let Some((_, Some((e, reply)))) = found else {
            return false;
        };
        let label = e.label.to_be_bytes();
        let bits = label.iter().zip(c.label.0).zip(c.label.1);
        c.reply.is_none_or(|want| want == reply)
            && (e.mark ^ c.mark.0) & c.mark.1 == 0
            && bits.into_iter().all(|((have, want), m)| (have ^ want) & m == 0)
    }
    fn matches(plan: &Plan, out: &[u8], found: Lookup<'_>) -> bool {
        let known = KnownHeaders {
            key: plan.matched.key,
            mask: plan.matched.mask,
        };
        let (key, h) = twin::read(out);
        let edge = key.tcp_flags & crate::more::TCP_UP != 0;
        twin::agrees(&rule_of(&plan.matched, &known, &[]), &h)
            && (plan.matched.all_flags || !edge)
            && Self::meets(plan.conn, found)
    }
    fn chain(
        &'a self,
        recirc: u32,
        place: &PathState,
        out: &mut Vec<u8>,
        mut found: Lookup<'a>,
        passed: &mut usize,
    ) -> Outcome {
        let of = self.rules.iter().filter(|r| r.key.recirc == recirc);
        let of = of.filter(|r| can_be_established(r).is_ok());
        for rule in of.flat_map(|r| variants(r, place)) {
            let Ok(Some(plan)) = plan(&rule, place) else {
                continue;
            };
            if Keys::of(&plan.matched).is_err() || !Self::matches(&plan, out, found) {
                continue;
            }
            *passed += 1;
            for step in &plan.steps {
                match step {
                    Step::Ops(_, ops) => {
                        let writes = ops.iter().filter(|op| !matches!(op, Op::Output(_)));
                        writes.for_each(|op| twin::write(op, out));
                    }
                    Step::Track { zone, nat } => self.track(zones(*zone).forth, *nat, out, &mut found),
                }
            }
            return match &plan.next {
                Some((id, next)) => self.chain(*id, next, out, found, passed),
                None => {
                    twin::finish(out);
                    Outcome::Sent(out.clone())
                }
            };
        }
        let is_established = Self::meets(Some(ConnMatch::default()), found);
        let skipped = usize::from(place.last_translation().is_some() && !is_established);
        for undo in &place.undo[skipped..] {
            match undo {
                Undo::Nat(zone) => self.track(zones(*zone).back, true, out, &mut found),
                Undo::Rewrites(_, ops) => ops.iter().for_each(|op| twin::write(op, out)),
            }
        }
        twin::finish(out);
        Outcome::Handed(out.clone())
    }
}

fn kernel<'a>(rules: &'a [Rule], conns: &[Offloadable]) -> Kernel<'a> {
    let mut entries = Vec::new();
    for c in conns.iter().filter(|c| c.replied) {
        entries.push(forth_of(c, zones(c.zone), false));
        entries.extend(back_of(c, zones(c.zone)));
    }
    Kernel { rules, entries }
}

/// Packets of TCP and UDP without options, which both know.
fn plain(s: Shape) -> Shape {
    Shape {
        flags: if s.flags & 7 == 0 {
            s.flags
        } else {
            0x10 | s.flags & 1
        },
        options: false,
        fragment: false,
        proto: if s.proto == 6 { 6 } else { 17 },
        ..s
    }
}

#[test]
fn chains_forward_as_the_twin_or_hand_over_what_came_in() {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(16_000));
    let conns = prop::collection::vec((any::<Option<bool>>(), any::<bool>()), 1..4);
    // Rewritten fields are mostly matched.
    let fields =
        (0_u16..1024, prop::bool::weighted(0.8)).prop_map(|(f, all)| if all { 0x3df } else { f & 0x3df });
    let all = (
        (
            shape().prop_map(plain),
            fields,
            any::<u8>(),
            prop::option::weighted(0.4, shape().prop_map(plain)),
        ),
        (0_u16..256, any::<bool>(), prop::bool::weighted(0.2)),
        prop::collection::vec(behind(), 1..4),
        conns,
        any::<u8>(),
    );
    let (mut sent, mut handed, mut deep) = (0, 0, 0);
    let seen = std::cell::RefCell::new((&mut sent, &mut handed, &mut deep));
    runner
        .run(
            &all,
            |((of, fields, value, other), (writes, nat, marks), behind, conns, missing)| {
                let conns = connections(&of, &conns);
                let known: Vec<Offloadable> = conns.iter().filter(|c| c.replied).copied().collect();
                let first = rule(&of, fields, writes & 0x30, value);
                let behind: Vec<Behind> = behind;
                let mut rules = pipeline(&of, first, (nat, marks), value, &behind, &conns);
                // Now and then a flow of a later stage is missing.
                if missing < 60 && rules.len() > 1 {
                    rules.pop();
                }
                let packet = frame(other.as_ref().unwrap_or(&of));
                let kernel = kernel(&rules, &conns);
                let mut passed = 0;
                let end = kernel.chain(0, &PathState::default(), &mut packet.clone(), None, &mut passed);
                let expected = twin::forward_all(&rules, &known, &packet);
                let (sent, handed, deep) = &mut *seen.borrow_mut();
                match end {
                    Outcome::Sent(bytes) => {
                        **sent += 1;
                        **deep += usize::from(passed > 2);
                        prop_assert_eq!(Some(bytes), expected.map(|(bytes, _)| bytes));
                    }
                    Outcome::Handed(bytes) => {
                        **handed += usize::from(passed > 0);
                        prop_assert_eq!(bytes, packet);
                    }
                }
                Ok(())
            },
        )
        .unwrap();
    println!("{sent} sent, {handed} handed over behind the first filter, {deep} sent behind two chains");
    assert!(sent > 300 && handed > 1000 && deep > 2, "{sent} {handed} {deep}");
}

const ZONE: u16 = 5;

fn tracking(ops: &[Op]) -> Rule {
    let mut r = rule_like(0);
    r.ops = ops.into();
    r
}

/// A rule of UDP over IPv4 behind a recirculation, 0: none.
fn rule_like(recirc: u32) -> Rule {
    let (key, mask) = (Headers::default(), Headers::default());
    Rule {
        in_port: PortNo(1),
        key: Headers {
            dl_type: 0x0800,
            nw_proto: 17,
            recirc,
            ..key
        },
        mask: Headers {
            dl_type: u16::MAX,
            nw_proto: u8::MAX,
            recirc: u32::MAX,
            ..mask
        },
        ops: Box::new([Op::Output(PortNo(2))]),
        tunnel: false,
        all_flags: true,
        outer: None,
        max_frame: None,
        drops: false,
        leaves_out: false,
        more: None,
    }
}

fn ct(zone: u16, nat: bool) -> Op {
    Op::Ct(Ct {
        zone,
        nat,
        mark: None,
    })
}

fn behind_ct(nat: bool) -> PathState {
    let first = tracking(&[ct(ZONE, nat), Op::Recirc(1)]);
    plan(&first, &PathState::default())
        .unwrap()
        .unwrap()
        .next
        .unwrap()
        .1
}

#[test]
fn what_chains_cannot_do_is_refused() {
    let root = PathState::default();
    let of = |ops: &[Op]| plan(&tracking(ops), &root).map(|p| p.is_some());
    assert_eq!(of(&[ct(5, true), Op::Recirc(1)]), Ok(true));
    let refused = |done: Result<bool, Why>, part: &str| {
        assert!(
            matches!(done, Err(Why::Action(text)) if text.contains(part)),
            "{done:?}"
        );
    };
    refused(of(&[ct(5, false), Op::Output(PortNo(2))]), "without a table");
    refused(
        of(&[Op::Output(PortNo(3)), ct(5, false), Op::Recirc(1)]),
        "after an output",
    );
    refused(of(&[Op::Ttl(3), ct(5, false), Op::Recirc(1)]), "not matched");
    let mut icmp = tracking(&[ct(5, false), Op::Recirc(1)]);
    icmp.key.nw_proto = 1;
    refused(plan(&icmp, &root).map(|p| p.is_some()), "another protocol");
    // A translated packet, tracked again in the same zone.
    let mut again = rule_like(1);
    again.ops = Box::new([ct(ZONE, false), Op::Recirc(2)]);
    refused(
        plan(&again, &behind_ct(true)).map(|p| p.is_some()),
        "translated before",
    );
    assert!(plan(&again, &behind_ct(false)).unwrap().is_some());
    // Packets that no established connection has.
    let mut new = rule_like(1);
    (new.key.ct_state, new.mask.ct_state) = (0x21, 0x21);
    assert_eq!(can_be_established(&new), Err(Why::NotEstablished));
    assert_eq!(plan(&new, &behind_ct(false)), Ok(None));
    let mut of_tcp = rule_like(1);
    of_tcp.key.nw_proto = 6;
    assert_eq!(
        plan(&of_tcp, &behind_ct(false)),
        Ok(None),
        "the chain has UDP only"
    );
}

/// The contents of `TCA_OPTIONS` of a filter of IPv4.
fn options(
    keys: Vec<netlink_packet_route::tc::TcFilterFlowerOption>,
    actions: Vec<netlink_packet_route::tc::TcAction>,
) -> Vec<u8> {
    let actions = actions::finish(actions, super::COOKIE).unwrap();
    let protocol = 0x0800;
    super::contents(Keys { protocol, keys }, actions, message::SKIP_HW)
}

#[test]
fn filters_with_connections_are_those_that_tc_sends() {
    let first = tracking(&[ct(ZONE, true), Op::Recirc(1)]);
    let plan_of = plan(&first, &PathState::default()).unwrap().unwrap();
    let keys = Keys::of(&plan_of.matched).unwrap().keys;
    let actions = vec![ct::track(40960, true), ct::goto_chain(0x10_0001)];
    assert_eq!(canonical(&options(keys, actions)), canonical(&golden("ct")));
    let mut established = rule_like(1);
    let (k, m) = (&mut established.key, &mut established.mask);
    (k.ct_state, m.ct_state) = (0x2a, 0x3a);
    (k.ct_mark, m.ct_mark) = (0x12, 0xff);
    (k.ct_label[15], m.ct_label[15]) = (7, 0xff);
    (k.ct_label[0], m.ct_label[0]) = (9, 0xff);
    let plan_of = plan(&established, &behind_ct(true)).unwrap().unwrap();
    let mut keys = Keys::of(&plan_of.matched).unwrap().keys;
    keys.extend(plan_of.conn.unwrap().keys());
    let sent = options(keys, vec![actions::redirect(2)]);
    assert_eq!(canonical(&sent), canonical(&golden("established")));
    let back = options(
        ConnMatch::default().keys(),
        vec![ct::track(40961, true), actions::redirect(2)],
    );
    assert_eq!(canonical(&back), canonical(&golden("back")));
    // The zones are read from the kernel's report.
    let m = FilterId {
        ifindex: 3,
        chain: 7,
        priority: 100,
        protocol: 3,
        handle: 1,
    };
    let actions = vec![
        ct::track(40961, true),
        ct::track(40965, true),
        actions::redirect(2),
    ];
    let m = m.filter(
        Vec::new(),
        actions::finish(actions, super::COOKIE).unwrap(),
        message::SKIP_HW,
    );
    let mut bytes = vec![0; m.buffer_len()];
    m.emit(&mut bytes);
    assert_eq!(message::ct_zones(&bytes), [40961, 40965]);
    assert_eq!(message::read(&bytes).unwrap().cookie, Some(super::COOKIE));
    assert!(!nlas(&bytes[20..]).is_empty());
}
