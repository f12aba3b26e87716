//! Internal ports: their devices outlive the daemon.
//!
//! The next daemon recognizes them by a mark ([`KeptTaps`]), which belongs to the run directory. It is a
//! random text in `RUNDIR/heddled.id`, made with the first internal port. The directory is emptied at boot,
//! when the devices are gone too.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::OnceLock;

use heddle_port::KeptTaps;
use heddle_sys::NetConfig;
use heddle_sys::net_config::Device;

use super::Bridges;
use heddle_daemon::dirs;

const ID_FILE: &str = "heddled.id";

/// State that internal ports share.
#[derive(Default)]
pub(super) struct Taps {
    kept: OnceLock<KeptTaps>,
    /// Whether devices of an earlier daemon have been searched.
    looked: bool,
    /// Whether devices of another program's ports have been searched.
    searched: bool,
}

impl Taps {
    /// The devices of this daemon.
    pub(super) fn kept(&self) -> &KeptTaps {
        self.kept.get_or_init(|| {
            let id = make_id(&dirs::rundir().join(ID_FILE)).unwrap_or_else(|error| {
                let why = heddle_daemon::vlog::errno_text(&error);
                log::warn!(target: "bridge", "internal ports will not be found again after a restart: {ID_FILE} cannot be made ({why})");
                format!("{:016x}", random())
            });
            KeptTaps::new(&id)
        })
    }

    /// A number by which the next daemon of this run directory recognizes this one's objects in the kernel.
    pub(super) fn owner() -> io::Result<u64> {
        let id = make_id(&dirs::rundir().join(ID_FILE))?;
        u64::from_str_radix(&id, 16).map_err(|_| io::ErrorKind::InvalidData.into())
    }
    /// The owner, if an earlier daemon made one; see [`Taps::owner`].
    pub(super) fn earlier_owner() -> Option<u64> {
        let id = read_id(&dirs::rundir().join(ID_FILE)).ok()?;
        u64::from_str_radix(&id, 16).ok()
    }

    /// Another process takes over the devices: they are searched again when this one gets the lock back.
    pub(super) fn let_go(&mut self) {
        self.looked = false;
    }

    /// Finds the devices of internal ports that an earlier daemon left, unless it has done so; removes those
    /// of ports that are not `wanted`.
    pub(super) fn find(&mut self, wanted: &BTreeSet<String>) {
        if std::mem::replace(&mut self.looked, true) {
            return;
        }
        if self.kept.get().is_none()
            && let Ok(id) = read_id(&dirs::rundir().join(ID_FILE))
        {
            self.kept.get_or_init(|| KeptTaps::new(&id));
        }
        if let Some(kept) = self.kept.get() {
            kept.look();
            kept.remove_others(|port| wanted.contains(port));
        }
    }

    /// Called when all ports that could be opened are open.
    pub(super) fn settle(&mut self) {
        self.looked &= !self.kept.get().is_some_and(KeptTaps::settle);
    }

    /// Logs devices that another program's ports had in namespaces of pods, if this switch has made new ones
    /// in its own namespace. Called after the first configuration.
    pub(super) fn find_left_devices(&mut self, bridges: &Bridges) {
        if bridges.is_empty() || std::mem::replace(&mut self.searched, true) {
            return;
        }
        let mut names = BTreeSet::new();
        for (name, bridge) in bridges {
            for iface in bridge.ifaces.values().filter(|i| i.name != *name) {
                if let Some((device, _)) = iface.device()
                    && device.kind() == "internal"
                    && device.is_here()
                {
                    names.insert(iface.name.clone());
                }
            }
        }
        if !names.is_empty() {
            // If the thread cannot be made, only the log lines are missing.
            let _ = std::thread::Builder::new()
                .name("left-devices".to_owned())
                .spawn(move || log_left_devices(&names));
        }
    }
}

/// Whether a device is left from another switch's port: one of Open vSwitch's kernel datapath, or a tap
/// device that no process reads.
fn is_left(device: &Device) -> bool {
    device.kind == "openvswitch" || device.kind == "tun" && !device.carrier
}

/// Logs devices of these names in other namespaces that belong to no port: the pods that have them are cut
/// off. Takes long if there are many namespaces.
fn log_left_devices(names: &BTreeSet<String>) {
    for ns in heddle_sys::netns::all().iter().skip(1) {
        let devices = NetConfig::new(Some(ns)).and_then(|net| net.devices());
        for device in devices.unwrap_or_default() {
            if names.contains(&device.name) && is_left(&device) {
                log::warn!(target: "bridge", per_min = 60, burst = 60;
                    "interface {}: an earlier switch left a device of this name in another network namespace; \
                     no packet reaches it; find it with: heddle advise --live", device.name);
            }
        }
    }
}

fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    // The standard library's keys come from the system's source of randomness.
    std::hash::RandomState::new().build_hasher().finish()
}

/// Reads the text that marks devices.
fn read_id(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    heddle_sys::files::read(path)?
        .take(64)
        .read_to_string(&mut text)?;
    let id = text.trim();
    if id.len() != 16 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    Ok(id.to_owned())
}

/// Reads the text that marks devices, or makes one.
fn make_id(path: &Path) -> io::Result<String> {
    if let Ok(id) = read_id(path) {
        return Ok(id);
    }
    let id = format!("{:016x}", random());
    // The file is made anew, since an existing symlink would redirect the write.
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{id}")?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ID_FILE);
        assert!(read_id(&path).is_err());
        let id = make_id(&path).unwrap();
        assert_eq!(
            (make_id(&path).unwrap(), read_id(&path).unwrap()),
            (id.clone(), id.clone())
        );
        for broken in ["", "0123", "0123456789abcde:", "0123456789abcdef0", "\n"] {
            fs::write(&path, broken).unwrap();
            assert!(read_id(&path).is_err(), "{broken:?}");
        }
        assert_ne!(make_id(&path).unwrap(), id);
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "precious").unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        make_id(&path).unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");
        assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
    }
}
