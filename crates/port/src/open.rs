//! From `Interface.type` to a port.

use crate::{DummyPort, Port, PortError, SystemPort, TapPort};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The types that [`open`] knows, as `Open_vSwitch.iface_types` lists them. `patch` ports are folded into the
/// translation and never reach this crate.
pub const KINDS: &[&str] = &["system", "internal", "dummy", "dummy-internal", "dummy-pmd"];

/// Opens port `name` of `Interface.type` `kind` (empty: `system`; `tap` is `internal` by another name).
///
/// # Errors
/// [`PortError::Sys`] when the device cannot be opened, [`PortError::Config`] for options that make no sense or a
/// type that does not exist.
pub fn open(kind: &str, name: &str, options: &BTreeMap<String, String>) -> Result<Arc<dyn Port>, PortError> {
    Ok(match kind {
        "" | "system" => Arc::new(SystemPort::open(name)?),
        "internal" | "tap" => Arc::new(TapPort::open(name)?),
        "dummy" | "dummy-internal" | "dummy-pmd" => {
            let kind = KINDS.iter().find(|k| **k == kind).copied().unwrap_or("dummy");
            DummyPort::open(kind, name, options)?
        }
        _ => {
            return Err(PortError::Config(format!(
                "could not create {name}: unknown interface type {kind}"
            )));
        }
    })
}
