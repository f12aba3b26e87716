//! Tests of flows that packets add: they delay no thread, and evict others.

use super::super::bundle::Bundled;
use super::super::{Bridge, Event, EventSink, TableConfig};
use super::{flow_mod, flows, lab, nw_dst, secure};
use crate::model::{Learned, Learner};
use heddle_openflow::action::Learn;
use heddle_openflow::message::{FlowMod, FlowModCommand, Message};
use heddle_openflow::{Action, ErrorKind, Instruction, InstructionSet, Version};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Learns another flow at each event of a flow, as a packet would whose worker does not wait.
struct Storm {
    bridge: Arc<Bridge>,
    learned: AtomicUsize,
}

impl EventSink for Storm {
    fn events(&self, events: &[Event]) {
        for _ in events.iter().filter(|e| matches!(e, Event::FlowChanged(_))) {
            let n = self.learned.fetch_add(1, Ordering::Relaxed);
            if n < 1000 {
                let m = nw_dst(u32::try_from(n).unwrap(), 32);
                let flow = flow_mod(FlowModCommand::ModifyStrict, m, 7, 1);
                let learned = self.bridge.learn(&Arc::new(flow), 0);
                assert_eq!(learned, Learned::Later, "whoever tells of flows holds the mutex");
            }
        }
    }
}

#[test]
fn what_packets_leave_meanwhile_is_left_for_the_next_time() {
    let l = lab(secure());
    l.bridge.count_monitors(1);
    let storm = Arc::new(Storm {
        bridge: l.bridge.clone(),
        learned: 0.into(),
    });
    let sink: Arc<dyn EventSink> = storm.clone();
    l.bridge.subscribe(&sink);
    for n in 1..5 {
        l.add(&flow_mod(FlowModCommand::Add, nw_dst(n << 16, 32), 1, 2))
            .unwrap();
    }
    let learned = storm.learned.load(Ordering::Relaxed);
    assert!(
        (4..100).contains(&learned),
        "one change has kept its caller for {learned} flows"
    );
    let before = flows(&l.bridge).len();
    l.bridge.tick();
    assert!(flows(&l.bridge).len() > before, "but it is done");
}

/// A flow that a worker could not add at once is added when the lock is free again. No later change, and no
/// tick, is needed.
#[test]
fn what_is_left_is_done_by_who_waits_for_it() {
    let l = lab(secure());
    let flow = Arc::new(flow_mod(FlowModCommand::ModifyStrict, nw_dst(1, 32), 7, 1));
    let there = || l.bridge.has_learned(&flow);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let ready = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let control_thread = scope.spawn(|| {
            l.of.do_deferred_work();
            ready.wait();
            while !stop.load(Ordering::Relaxed) {
                std::thread::park();
                l.of.do_deferred_work();
            }
        });
        ready.wait();
        let state = l.bridge.state.lock();
        assert_eq!(l.bridge.learn(&flow, 0), Learned::Later);
        assert!(!there());
        drop(state);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !there() && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        control_thread.thread().unpark();
    });
    assert!(there(), "nobody has done it");
    // A flow that is there is refreshed, whichever thread holds the lock.
    let _state = l.bridge.state.lock();
    assert_eq!(l.bridge.learn(&flow, 0), Learned::Yes(true));
}

/// A thread that unlinks rules holds the tables for long, but not the bridge's state: a worker does not wait
/// for it either.
#[test]
fn a_worker_does_not_wait_for_who_tends_tables() {
    let l = lab(secure());
    let flow = Arc::new(flow_mod(FlowModCommand::ModifyStrict, nw_dst(1, 32), 7, 1));
    let tables_in_use = l.bridge.tables_in_use.read();
    assert_eq!(l.bridge.learn(&flow, 0), Learned::Later);
    // Control threads do not keep each other out.
    l.bridge.do_deferred_work();
    drop(tables_in_use);
    assert_eq!(l.bridge.learn(&flow, 0), Learned::Yes(true));
}

/// A worker does not wait for room in the queue: flows that do not fit are counted.
#[test]
fn a_full_queue_is_counted() {
    let l = lab(secure());
    let full = || {
        let mut all = crate::coverage::all();
        all.find(|(name, _)| *name == "learn_queue_full")
            .map_or(0, |(_, n)| n)
    };
    let before = full();
    let state = l.bridge.state.lock();
    for n in 0..1030 {
        let flow = flow_mod(FlowModCommand::ModifyStrict, nw_dst(n, 32), 7, 1);
        assert_eq!(l.bridge.learn(&Arc::new(flow), 0), Learned::Later);
    }
    drop(state);
    assert_eq!(full() - before, 6);
    l.bridge.tick();
    assert_eq!(flows(&l.bridge).len(), 1024);
}

/// Cached packets are credited in any order: the last packet decides, whichever is credited first.
#[test]
fn what_was_learned_last_stays() {
    for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
        let l = lab(secure());
        let flow = |port| Arc::new(flow_mod(FlowModCommand::ModifyStrict, nw_dst(1, 32), 7, port));
        let start = l.bridge.now_ms();
        let at = |port: u32| start + u64::from(port);
        assert_eq!(l.bridge.learn(&flow(9), 0), Learned::Yes(true));
        l.of.clock().warp(5000);
        for port in order {
            l.bridge.learn_again(&flow(port), 0, at(port));
        }
        assert_eq!(
            flows(&l.bridge)[0].instructions,
            flow(3).instructions,
            "{order:?}"
        );
        // A packet that is translated now is later than all of them.
        assert_eq!(l.bridge.learn(&flow(1), 0), Learned::Yes(true));
        l.bridge.learn_again(&flow(3), 0, at(3));
        assert_eq!(flows(&l.bridge)[0].instructions, flow(1).instructions);
    }
}

