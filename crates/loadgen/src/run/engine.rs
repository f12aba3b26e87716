//! The loop and its phases.

use super::{Endpoint, Link, Port};
use crate::error::RunError;
use crate::load::{Load, Setup, Timing};
use crate::report::{Latency, Outage, Outcome, PairOutcome};
use crate::traffic::{Phase, Received, Sent};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;
use hdrhistogram::Histogram;
use heddle_sys::Tsc;
use std::sync::Arc;

/// Turns of the loop between two checks of the sockets.
const WATCH: u64 = 4096;
/// Timeout of a port's back end at the start.
const START: Duration = Duration::from_secs(60);
/// Shortest pause of reception that is reported, milliseconds.
const GAP_MS: u64 = 5;
/// Maximum number of reported pauses: the longest.
const MAX_GAPS: usize = 16;

/// Steps of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The measured phase begins.
    Measuring,
    /// The measured phase has ended; no more packets are sent.
    Measured,
}

/// All ports, driven by one thread.
#[derive(Debug)]
pub struct Engine {
    ports: Vec<Port>,
    /// Whether pairs have loads of their own, and are reported one by one.
    pairs: bool,
    /// Whether a back end that has gone may come back; otherwise its absence is an error.
    reconnect: bool,
    /// When packets came last, in cycles.
    last: u64,
    gaps: Vec<Outage>,
    started: u64,
    /// Set: senders stop.
    enough: Arc<AtomicBool>,
}

