//! Options of a port and settings that all ports share, read as Open vSwitch reads them.

use super::Mode;
use crate::PortError;
use crate::virtio::Changed;
use heddle_vhost_user::backend::Control;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest path of a socket, without the zero behind it (unix(7)).
const MAX_PATH: usize = 107;
/// `tx-retries-max`: default and most.
const DEFAULT_RETRIES: u32 = 8;
const MAX_RETRIES: u32 = 32;

/// The state that all vhost-user ports of a switch share.
#[derive(Clone)]
pub struct VhostContext {
    /// The control thread of all sockets.
    pub control: Arc<Control>,
    /// Called, from any thread, when a port's status changes.
    pub changed: Changed,
    /// The run directory, for files that outlive the process.
    pub rundir: PathBuf,
    /// Directory of the sockets of `dpdkvhostuser` ports ([`socket_dir`]).
    pub socket_dir: PathBuf,
    /// `vhost-iommu-support`: guests may put an IOMMU before their memory.
    pub iommu: bool,
    /// `--dummy-numa`: `options:numa_id` replaces the NUMA node of a guest's memory.
    pub dummy_numa: bool,
}

/// The directory of `other_config:vhost-sock-dir` (relative to the run directory), as a path, or why it is
/// not used.
///
/// # Errors
/// The text for the log; the run directory is used then.
pub fn socket_dir(rundir: &Path, setting: Option<&str>) -> Result<PathBuf, String> {
    let Some(sub) = setting.filter(|s| s.len() <= 255) else {
        return Ok(rundir.to_owned());
    };
    let dir = rundir.join(sub.trim_start_matches('/'));
    if sub.contains("..") {
        return Err(format!(
            "vhost-user sock directory request '{}' has invalid characters '..' - using {} instead.",
            dir.display(),
            rundir.display()
        ));
    }
    Ok(dir)
}

/// The socket's path.
pub(super) fn path(
    mode: Mode,
    name: &str,
    options: &BTreeMap<String, String>,
    context: &VhostContext,
) -> Result<PathBuf, PortError> {
    let path = match mode {
        Mode::Client => {
            let set = options.get("vhost-server-path").filter(|p| !p.is_empty());
            let missing = || {
                PortError::Config(format!(
                    "{name}: dpdkvhostuserclient needs options:vhost-server-path"
                ))
            };
            PathBuf::from(set.ok_or_else(missing)?)
        }
        Mode::Server => {
            if name.contains(['/', '\\']) {
                return Err(PortError::Config(format!(
                    "\"{name}\" is not a valid name for a vhost-user port. A valid name must not include '/' or '\\'"
                )));
            }
            context.socket_dir.join(name)
        }
    };
    let len = path.as_os_str().len();
    if len > MAX_PATH || path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(PortError::Config(format!(
            "{name}: the socket's path {} has {len} bytes, {MAX_PATH} are possible",
            path.display()
        )));
    }
    Ok(path)
}

/// Whether a socket can be made in the directory of `path`. It is tried with a file, since the socket itself
/// is made later, and tried again for as long as the port exists.
pub(super) fn probe_directory(path: &Path) -> io::Result<()> {
    let probe = path.with_extension(format!("{}.probe", std::process::id()));
    File::create(&probe)?;
    std::fs::remove_file(&probe)
}

/// `options:tx-retries-max`; values out of range count as the default. Ports that listen do not have it.
pub(super) fn tx_retries_max(mode: Mode, options: &BTreeMap<String, String>) -> u32 {
    let set = options.get("tx-retries-max").filter(|_| mode == Mode::Client);
    set.and_then(|v| retries(v)).unwrap_or(DEFAULT_RETRIES)
}

/// Warnings about options that have no effect, for the log. (Open vSwitch does not warn of a client's.)
pub(super) fn warnings(
    mode: Mode,
    options: &BTreeMap<String, String>,
    context: &VhostContext,
) -> Vec<String> {
    let pretends = |key: &str| key == "numa_id" && context.dummy_numa;
    let mut keys = options.iter().filter(|(key, _)| !pretends(key));
    if mode == Mode::Server {
        let given: Vec<&str> = keys.map(|(key, _)| key.as_str()).collect();
        return match &given[..] {
            [] => Vec::new(),
            given => vec![format!(
                "arguments provided to device that is not configurable ({})",
                given.join(", ")
            )],
        };
    }
    keys.by_ref()
        .filter_map(|(key, value)| match key.as_str() {
            "vhost-server-path" => None,
            "tx-retries-max" if retries(value).is_some() => None,
            "tx-retries-max" => Some(format!(
                "options:tx-retries-max={value} is no number from 0 to {MAX_RETRIES}: {DEFAULT_RETRIES} is used"
            )),
            "n_rxq" | "n_txq" => Some(format!(
                "options:{key} is not used: the guest decides how many queues it has"
            )),
            _ => Some(format!("options:{key} is not known to ports of this type")),
        })
        .collect()
}

/// A number of retries that is possible.
fn retries(value: &str) -> Option<u32> {
    value.trim().parse().ok().filter(|n| *n <= MAX_RETRIES)
}

/// The NUMA node that stands for the node of a guest's memory in tests.
pub(super) fn pretended_numa(options: &BTreeMap<String, String>, context: &VhostContext) -> Option<u32> {
    options
        .get("numa_id")
        .filter(|_| context.dummy_numa)?
        .parse()
        .ok()
}
