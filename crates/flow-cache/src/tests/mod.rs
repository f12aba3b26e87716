//! Tests of the cache as a whole.

mod guess;
mod twins;

use crate::burst::{KeyForm, LookupKeys, Run, RunProgram};
use crate::cache::{Cache, CacheParts};
use crate::compact::{CompactKey, context_mask};
use crate::program_table::Program;
use crate::records::Records;
use heddle_datapath_api::Action;
use heddle_flow::FlowKey;
use heddle_simd::hash::HashKey;

/// A program is its list of actions.
#[derive(PartialEq, Debug)]
pub(crate) struct Actions(Vec<Action>);

impl Program for Actions {
    fn compile(actions: &[Action]) -> Self {
        Self(actions.to_vec())
    }
}

/// A cache with at most `max_masks` masks per list, and the revalidator's half of it.
fn small_cache(max_masks: usize) -> (Cache<Actions>, Records<Actions>) {
    let (parts, records) = CacheParts::new(true, max_masks, HashKey::random());
    (Cache::new(parts, 16, 64).unwrap(), records)
}

/// A burst with one packet of each key.
struct Keys {
    runs: Vec<Run>,
    compact: Vec<CompactKey>,
    full: Vec<FlowKey>,
}

impl Keys {
    /// Makes a burst of these keys for this cache.
    fn of(cache: &mut Cache<Actions>, keys: &[FlowKey]) -> Self {
        let compact: Vec<_> = keys
            .iter()
            .map(|k| CompactKey::of(k, cache.origin_of(k.in_port, k.recirc_id)))
            .collect();
        let run = |((i, key), compact): ((u16, &FlowKey), &CompactKey)| {
            let mask = context_mask(compact.family());
            let has_context = key.words().iter().zip(mask.words()).any(|(w, o)| w & o != 0);
            Run {
                first: i,
                end: i + 1,
                form: if has_context {
                    KeyForm::Full(u8::try_from(i).unwrap())
                } else {
                    KeyForm::Compact
                },
                full: u8::MAX,
                program: RunProgram::UNKNOWN,
                bytes: 60,
                longest: 60,
            }
        };
        Self {
            runs: (0..).zip(keys).zip(&compact).map(run).collect(),
            compact,
            full: keys.to_vec(),
        }
    }
}

impl LookupKeys for Keys {
    fn runs(&self) -> &[Run] {
        &self.runs
    }
    fn keys(&self) -> &[CompactKey] {
        &self.compact
    }
    fn has_context(&self) -> bool {
        self.runs.iter().any(|run| run.form != KeyForm::Compact)
    }
    fn context(&self, r: usize) -> Option<&FlowKey> {
        match self.runs[r].form {
            KeyForm::Full(at) => self.full.get(usize::from(at)),
            _ => None,
        }
    }
}
