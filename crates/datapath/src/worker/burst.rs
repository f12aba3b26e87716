//! One burst: parse all, look all up, run all programs, send, give the buffers back.
//!
//! The stages run over the whole burst each, so that their costs are measured with two counter reads per stage and burst.
//! Counters of entries are written in the lookup stage, that is before any packet of the burst leaves: who
//! received a packet finds it counted.

use super::{Choice, Worker};
use crate::cache::Level;
use crate::drops::DropKind;
use crate::exec::{Exec, Live, Meta};
use crate::parse::{MIN_FRAME, parse};
use crate::program::Program;
use heddle_packet::BURST;
use heddle_sys::Tsc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Lookup results of one burst, added to the worker's counters at its end.
#[derive(Default)]
struct Hits {
    l0: u64,
    l1: u64,
    l2: u64,
}

/// A run of packets with equal keys.
#[derive(Default)]
struct Run {
    packets: u64,
    bytes: u64,
}

impl Worker {
    /// Forwards the packets in the scratch burst. `given`: run this program on them instead of looking them up.
    /// `t0` is the cycle counter now; returns what it is at the end.
    pub(super) fn burst(&mut self, given: Option<&Arc<Program>>, t0: u64) -> u64 {
        let now_ms = self.shared.clock.now_ms();
        self.now_ms = now_ms;
        self.parse_all();
        let t1 = Tsc::now();
        let translated = match given {
            Some(program) => {
                self.scratch.once.push(Arc::clone(program));
                let n = self.scratch.burst.len();
                self.scratch.choices.extend((0..n).map(|_| Choice::Once(0)));
                0
            }
            None => self.lookup_all(now_ms),
        };
        let t2 = Tsc::now();
        self.execute_all();
        let t3 = Tsc::now();
        self.send_all();
        let t4 = Tsc::now();
        let c = &self.counters;
        c.bursts.add(1);
        c.cycles_parse.add(t1.wrapping_sub(t0));
        c.cycles_translate.add(translated);
        c.cycles_lookup
            .add(t2.wrapping_sub(t1).saturating_sub(translated));
        c.cycles_exec.add(t3.wrapping_sub(t2));
        c.cycles_tx.add(t4.wrapping_sub(t3));
        if now_ms.saturating_sub(self.sorted_ms) >= super::SORT_MS {
            self.sorted_ms = now_ms;
            self.cache.sort();
            self.publish_rx_drops();
        }
        t4
    }

    fn parse_all(&mut self) {
        let s = &mut self.scratch;
        s.metas.clear();
        s.choices.clear();
        s.once.clear();
        let vlan_limit = self.shared.vlan_limit.load(Relaxed);
        for ((p, key), compact) in s
            .burst
            .iter_mut()
            .zip(s.keys.iter_mut())
            .zip(s.compact.iter_mut())
        {
            let mut meta = parse(p, vlan_limit, key);
            meta.key = u8::try_from(s.metas.len()).expect("a burst has at most 32 packets");
            s.metas.push(meta);
            *compact = self.compactor.of(key).map(|c| (c, c.hash(self.shared.hash_key)));
        }
    }

