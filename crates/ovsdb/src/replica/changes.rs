//! A log of changed rows, for readers that look only at changes.
//!
//! The log is bounded. A reader that falls behind it is notified to look at everything again; no change is
//! silently lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use uuid::Uuid;

/// Kind of a change to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// The row is new.
    Insert,
    /// Some of its columns changed.
    Modify,
    /// The row was deleted.
    Delete,
}

/// One changed row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Table of the row.
    pub table: Arc<str>,
    /// UUID of the row.
    pub uuid: Uuid,
    /// Kind of the change.
    pub kind: ChangeKind,
    /// For `Modify`, the columns that changed; empty otherwise. By them, a reader can pass over its own
    /// writes of status.
    pub columns: Vec<Arc<str>>,
}

impl Change {
    /// Whether a column other than `own` changed, or the row was inserted or deleted.
    pub fn touches_other_than(&self, own: &[&str]) -> bool {
        self.kind != ChangeKind::Modify || self.columns.iter().any(|c| !own.contains(&&**c))
    }
}

/// The latest changes, each with the sequence number of the replica's state that it led to.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    entries: VecDeque<(u64, Change)>,
    /// Changes up to and including this number are no longer all in the log.
    floor: u64,
    cap: usize,
}

impl ChangeLog {
    pub(crate) fn new(cap: usize) -> ChangeLog {
        ChangeLog {
            entries: VecDeque::new(),
            floor: 0,
            cap: cap.max(1),
        }
    }

    /// Adds the changes of one update; `seqno` is above that of every earlier call.
    pub(crate) fn push(&mut self, seqno: u64, changes: Vec<Change>) {
        if changes.len() > self.cap {
            self.entries.clear();
            self.floor = seqno;
            return;
        }
        self.entries.extend(changes.into_iter().map(|c| (seqno, c)));
        // An update leaves the log whole: half of one would pass for all of it.
        while self.entries.len() > self.cap {
            let Some((oldest, _)) = self.entries.pop_front() else {
                break;
            };
            self.floor = oldest;
        }
        while self.entries.front().is_some_and(|(seq, _)| *seq <= self.floor) {
            self.entries.pop_front();
        }
    }

    /// Rows that changed after the state `since`, each once; `None` if the log no longer reaches back so far.
    pub(crate) fn since(&self, since: u64) -> Option<Vec<Change>> {
        if since < self.floor {
            return None;
        }
        let first = self.entries.partition_point(|(seq, _)| *seq <= since);
        Some(coalesce(self.entries.iter().skip(first).map(|(_, c)| c)))
    }
}

/// Folds the changes of each row into one, in the order in which rows first appear.
fn coalesce<'a>(changes: impl Iterator<Item = &'a Change>) -> Vec<Change> {
    let mut out: Vec<Option<Change>> = Vec::new();
    let mut place: BTreeMap<(&'a str, Uuid), usize> = BTreeMap::new();
    for change in changes {
        let index = *place.entry((&change.table, change.uuid)).or_insert_with(|| {
            out.push(None);
            out.len() - 1
        });
        if let Some(slot) = out.get_mut(index) {
            *slot = fold(slot.take(), change);
        }
    }
    out.into_iter().flatten().collect()
}

fn fold(earlier: Option<Change>, later: &Change) -> Option<Change> {
    let Some(mut earlier) = earlier else {
        return Some(later.clone());
    };
    match (earlier.kind, later.kind) {
        (ChangeKind::Insert, ChangeKind::Delete) => None,
        (ChangeKind::Insert, _) => Some(earlier),
        (ChangeKind::Modify, ChangeKind::Modify) => {
            for column in &later.columns {
                if !earlier.columns.contains(column) {
                    earlier.columns.push(column.clone());
                }
            }
            Some(earlier)
        }
        // A row that was deleted and inserted again under its UUID may differ in every column.
        (ChangeKind::Delete, ChangeKind::Insert) => Some(Change {
            kind: ChangeKind::Insert,
            ..later.clone()
        }),
        (_, _) => Some(later.clone()),
    }
}