impl Engine {
    /// Connects all ports, and announces their addresses to learning switches. The first load is that of
    /// ports 0 and 1, the second that of ports 2 and 3, …, the last one that of all others.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn connect(endpoints: &[Endpoint], setup: &Setup, loads: &[Load]) -> Result<Self, RunError> {
        Self::connect_with_progress(endpoints, setup, loads, &mut |_| ())
    }
    /// Connects as [`Engine::connect`] does; calls `tell` with the name of what it waits for.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn connect_with_progress(
        endpoints: &[Endpoint],
        setup: &Setup,
        loads: &[Load],
        tell: &mut dyn FnMut(&str),
    ) -> Result<Self, RunError> {
        let at = |port| move |error| RunError::Session { port, error };
        // Open all sockets first: a back end may wait for one while this program waits for another.
        let mut links = Vec::new();
        for (i, e) in endpoints.iter().enumerate() {
            links.push(Link::new(e.clone()).map_err(at(i))?);
        }
        let mut ports = Vec::new();
        for (i, mut link) in links.into_iter().enumerate() {
            let config = setup.nic(load_of(loads, i)?.shape);
            let nic = link
                .open(&config, START, &mut |text| tell(&format!("port {i}: {text}")))
                .map_err(at(i))?;
            ports.push(Port::new(nic, Some(link)));
        }
        Self::over(ports, setup, loads)
    }
    /// Takes over ports whose device side is running; loads as for [`Engine::connect`].
    ///
    /// # Errors
    /// [`RunError`].
    pub fn over(ports: Vec<Port>, setup: &Setup, loads: &[Load]) -> Result<Self, RunError> {
        for load in loads {
            load.check(setup)?;
        }
        if ports.is_empty() || ports.len() * usize::from(setup.pairs) > 255 {
            return Err(RunError::Impossible(format!("{} ports", ports.len())));
        }
        let now = Tsc::now();
        let mut engine = Self {
            ports,
            pairs: loads.len() > 1,
            reconnect: false,
            last: now,
            gaps: Vec::new(),
            started: now,
            enough: Arc::default(),
        };
        engine.announce()?;
        let count = engine.ports.len();
        for (i, port) in engine.ports.iter_mut().enumerate() {
            let load = load_of(loads, i)?;
            let shares = |p: usize| {
                p / 2 == i / 2 || loads.len() == 1 || (p / 2 >= loads.len() - 1 && i / 2 >= loads.len() - 1)
            };
            let sending = (0..count).filter(|&p| shares(p) && load.target(p, count).is_some());
            port.load(load, setup, i, count, sending.count());
        }
        Ok(engine)
    }
    fn announce(&mut self) -> Result<(), RunError> {
        for (i, port) in self.ports.iter_mut().enumerate() {
            port.announce(u8::try_from(i).unwrap_or(u8::MAX));
        }
        let end = Tsc::now() + Tsc::hz() * START.as_secs();
        for (i, port) in self.ports.iter_mut().enumerate() {
            loop {
                let taken = port
                    .announced()
                    .map_err(|error| RunError::Ring { port: i, error })?;
                if taken {
                    break;
                }
                if Tsc::now() > end {
                    return Err(RunError::Silent(format!(
                        "the switch takes nothing from port {i}"
                    )));
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }
    /// From now on the loop waits for a back end that has gone, and the outcome contains the pauses.
    pub fn reconnecting(&mut self) {
        self.reconnect = true;
    }
    /// Sends only until `enough` is set.
    pub fn until(&mut self, enough: Arc<AtomicBool>) {
        self.enough = enough;
    }
    /// The ports.
    pub fn ports_mut(&mut self) -> &mut [Port] {
        &mut self.ports
    }
    fn totals(&self) -> (Sent, Received) {
        self.ports
            .iter()
            .fold((Sent::default(), Received::default()), |(s, r), p| {
                (s.plus(p.sent()), r.plus(p.received()))
            })
    }

    /// Runs for `cycles`. With `quiet` it ends earlier: when all sent packets have arrived, or when all are
    /// taken and none has arrived for `quiet` cycles.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn phase(&mut self, cycles: u64, send: bool, quiet: Option<u64>) -> Result<Phase, RunError> {
        let start = Tsc::now();
        let (sent0, received0) = self.totals();
        let (mut now, mut busy, mut turns, mut last) = (start, 0, 0_u64, start);
        let mut settled = false;
        while now - start < cycles {
            let mut moved = 0;
            for (i, port) in self.ports.iter_mut().enumerate() {
                if port.link.as_ref().is_some_and(|l| !l.is_up()) {
                    continue;
                }
                let (sent, taken) = port
                    .turn(now, send)
                    .map_err(|error| RunError::Ring { port: i, error })?;
                moved += sent + taken;
                if taken > 0 {
                    last = now;
                }
            }
            let then = now;
            now = Tsc::now();
            if moved > 0 {
                busy += now - then;
            }
            turns += 1;
            if turns.is_multiple_of(WATCH) {
                self.watch()?;
                if send && self.enough.load(Relaxed) {
                    break;
                }
            }
            if self.reconnect {
                self.note_gap(last);
            }
            let soon = Tsc::hz() / 200;
            if quiet.is_some_and(|q| now - last > q.min(soon)) {
                // Once all is taken, one more turn: the last taken packets may have arrived after this one.
                if settled && moved == 0 && quiet.is_some_and(|q| now - last > q || self.has_all()) {
                    break;
                }
                settled = self.settled()?;
            }
        }
        for (i, port) in self.ports.iter_mut().enumerate() {
            port.reap().map_err(|error| RunError::Ring { port: i, error })?;
        }
        let (sent, received) = self.totals();
        Ok(Phase {
            cycles: Tsc::now() - start,
            busy,
            turns,
            sent: sent.since(sent0),
            received: received.since(received0),
        })
    }
    /// Whether the number of received packets has reached that of sent ones.
    fn has_all(&self) -> bool {
        let (sent, received) = self.totals();
        received.packets >= sent.posted
    }
    fn settled(&mut self) -> Result<bool, RunError> {
        let mut all = true;
        for (i, port) in self.ports.iter_mut().enumerate() {
            all &= port.reap().map_err(|error| RunError::Ring { port: i, error })?;
        }
        Ok(all)
    }
    fn note_gap(&mut self, last: u64) {
        if last <= self.last {
            return;
        }
        let ms = (last - self.last) * 1000 / Tsc::hz();
        let at_ms = (self.last.saturating_sub(self.started)) * 1000 / Tsc::hz();
        self.last = last;
        if ms >= GAP_MS {
            keep_longest(&mut self.gaps, Outage { at_ms, ms });
        }
    }
    /// Checks the connections.
    #[cold]
    fn watch(&mut self) -> Result<(), RunError> {
        let reconnect = self.reconnect;
        for (i, port) in self.ports.iter_mut().enumerate() {
            let Some(link) = &mut port.link else { continue };
            if let Some(error) = link.watch()
                && !reconnect
            {
                return Err(RunError::Session { port: i, error });
            }
            if !link.is_up() && reconnect {
                // A back end that connects and fails may try again: it may have been killed once more.
                let _ = link.renew(&port.nic);
            }
        }
        Ok(())
    }

    /// Runs all phases of a measurement.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn measure(&mut self, timing: &Timing) -> Result<Outcome, RunError> {
        self.measure_with_progress(timing, &mut |_| ())
    }
    /// Measures as [`Engine::measure`] does. Calls `tell` when the measured phase begins and ends, so that
    /// the switch's counters can be cleared and read.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn measure_with_progress(
        &mut self,
        timing: &Timing,
        tell: &mut dyn FnMut(Step),
    ) -> Result<Outcome, RunError> {
        let hz = Tsc::hz();
        let cycles = |d: Duration| Tsc::from_us(u64::try_from(d.as_micros()).unwrap_or(u64::MAX / hz));
        let before = self.totals();
        self.phase(cycles(timing.warm_up), true, None)?;
        for port in &mut self.ports {
            for r in &mut port.receivers {
                r.forget_latency();
            }
        }
        let start: Vec<_> = self.ports.iter().map(|p| (p.sent(), p.received())).collect();
        tell(Step::Measuring);
        let main = self.phase(cycles(timing.measure), true, None)?;
        tell(Step::Measured);
        let latency = latency(&self.ports);
        let pairs = self.pair_outcomes(&start, &main);
        self.phase(cycles(timing.drain), false, Some(cycles(timing.quiet)))?;
        let after = self.totals();
        let (all_sent, all_received) = (after.0.since(before.0), after.1.since(before.1));
        let mut outcome = Outcome::of(&main, hz);
        outcome.latency = latency.map(|h| Latency::of(&h, hz));
        outcome.pairs = pairs;
        outcome.sent_total = all_sent.posted;
        outcome.received_total = all_received.packets;
        outcome.corrupt = all_received.corrupt;
        outcome.reordered = all_received.reordered;
        outcome.read = all_received.read;
        outcome.outages = core::mem::take(&mut self.gaps);
        Ok(outcome)
    }
    /// Results of each pair, from its ports' counters at the start of a phase.
    fn pair_outcomes(&self, start: &[(Sent, Received)], phase: &Phase) -> Vec<PairOutcome> {
        if !self.pairs {
            return Vec::new();
        }
        let pairs = self.ports.chunks(2).zip(start.chunks(2));
        pairs
            .map(|(ports, start)| {
                let mut own = Phase {
                    cycles: phase.cycles,
                    ..Phase::default()
                };
                for (p, (sent, received)) in ports.iter().zip(start) {
                    own.sent = own.sent.plus(p.sent().since(*sent));
                    own.received = own.received.plus(p.received().since(*received));
                }
                PairOutcome::of(&own, latency(ports), Tsc::hz())
            })
            .collect()
    }
    /// Ends all sessions as guests that shut down do.
    ///
    /// # Errors
    /// [`RunError::Session`].
    pub fn close(mut self) -> Result<(), RunError> {
        for (i, port) in self.ports.iter_mut().enumerate() {
            if let Some(link) = &mut port.link {
                link.close(&port.nic)
                    .map_err(|error| RunError::Session { port: i, error })?;
            }
        }
        Ok(())
    }
}

