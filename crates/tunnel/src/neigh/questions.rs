//! Neighbours that are asked for.
//!
//! **Problem.** For a packet whose neighbour nobody knows, somebody has to ask. The packet waits; the worker
//! that sees it must not: a control thread sends the request.
//!
//! **Shape.** A worker says what it misses ([`Neighbours::ask`]). The question is open from then on: who
//! misses the same meanwhile says nothing new, so that one request goes out in [`OPEN_MS`]. A question that
//! is still without an answer at its end is told as changed: what was cached is translated again by the next
//! packet, or the first that waits, which asks again. So requests go on as long as packets do, and no longer.
//!
//! The list of what is open has a lock, which workers only try. What is to be sent waits in a queue without
//! one: the control thread wakes up in the middle of a translation that has more to ask.
//!
//! **Limits.** [`MAX_OPEN`] questions are open at a time; then, and where somebody else holds the list, the
//! answer is that nobody was asked, and the translation must not be cached.

use super::Neighbours;
use crossbeam_queue::SegQueue;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;

/// How long a question is open, ms.
pub const OPEN_MS: u64 = 1000;
/// Questions open at a time.
pub const MAX_OPEN: usize = 1024;

/// A question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// Number of the bridge, apart from all other bridges'.
    pub bridge: u64,
    /// Its port that asks.
    pub port: u32,
    /// The address that asks.
    pub source: IpAddr,
    /// The address that is asked for.
    pub target: IpAddr,
}

/// When it was asked, and what to look up at its end: bridge and address.
type Open = (u64, Box<str>, IpAddr);

/// See the module's text.
#[derive(Default)]
pub(super) struct Questions {
    /// By [`Neighbours::thing`].
    open: Mutex<HashMap<u64, Open>>,
    /// Not sent yet.
    waiting: SegQueue<Question>,
}

/// What became of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// It waits for a control thread to send it.
    New,
    /// It was asked a moment ago.
    Open,
    /// Too many are open, or somebody holds the list: ask with the next packet.
    Busy,
}

impl Neighbours {
    /// Asks for a neighbour on the bridge of that name. Never waits.
    pub fn ask(&self, bridge: &str, question: &Question, now_ms: u64) -> Asked {
        let thing = self.thing(bridge, question.target);
        let Some(mut open) = self.questions.open.try_lock() else {
            return Asked::Busy;
        };
        if open.contains_key(&thing) {
            return Asked::Open;
        }
        if open.len() >= MAX_OPEN {
            return Asked::Busy;
        }
        open.insert(thing, (now_ms, bridge.into(), question.target));
        self.questions.waiting.push(question.clone());
        Asked::New
    }

    /// Whether a neighbour is known or asked for. Never waits; where somebody holds the questions, it is not.
    pub fn wants(&self, bridge: &str, ip: IpAddr, now_ms: u64) -> bool {
        let is_open = || {
            let open = self.questions.open.try_lock();
            open.is_some_and(|o| o.contains_key(&self.thing(bridge, ip)))
        };
        self.find(bridge, ip, now_ms).is_some() || is_open()
    }

    /// The questions that are to be sent now.
    pub fn questions(&self) -> Vec<Question> {
        let n = self.questions.waiting.len();
        (0..n).map_while(|_| self.questions.waiting.pop()).collect()
    }

    /// Forgets what was asked: who misses it asks anew, those who wait for an answer too.
    pub(super) fn forget_questions(&self, bridge: Option<&str>) {
        for (thing, _) in self.take_questions(|(_, of, _)| bridge.is_none_or(|b| *b == **of)) {
            (self.tell)(thing);
        }
    }

    /// Ends questions that were open for long enough, and tells of those that have no answer.
    pub(super) fn end_questions(&self, now_ms: u64) {
        let ended = self.take_questions(|(asked_ms, ..)| now_ms >= asked_ms.saturating_add(OPEN_MS));
        for (thing, (_, bridge, ip)) in ended {
            let in_doubt = |bridge| self.system(bridge, ip).is_none_or(|known| known.in_doubt);
            if self.find(&bridge, ip, now_ms).is_none() && in_doubt(&bridge) {
                (self.tell)(thing);
            }
        }
    }

    /// Takes open questions. Whoever is told of them is told without the list's lock.
    fn take_questions(&self, which: impl Fn(&Open) -> bool) -> Vec<(u64, Open)> {
        let mut open = self.questions.open.lock();
        open.extract_if(|_, question| which(question)).collect()
    }
}
