//! The flow cache, with this datapath's programs.

use crate::exec::program::Program;
use heddle_datapath_api::Action;

impl heddle_flow_cache::Program for Program {
    fn compile(actions: &[Action]) -> Self {
        Self::compile(actions)
    }
}

pub(crate) type CompiledActions = heddle_flow_cache::CompiledActions<Program>;
pub(crate) type Cache = heddle_flow_cache::Cache<Program>;
pub(crate) type CachedTranslation = heddle_flow_cache::CachedTranslation<Program>;
pub(crate) type RevalidatorFindings = heddle_flow_cache::RevalidatorFindings<Program>;
pub(crate) type Records = heddle_flow_cache::Records<Program>;
