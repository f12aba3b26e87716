//! The parts of the switch that every bridge uses and none owns.

use std::sync::Arc;

use heddle_datapath_api::PortNo;
use heddle_offload::Marks;
use heddle_port::Receivers;

use super::claims::Claims;
use super::globals::Globals;
use super::guests::Guests;
use super::kinds;
use super::offload_choice::Diverter;
use super::taps::Taps;
use crate::switch::Switch;

/// The parts, for bridges to read. Ports open their devices with them.
pub(super) struct Environment {
    pub(super) switch: Arc<Switch>,
    /// Settings of the whole switch.
    pub(super) globals: Globals,
    pub(super) taps: Taps,
    pub(super) guests: Guests,
    /// The host's devices that are ports of bridges.
    pub(super) claims: Claims,
    /// Receiving sockets that were made for devices that become ports.
    pub(super) receivers: Arc<Receivers>,
    /// The programs by which packets' marks cross internal ports.
    pub(super) marks: Arc<Marks>,
    /// The back end that diverts devices, if flows are offloaded.
    pub(super) diverter: Option<Diverter>,
}

impl Environment {
    pub(super) fn new(switch: Arc<Switch>) -> Environment {
        Environment {
            switch,
            globals: Globals::new(),
            taps: Taps::default(),
            guests: Guests::default(),
            claims: Claims::default(),
            receivers: Arc::default(),
            marks: Arc::default(),
            diverter: None,
        }
    }

    /// Whether flows of bridges of this type are offloaded.
    pub(super) fn is_offloaded(&self, datapath_type: &str) -> bool {
        self.diverter.as_ref().is_some_and(|d| d.takes(datapath_type))
    }

    /// The switch's time, which tests move.
    pub(super) fn now_ms(&self) -> u64 {
        self.switch.clock.now_ms()
    }

    /// The number that a new port requests of its datapath; `None`: any.
    ///
    /// In a pretended datapath that is the first number in the port's name, plus 100 for a bridge, if it is
    /// free. This makes tests easier to write.
    pub(super) fn wished_number(&self, datapath_type: &str, port: &str) -> Option<PortNo> {
        if !kinds::is_dummy_datapath(&self.switch.options, datapath_type) {
            return None;
        }
        let digits: String = port
            .chars()
            .skip_while(|c| !c.is_ascii_digit())
            .take_while(char::is_ascii_digit)
            .collect();
        let base = if port.starts_with("br") { 100 } else { 0 };
        let number = digits.parse::<u32>().ok()?.checked_add(base)?;
        let free = number > 0 && number < 65_534 && self.switch.datapath.port(PortNo(number)).is_none();
        free.then_some(PortNo(number))
    }
}