/// A bundle deletes the one rule that learns under a cookie, and adds another that learns under it. The flows
/// that the first one has learned are deleted. If the bundle adds before it deletes, one rule always learns
/// under the cookie, and the flows stay.
#[test]
fn learned_flows_go_between_two_rules_of_a_bundle() {
    let learner = |command, priority| {
        let learn = Action::Learn(Box::new(Learn {
            table: 103,
            cookie: 3,
            delete_learned: true,
            ..Learn::default()
        }));
        FlowMod {
            instructions: InstructionSet(vec![Instruction::Apply(vec![learn])]),
            ..flow_mod(command, nw_dst(7, 32), priority, 1)
        }
    };
    let (add, delete) = (FlowModCommand::Add, FlowModCommand::DeleteStrict);
    let bundles = [
        (vec![learner(delete, 1), learner(add, 2)], 0),
        (vec![learner(add, 2), learner(delete, 1)], 1),
        // The replacement continues to learn.
        (vec![learner(add, 1)], 1),
    ];
    for (bundle, left) in bundles {
        let l = lab(secure());
        l.add(&learner(add, 1)).unwrap();
        let mut learned = flow_mod(FlowModCommand::ModifyStrict, nw_dst(1, 32), 7, 1);
        (learned.table_id, learned.new_cookie) = (103, 3);
        assert_eq!(l.bridge.learn(&Arc::new(learned.clone()), 0), Learned::Yes(true));
        let entries = (0..).zip(bundle).map(|(xid, fm)| {
            let message = Message::FlowMod(Box::new(fm));
            (xid, Ok(Bundled::Message(Box::new(message))))
        });
        l.bridge.commit_bundle(Version::V13, 1, 3, entries).unwrap();
        let there = flows(&l.bridge).iter().filter(|f| f.table_id == 103).count();
        assert_eq!(there, left);
    }
}

/// A bundle that fails takes nothing away.
#[test]
fn a_failed_bundle_deletes_no_learned_flows() {
    let l = lab(secure());
    let learn = Action::Learn(Box::new(Learn {
        table: 103,
        cookie: 3,
        delete_learned: true,
        ..Learn::default()
    }));
    let mut fm = flow_mod(FlowModCommand::Add, nw_dst(7, 32), 1, 1);
    fm.instructions = InstructionSet(vec![Instruction::Apply(vec![learn])]);
    l.add(&fm).unwrap();
    let mut learned = flow_mod(FlowModCommand::ModifyStrict, nw_dst(1, 32), 7, 1);
    (learned.table_id, learned.new_cookie) = (103, 3);
    assert_eq!(l.bridge.learn(&Arc::new(learned), 0), Learned::Yes(true));
    fm.command = FlowModCommand::DeleteStrict;
    let delete = Message::FlowMod(Box::new(fm));
    let entries = [
        (1, Ok(Bundled::Message(Box::new(delete)))),
        (2, Err(ErrorKind::BadRequestBadType)),
    ];
    assert!(l.bridge.commit_bundle(Version::V13, 1, 3, entries).is_err());
    l.bridge.tick();
    assert_eq!(flows(&l.bridge).len(), 2);
}

proptest! {
    /// A full table evicts the flow that would have timed out first, whatever has come for it since.
    #[test]
    fn the_flow_that_would_time_out_first_goes(ages in proptest::collection::vec((0..40_u64, 0..3_u16), 1..40)) {
        let l = lab(secure());
        let table = TableConfig {
            name: None,
            flow_limit: Some(ages.len()),
            evict: true,
            groups: Vec::new(),
            prefixes: None,
        };
        l.bridge.configure_tables(BTreeMap::from([(0, table)]));
        let add = |n: usize, importance| {
            let mut fm = flow_mod(FlowModCommand::Add, nw_dst(u32::try_from(n).unwrap(), 32), 1, 1);
            (fm.hard_timeout, fm.importance, fm.new_cookie) = (100, importance, n as u64);
            l.bridge.flow_mod(Version::V14, &fm)
        };
        for (n, (_, importance)) in ages.iter().enumerate() {
            prop_assert_eq!(add(n, *importance), Ok(()));
        }
        l.bridge.tables[0].rules.for_each(l.bridge.current_version(), |e| {
            let n = usize::try_from(e.data.cookie).unwrap();
            e.data.modified_ms.fetch_add(ages[n].0 * 1000, Ordering::Relaxed);
        });
        let mut left: Vec<_> = ages.iter().enumerate().map(|(n, (age, importance))| (*importance, *age, n)).collect();
        left.sort();
        // New ones are worth most and stay.
        for (i, first) in left.iter().enumerate() {
            prop_assert_eq!(add(1000 + i, 9), Ok(()));
            let there = flows(&l.bridge);
            let goes = there.iter().all(|f| f.cookie != first.2 as u64);
            prop_assert!(goes && there.len() == ages.len(), "{:?} goes, {} are there", first, there.len());
        }
    }
}
