//! The steps of a move: changes to the connection tracker.

use std::collections::BTreeMap;

use heddle_conntrack::Conntrack;
use heddle_conntrack::scan::Seen;
use heddle_conntrack::transfer::{ConnCopy, Imported};
use heddle_migration::connection::{Chunk, Connections};

use super::{Role, Session};

/// Records in one scan. A scan begins only if a chunk has room for this number of connections.
const BATCH: u32 = 1024;
/// Maximum number of records that one request reads.
const MAX_RECORDS: u32 = 1 << 18;
/// Maximum number of refused connections that a reply shows.
const MAX_EXAMPLES: usize = 5;

/// A part of the port's connections.
pub(crate) struct Copied {
    /// The content of a section of the file.
    pub(crate) content: Vec<u8>,
    pub(crate) connections: u32,
    /// Connections that the format of the file does not allow.
    pub(crate) left_out: u32,
    /// Index of the next record; `None`: all were read.
    pub(crate) next: Option<u32>,
}

/// Copies the port's connections from record `at` on, up to [`MAX_RECORDS`] or a full section.
pub(crate) fn copy(tracker: &Conntrack, session: &Session, now_ms: u64, at: u32) -> Copied {
    let addresses = session.selection.bits();
    let (mut chunk, mut left_out) = (Chunk::default(), 0);
    let mut next = Some(at);
    let end = at.saturating_add(MAX_RECORDS);
    while let Some(from) = next.filter(|from| *from < end && chunk.has_room(BATCH)) {
        next = tracker.scan(now_ms, from, BATCH, |seen| {
            if let Some(zone) = session.selection.position(seen, &addresses)
                && !chunk.add(zone, &seen.copy())
            {
                left_out += 1;
            }
        });
        // Lets a worker on this processor run.
        std::thread::yield_now();
    }
    let connections = chunk.len();
    session.add(&[("exported".to_owned(), connections.into())].into());
    Copied {
        content: chunk.content(),
        connections,
        left_out,
        next,
    }
}

/// Outcome of the import of one section.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ImportOutcome {
    /// Number of imported connections by kind.
    pub(crate) taken: BTreeMap<String, u64>,
    /// Number of refused connections by reason.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Some refused connections, in the form of `dpctl/dump-conntrack`, with the reason.
    pub(crate) examples: Vec<String>,
}

impl ImportOutcome {
    fn refuse(&mut self, why: &str, c: &ConnCopy) {
        *self.refused.entry(why.to_owned()).or_default() += 1;
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(format!(
                "proto={},orig=({}),reply=({}): {why}",
                c.orig.proto, c.orig, c.reply
            ));
        }
    }
}

fn outcome(how: Imported) -> &'static str {
    match how {
        Imported::New => "new",
        Imported::Renewed => "renewed",
        Imported::Replaced => "replaced",
        Imported::InUse => "in use",
    }
}

/// Imports the connections of one section of a file. `policy`: name of the timeout policy of a zone.
pub(crate) fn import(
    tracker: &Conntrack,
    session: &Session,
    now_ms: u64,
    content: &[u8],
    policy: impl Fn(u16) -> Option<std::sync::Arc<str>>,
) -> Result<ImportOutcome, String> {
    let mut done = ImportOutcome::default();
    let addresses = session.selection.bits();
    for one in Connections::new(content).map_err(|e| e.to_string())? {
        let (position, c) = one.map_err(|e| e.to_string())?;
        let zone = match session.mapping.get(usize::from(position)) {
            Some(Ok(zone)) => zone,
            Some(Err(why)) => {
                done.refuse(why, &c);
                continue;
            }
            None => return Err("the file is not valid: a zone without a name".to_owned()),
        };
        if !zone.whole && !addresses.iter().any(|(ipv6, addr)| c.has_address(*ipv6, *addr)) {
            done.refuse(&format!("zone {}: no address of the port", zone.name), &c);
            continue;
        }
        let owner = (!zone.whole).then_some(addresses.as_slice());
        match tracker.import(
            now_ms,
            zone.zone,
            policy(zone.zone).as_deref(),
            &c,
            session.live,
            owner,
        ) {
            Ok(how) => *done.taken.entry(outcome(how).to_owned()).or_default() += 1,
            Err(why) => done.refuse(&format!("zone {}: {why}", zone.name), &c),
        }
    }
    session.add(&done.taken);
    let refused: u64 = done.refused.values().sum();
    if refused > 0 {
        session.add(&[("refused".to_owned(), refused)].into());
    }
    Ok(done)
}

/// Calls `step` with the first record of each part until it returns no next one.
fn each_part(mut step: impl FnMut(u32) -> Option<u32>) {
    let mut at = Some(0);
    while let Some(from) = at {
        at = step(from);
        std::thread::yield_now();
    }
}

/// Ends the port's connections of which `is` is true. Returns their number.
fn end_all(tracker: &Conntrack, session: &Session, now_ms: u64, is: impl Fn(&Seen<'_>) -> bool) -> usize {
    let addresses = session.selection.bits();
    let mut ended = 0;
    each_part(|at| {
        let (n, next) = tracker.end_where(now_ms, at, BATCH, |seen| {
            is(seen) && session.selection.position(seen, &addresses).is_some()
        });
        ended += n;
        next
    });
    ended
}

/// Finishes a move. The source ends the port's connections; the target checks their TCP windows as usual
/// again. Returns the number of these connections.
pub(crate) fn finish(tracker: &Conntrack, session: &Session, now_ms: u64) -> usize {
    if session.role == Role::Source {
        return end_all(tracker, session, now_ms, |_| true);
    }
    settle_all(tracker, session, now_ms)
}

/// Returns the number of the port's connections that were imported.
fn settle_all(tracker: &Conntrack, session: &Session, now_ms: u64) -> usize {
    let addresses = session.selection.bits();
    let mut settled = 0;
    each_part(|at| {
        tracker.scan(now_ms, at, BATCH, |seen| {
            if seen.is_imported() && session.selection.position(seen, &addresses).is_some() {
                seen.settle();
                settled += 1;
            }
        })
    });
    settled
}

/// Gives a move up. The source keeps all connections. The target ends the imported ones, except those that
/// it had before: the guest may be here, and a file was imported again. Returns the number of ended
/// connections.
pub(crate) fn abort(tracker: &Conntrack, session: &Session, now_ms: u64) -> usize {
    match session.role {
        Role::Source => 0,
        Role::Target => {
            let ended = end_all(tracker, session, now_ms, |seen| {
                seen.is_imported() && !seen.was_here()
            });
            settle_all(tracker, session, now_ms);
            ended
        }
    }
}
