//! The parts of the switch that forward packets, as control threads use them: translation, the engine and the
//! clock.

use crate::xlate::Pipeline;
use heddle_datapath_api::{Engine, Generations, Translate};
use heddle_sync::Clock;
use std::sync::{Arc, OnceLock};

/// Translation, the engine that forwards, and the clock of both.
pub struct Dataplane {
    pipeline: Arc<Pipeline>,
    engine: OnceLock<Arc<dyn Engine>>,
    clock: Arc<Clock>,
}

impl Dataplane {
    /// A pipeline without bridges, and no engine yet.
    pub(crate) fn new(clock: Arc<Clock>) -> Self {
        Self {
            pipeline: Arc::new(Pipeline::new(Arc::default())),
            engine: OnceLock::new(),
            clock,
        }
    }
    /// The translation half, for `Datapath::new`.
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }
    /// Names the engine that forwards for the bridges. Once.
    pub fn attach(&self, engine: Arc<dyn Engine>) {
        assert!(self.engine.set(engine).is_ok(), "an engine is attached once");
    }
    /// The attached engine.
    pub fn engine(&self) -> Option<Arc<dyn Engine>> {
        self.engine.get().cloned()
    }
    /// The clock for all times.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }
    /// Coarse clock, ms.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }
    /// Generation counters that cached translations depend on.
    pub fn generations(&self) -> &Generations {
        Translate::generations(&*self.pipeline)
    }
    /// Wakes the thread in [`Dataplane::wait_for_deferred_work`]. Never waits.
    pub fn wake_deferred_work(&self) {
        self.pipeline.underlay().deferred_work.ring();
    }
    /// Sleeps until there is such work, or [`Dataplane::wake_deferred_work`] is called.
    pub fn wait_for_deferred_work(&self) {
        self.pipeline.underlay().deferred_work.wait();
    }
}
