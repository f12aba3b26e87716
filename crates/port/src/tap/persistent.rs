//! Tap devices that outlive the daemon, and how the next one finds them.
//!
//! **Problem.** An administrator configures an internal port (addresses, routes, the namespace of a pod). All
//! that has to be there after the switch was restarted, upgraded or killed. A tap device can be persistent.
//! But a process joins it by name, in one namespace, and meanwhile it may have been moved and renamed.
//!
//! **How.** Each device carries a mark: its alias (`ip link` shows it) is `heddle:OWNER:PORT`. OWNER is a
//! random text that belongs to one run directory, so daemons that share a kernel do not take each other's
//! devices. The kernel keeps the alias with the device wherever it goes, so there is no record that a crash
//! could leave behind wrong. At its start the daemon [looks](KeptTaps::look) for marks in all namespaces that
//! can be found ([`heddle_sys::netns::all`]). It joins the devices whose ports it still has, and
//! [removes](KeptTaps::remove_others) the others. If no device has a port's mark, the daemon takes over a tap
//! device of the port's name in its own namespace. It does so only if no process holds that device. Open
//! vSwitch leaves such devices.
//!
//! A device that is wanted elsewhere can be made there at once ([`Birthplace`]). To move a device, the kernel
//! waits for all its readers, with a lock that all changes of devices need.
//!
//! **Limit.** A queue that joins or makes a device in another namespace keeps that namespace alive until the
//! port is deleted. The kernel ties the queue to the namespace that it was opened in. A device that was made
//! at home and moved away does not keep the other namespace alive.
//!
//! **Safe side.** Nothing but a persistent tap device with this owner's mark is ever removed, and only if no
//! process holds it.

use super::TapPort;
use crate::PortError;
use heddle_sys::tap_links::Link;
use heddle_sys::{LinkCtl, TapLinks, TapOpen, TapQueue, netns};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

// Error numbers of Linux.
const ENODEV: i32 = 19;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;

/// The namespace and name of a new device, if it is not made here under the port's name.
#[derive(Clone, Copy, Debug)]
pub struct Birthplace<'a> {
    /// Path of the network namespace.
    pub namespace: &'a Path,
    /// The namespace's identity, as a path may lead elsewhere for another process.
    pub id: netns::Id,
    /// Name of the device.
    pub device: &'a str,
}

/// The persistent tap devices of one owner.
#[derive(Debug)]
pub struct KeptTaps {
    prefix: String,
    found: Mutex<MarkedTaps>,
}

/// The result of the last look. The descriptors keep namespaces alive, so they are dropped soon
/// ([`KeptTaps::settle`]).
#[derive(Debug, Default)]
struct MarkedTaps {
    /// The devices by port.
    places: BTreeMap<String, TapLocation>,
    /// Further devices of such ports.
    spare: Vec<(String, TapLocation)>,
    /// A device that was found could not be joined.
    failed: bool,
}

/// The namespace and name of a device.
#[derive(Debug)]
struct TapLocation {
    namespace: OwnedFd,
    link: Link,
}

impl KeptTaps {
    /// The taps that carry the mark of `owner`, a text without colons.
    pub fn new(owner: &str) -> Self {
        Self {
            prefix: format!("heddle:{owner}:"),
            found: Mutex::default(),
        }
    }

    /// Looks for devices with the mark. Takes some microseconds per process and some hundred per namespace.
    pub fn look(&self) {
        let mut found = MarkedTaps::default();
        for namespace in netns::all() {
            let links = TapLinks::new(Some(&namespace)).and_then(|links| links.all());
            let links = links.unwrap_or_else(|error| {
                log::debug!(target: "netdev_linux", "a network namespace cannot be searched for tap devices ({error})");
                Vec::new()
            });
            for link in links {
                let Some(port) = self.port_of(&link) else { continue };
                let Ok(namespace) = namespace.try_clone() else {
                    continue;
                };
                let port = port.to_owned();
                let place = TapLocation { namespace, link };
                match found.places.entry(port) {
                    Entry::Vacant(vacant) => drop(vacant.insert(place)),
                    Entry::Occupied(first) => {
                        let port = first.key().clone();
                        found.spare.push((port, place));
                    }
                }
            }
        }
        *self.found.lock() = found;
    }