/// Adds a pause; if there are too many, removes the shortest one.
fn keep_longest(gaps: &mut Vec<Outage>, new: Outage) {
    gaps.push(new);
    if gaps.len() > MAX_GAPS
        && let Some((shortest, _)) = gaps.iter().enumerate().min_by_key(|(_, g)| g.ms)
    {
        gaps.remove(shortest);
    }
}

/// The load of port `i`: that of its pair, or the last one.
pub(crate) fn load_of(loads: &[Load], i: usize) -> Result<&Load, RunError> {
    let load = loads.get(i / 2).or(loads.last());
    load.ok_or_else(|| RunError::Impossible("nothing to send".into()))
}

/// Sum of the latencies of all receivers of these ports.
fn latency(ports: &[Port]) -> Option<Histogram<u64>> {
    let mut all: Option<Histogram<u64>> = None;
    for r in ports.iter().flat_map(|p| &p.receivers) {
        match &mut all {
            Some(h) => h.add(r.latency()).ok()?,
            None => all = Some(r.latency().clone()),
        }
    }
    all.filter(|h| !h.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pauses_are_kept_in_order() {
        let mut gaps = Vec::new();
        for i in 0..200 {
            let ms = if i == 77 || i == 150 { 1000 + i } else { i % 50 };
            keep_longest(&mut gaps, Outage { at_ms: i, ms });
        }
        assert_eq!(gaps.len(), MAX_GAPS);
        assert!(gaps.is_sorted_by_key(|g| g.at_ms));
        let long: Vec<u64> = gaps
            .iter()
            .map(|g| g.at_ms)
            .filter(|at| [77, 150].contains(at))
            .collect();
        assert_eq!(long, [77, 150]);
    }
}
