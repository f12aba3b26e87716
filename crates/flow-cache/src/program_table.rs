//! Programs by number: each list of actions of a worker's entries is compiled and stored once.
//!
//! Flows with a rule each have a cached translation each, since different rules are credited. But most of
//! these cached translations have the same actions. A packet that is forwarded reads its entry and the
//! program, and the programs of all entries are few lines of memory.

use crate::hash::Mixer;
use crate::numbered::Numbered;
use heddle_datapath_api::Action;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The number of a worker's program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProgramId(pub u32);

/// No program.
pub const NO_PROGRAM: ProgramId = ProgramId(u32::MAX);

/// A compiled list of actions.
pub trait Program: PartialEq + std::fmt::Debug + Send + Sync {
    /// Compiles a list.
    fn compile(actions: &[Action]) -> Self;
}

/// Actions with their program.
#[derive(Debug, PartialEq)]
pub struct CompiledActions<P: Program> {
    /// The list of actions.
    pub actions: Arc<[Action]>,
    /// The compiled list.
    pub program: P,
}

impl<P: Program> CompiledActions<P> {
    /// Compiles a list of actions.
    pub fn of(actions: &[Action]) -> Arc<Self> {
        Arc::new(Self {
            program: P::compile(actions),
            actions: actions.iter().cloned().collect(),
        })
    }
}

fn fingerprint(actions: &[impl Hash]) -> u64 {
    let mut h = Mixer::new(actions.len() as u64);
    actions.hash(&mut h);
    h.finish()
}

/// A worker's programs. Their users are cached translations.
#[derive(Debug)]
pub(crate) struct ProgramTable<P: Program>(Numbered<Arc<CompiledActions<P>>>);

impl<P: Program> Default for ProgramTable<P> {
    fn default() -> Self {
        Self(Numbered::default())
    }
}

impl<P: Program> ProgramTable<P> {
    #[inline]
    pub(crate) fn get(&self, n: ProgramId) -> Option<&Arc<CompiledActions<P>>> {
        self.0.get(n.0)
    }
    /// The number of the program of these actions, which gets one more user. `made` makes the program if it
    /// does not exist yet.
    pub(crate) fn retain(
        &mut self,
        actions: &[Action],
        made: impl FnOnce() -> Arc<CompiledActions<P>>,
    ) -> ProgramId {
        let hash = fingerprint(actions);
        let found = self.0.find(hash, |compiled| *compiled.actions == *actions);
        let n = found.unwrap_or_else(|| self.0.insert(hash, made()));
        self.0.retain(n);
        ProgramId(n)
    }
    /// Counts one cached translation less.
    pub(crate) fn release(&mut self, n: ProgramId) {
        if self.0.release(n.0) {
            self.0.remove(n.0);
        }
    }
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Actions;
    use heddle_datapath_api::PortNo;
    use proptest::prelude::*;

    proptest! {
        /// Compares the table with a list: equal actions have one number, and other actions have another,
        /// while they are in use.
        #[test]
        fn equal_actions_are_one(ops in prop::collection::vec((0_u32..5, 0_usize..3, any::<bool>()), 0..100)) {
            let (mut programs, mut list) = (ProgramTable::<Actions>::default(), Vec::<(ProgramId, Vec<Action>)>::new());
            for (port, n, hop) in ops {
                if hop && !list.is_empty() {
                    let (number, _) = list.swap_remove(port as usize % list.len());
                    programs.release(number);
                } else {
                    let output = |i: usize| Action::Output(PortNo(port + u32::try_from(i).unwrap()));
                    let actions: Vec<Action> = (0..n).map(output).collect();
                    let number = programs.retain(&actions, || CompiledActions::of(&actions));
                    list.push((number, actions));
                }
                for (number, actions) in &list {
                    prop_assert_eq!(&*programs.get(*number).expect("somebody has it").actions, &actions[..]);
                    for (other, theirs) in &list {
                        prop_assert_eq!(number == other, actions == theirs);
                    }
                }
            }
            list.drain(..).for_each(|(n, _)| programs.release(n));
            prop_assert_eq!(programs.len(), 0);
        }
    }
}