    /// Chooses a program for each packet; returns the cycles that translation took.
    fn lookup_all(&mut self, now_ms: u64) -> u64 {
        let any = self.shared.translate.generations().any();
        let n = self.scratch.burst.len();
        let mut hits = Hits::default();
        let mut run = Run::default();
        let mut translated = 0;
        for i in 0..n {
            let len = self.scratch.burst[i].len();
            if len < MIN_FRAME {
                self.drop_runt(i);
                self.finish_run(i, &mut run, now_ms);
                self.scratch.choices.push(Choice::Gone);
                continue;
            }
            let repeats = run.packets > 0 && self.same_as_before(i);
            if repeats {
                hits.l0 += 1;
                run.packets += 1;
                run.bytes += len as u64;
                let before = self.scratch.choices[i - 1];
                self.scratch.choices.push(before);
                continue;
            }
            self.finish_run(i, &mut run, now_ms);
            let compact = self.scratch.compact[i].as_ref();
            // A packet that was translated for is counted and credited already. It starts no run either: what the
            // next packet finds may be this packet's new entry.
            let (choice, to_count) = match self.cache.get(&self.scratch.keys[i], compact) {
                Some((r, level)) => {
                    match level {
                        Level::L1 => hits.l1 += 1,
                        Level::L2 => hits.l2 += 1,
                    }
                    if self.cache.entry(r).is_some_and(|e| e.valid_at(any)) {
                        (Choice::Entry(r), true)
                    } else {
                        let t = Tsc::now();
                        let c = self.revalidate(r, i, any, now_ms);
                        translated += Tsc::now().wrapping_sub(t);
                        c
                    }
                }
                None => {
                    let t = Tsc::now();
                    let c = self.miss(i, any, now_ms);
                    translated += Tsc::now().wrapping_sub(t);
                    (c, false)
                }
            };
            if to_count {
                run = Run {
                    packets: 1,
                    bytes: len as u64,
                };
            }
            self.scratch.choices.push(choice);
        }
        self.finish_run(n, &mut run, now_ms);
        let c = &self.counters;
        c.packets.add(n as u64);
        c.l0_hits.add(hits.l0);
        c.l1_hits.add(hits.l1);
        c.l2_hits.add(hits.l2);
        c.l2_probes.add(self.cache.take_probes());
        translated
    }

    fn drop_runt(&self, i: usize) {
        self.counters.drops.add(DropKind::RxInvalid, 1);
        if let Some(c) = self.tx.counters(self.scratch.burst[i].in_port) {
            c.rx_errors.add(1);
        }
    }

    /// Whether packet `i`'s key equals the one before.
    fn same_as_before(&self, i: usize) -> bool {
        let s = &self.scratch;
        match (&s.compact[i], &s.compact[i - 1]) {
            (Some((a, ha)), Some((b, hb))) => ha == hb && a == b,
            (None, None) => s.keys[i] == s.keys[i - 1],
            _ => false,
        }
    }

    /// Counts the run that ended before packet `end` on its entry.
    fn finish_run(&mut self, end: usize, run: &mut Run, now_ms: u64) {
        if run.packets == 0 {
            return;
        }
        let r = std::mem::take(run);
        // Keys of a run are equal, so one packet's flags are all packets' flags.
        if let Some(Choice::Entry(slot)) = end.checked_sub(1).and_then(|i| self.scratch.choices.get(i))
            && let Some(e) = self.cache.entry(*slot)
        {
            e.count(r.packets, r.bytes, now_ms, self.scratch.keys[end - 1].tcp_flags);
        }
    }

    fn execute_all(&mut self) {
        let s = &mut self.scratch;
        let mut exec = Exec {
            live: Live {
                burst: &mut s.burst,
                copies: &mut s.copies,
            },
            keys: &*s.keys,
            pool: &mut self.pool,
            tx: &mut self.tx,
            upcalls: &mut self.upcalls,
            drops: &self.counters.drops,
        };
        let metas: &[Meta] = &s.metas;
        for ((i, choice), meta) in (0..).zip(&s.choices).zip(metas) {
            match choice {
                Choice::Entry(r) => {
                    if let Some(e) = self.cache.entry(*r) {
                        exec.run(&e.program, i, *meta);
                    }
                }
                Choice::Once(n) => {
                    if let Some(p) = s.once.get(usize::from(*n)) {
                        exec.run(p, i, *meta);
                    }
                }
                Choice::Gone => {}
            }
        }
    }

    fn send_all(&mut self) {
        let s = &mut self.scratch;
        let live = Live {
            burst: &mut s.burst,
            copies: &mut s.copies,
        };
        self.tx.flush(&live, &mut self.pool, &self.counters.drops);
        self.counters.tx_batches.add(std::mem::take(&mut self.tx.batches));
        self.counters.tx_packets.add(std::mem::take(&mut self.tx.sent));
        self.upcalls.announce();
        debug_assert!(s.burst.len() <= BURST);
        for p in s.burst.drain(..).chain(s.copies.drain(..)) {
            self.pool.put(p);
        }
        self.reap();
    }
}