    /// The port whose mark a device carries.
    fn port_of<'a>(&self, link: &'a Link) -> Option<&'a str> {
        link.tap.filter(|tap| tap.persistent)?;
        link.alias.strip_prefix(self.prefix.as_str())
    }

    /// Removes the devices that the last look has found and whose ports are not wanted any more.
    pub fn remove_others(&self, wanted: impl Fn(&str) -> bool) {
        let mut found = self.found.lock();
        let mut others = std::mem::take(&mut found.spare);
        let unwanted: Vec<String> = found.places.keys().filter(|p| !wanted(p)).cloned().collect();
        for port in unwanted {
            others.extend(found.places.remove(&port).map(|place| (port, place)));
        }
        drop(found);
        for (port, place) in others {
            match join(&place).and_then(|queue| queue.set_persistent(false)) {
                Ok(()) => {
                    log::info!(target: "netdev_linux", "{port}: removed the tap device {} of a port that is gone", place.link.name);
                }
                Err(error) => {
                    log::info!(target: "netdev_linux", "{port}: left the tap device {} of a port that is gone ({error})", place.link.name);
                }
            }
        }
    }

    /// Forgets the result of the last look. True: look again, some device could not be joined.
    pub fn settle(&self) -> bool {
        std::mem::take(&mut *self.found.lock()).failed
    }

    /// Opens port `name` for `n_rxq` receive queues, with the device that carries its mark, or one of that
    /// name, or a new one.
    ///
    /// # Errors
    /// [`PortError::Sys`]. A device of that name is no tap (`EINVAL`) or is held by another process
    /// (`EBUSY`). The name is not legal; no `/dev/net/tun`; no permission.
    pub fn open(&self, name: &str, n_rxq: usize) -> Result<TapPort, PortError> {
        self.open_at(name, n_rxq, None)
    }

    /// Like [`KeptTaps::open`], but makes a new device at `birthplace` if that is possible.
    ///
    /// # Errors
    /// The errors of [`KeptTaps::open`].
    pub fn open_at(
        &self,
        name: &str,
        n_rxq: usize,
        birthplace: Option<Birthplace<'_>>,
    ) -> Result<TapPort, PortError> {
        let opened = self.queue(name, n_rxq > 1, birthplace);
        let (queue, multi_queue) = opened.map_err(|e| PortError::open(name, e))?;
        let port = TapPort::with(name, queue, multi_queue).map_err(|e| PortError::open(name, e))?;
        port.warn_of_queues(n_rxq);
        port.keep(&format!("{}{name}", self.prefix));
        Ok(port)
    }

    /// The first queue of the port's device, and whether the device can have several.
    fn queue(
        &self,
        name: &str,
        multi_queue: bool,
        birthplace: Option<Birthplace<'_>>,
    ) -> io::Result<(TapQueue, bool)> {
        let mut found = self.found.lock();
        if let Some(place) = found.places.get(name) {
            match join(place) {
                Ok(queue) => {
                    let multi_queue = place.link.tap.is_some_and(|tap| tap.multi_queue);
                    found.places.remove(name);
                    return Ok((queue, multi_queue));
                }
                // The device went away between the look and now.
                Err(e) if e.raw_os_error() == Some(ENODEV) => {}
                Err(e) => {
                    found.failed = true;
                    return Err(e);
                }
            }
        }
        drop(found);
        let Some(link) = TapLinks::new(None)?.named(name)? else {
            if let Some(place) = birthplace {
                match make_at(place, multi_queue) {
                    Ok(queue) => return Ok((queue, multi_queue)),
                    // The user can move it there.
                    Err(error) => {
                        log::info!(target: "netdev_linux", "{name}: not made as {} in {}, but here ({error})", place.device, place.namespace.display())
                    }
                }
            }
            let queue = TapOpen::new(name)
                .multi_queue(multi_queue)
                .new_only(true)
                .open()?;
            return Ok((queue, multi_queue));
        };
        let Some(tap) = link.tap else {
            log::warn!(target: "netdev_linux", "{name}: there is a network device of this name that is not a tap device");
            return Err(io::Error::from_raw_os_error(EINVAL));
        };
        let place = TapLocation {
            namespace: netns::own()?,
            link,
        };
        let queue = join(&place).inspect_err(|error| {
            if error.raw_os_error() == Some(EBUSY) {
                log::warn!(target: "netdev_linux", "{name}: another process holds the tap device of this name");
            }
        })?;
        log::info!(target: "netdev_linux", "{name}: took over a tap device that was there");
        Ok((queue, tap.multi_queue))
    }
}

/// Makes a device in another namespace.
fn make_at(place: Birthplace<'_>, multi_queue: bool) -> io::Result<TapQueue> {
    let namespace = netns::open(place.namespace)?;
    if netns::id(&namespace)? != place.id {
        let text = "the path leads to another namespace here";
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    TapOpen::new(place.device)
        .namespace(Some(&namespace))
        .multi_queue(multi_queue)
        .new_only(true)
        .open()
}

/// Joins a device that no process holds.
fn join(place: &TapLocation) -> io::Result<TapQueue> {
    let tap = place.link.tap.unwrap_or_default();
    if tap.queues > 0 {
        return Err(io::Error::from_raw_os_error(EBUSY));
    }
    let queue = TapOpen::new(&place.link.name)
        .namespace(Some(&place.namespace))
        .multi_queue(tap.multi_queue)
        .open()?;
    // The kernel makes a device that is not there; then it goes with the queue.
    let now = LinkCtl::in_namespace(&place.namespace)?.ifindex(&queue.ifname()?)?;
    if now != place.link.ifindex {
        return Err(io::Error::from_raw_os_error(ENODEV));
    }
    Ok(queue)
}
