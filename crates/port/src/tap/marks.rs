//! Marks of packets (`skb->mark`) that cross an internal port.
//!
//! The programs at the device's clsact hooks ([`MarkPrograms`]) carry a mark in a
//! [header of the frame](heddle_packet::mark_header). This port's queues write and read it. A frame without
//! mark has no header. While the programs are not there, headers are neither written nor trusted.
//!
//! The device may move to another network namespace, and loses its programs. Another program may remove them,
//! too. [`MarkCtl::look`], which each request for the port's status calls, puts them back.

use heddle_packet::{Packet, mark_header};
use heddle_sys::netns;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// `Interface.status`: the reason why marks do not cross the port.
const STATUS_KEY: &str = "heddle_pkt_mark";
/// Requests for the status in which the programs are looked for once.
const LOOK_AGAIN: u32 = 8;

/// The programs that read and write marks at the devices of internal ports.
pub trait MarkPrograms: Send + Sync {
    /// Puts the programs at device `name` of a network namespace (`None`: the caller's own), in the place of
    /// those that an earlier process left.
    ///
    /// # Errors
    /// The reason in one line. Programs of an earlier process are removed.
    fn attach(&self, namespace: Option<&OwnedFd>, name: &str) -> io::Result<()>;
    /// Puts the programs where one is missing. Returns whether one was.
    ///
    /// # Errors
    /// The system's error.
    fn mend(&self, namespace: Option<&OwnedFd>, name: &str) -> io::Result<bool>;
    /// Removes the programs from the device. It may be gone.
    fn detach(&self, namespace: Option<&OwnedFd>, name: &str);
}

/// State that the queues of one port share.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The programs are at the device.
    carried: AtomicBool,
    /// Packets that were sent without their mark.
    lost: AtomicU64,
}

impl Marks {
    /// Notes the header of a received frame, if it has one and the programs have written it.
    #[inline]
    pub(super) fn received(&self, p: &mut Packet) {
        if mark_header::is_in(p.head()) {
            self.received_header(p);
        }
    }
    #[cold]
    fn received_header(&self, p: &mut Packet) {
        if self.carried.load(Ordering::Relaxed) && mark_header::read(p.head()).is_some() {
            p.trust_header();
        }
    }
    /// The header with which a packet is sent, if it needs one.
    #[inline]
    pub(super) fn header(&self, p: &Packet) -> Option<[u8; mark_header::LEN]> {
        match p.mark() != 0 || mark_header::is_in(p.head()) {
            true => self.needed_header(p),
            false => None,
        }
    }
    #[cold]
    fn needed_header(&self, p: &Packet) -> Option<[u8; mark_header::LEN]> {
        let fits = p.len() >= mark_header::MIN_FRAME && p.head_len() >= mark_header::AT;
        if self.carried.load(Ordering::Relaxed) && fits {
            return Some(mark_header::with(p.mark()));
        }
        if p.mark() != 0 {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        None
    }
    /// Packets that were sent without their mark.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The control side of one port's marks.
#[derive(Default)]
pub(super) struct MarkCtl {
    programs: Option<Arc<dyn MarkPrograms>>,
    /// Network namespace and index of the device at which the programs are, or cannot be.
    place: Option<(netns::Id, u32)>,
    /// The reason why they are not there.
    error: Option<String>,
    looks: u32,
    /// A lost mark has been logged.
    reported: bool,
}

impl fmt::Debug for MarkCtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = (&self.place, &self.error);
        f.debug_tuple("MarkCtl").field(&fields).finish()
    }
}

/// A device as it is now.
pub(super) struct Device<'a> {
    /// Name of the port.
    pub(super) port: &'a str,
    pub(super) name: String,
    /// Identity of its network namespace, and the namespace unless it is the process's own.
    pub(super) id: netns::Id,
    pub(super) namespace: Option<OwnedFd>,
    pub(super) ifindex: u32,
}

impl MarkCtl {
    pub(super) fn new(programs: Option<Arc<dyn MarkPrograms>>) -> Self {
        Self {
            programs,
            ..Self::default()
        }
    }

    /// Puts the programs where the device is now, or back if another program has removed them.
    pub(super) fn look(&mut self, marks: &Marks, device: &Device<'_>) {
        let Some(programs) = self.programs.clone() else {
            return;
        };
        let namespace = device.namespace.as_ref();
        let place = (device.id, device.ifindex);
        self.looks = self.looks.wrapping_add(1);
        if self.place != Some(place) {
            self.place = Some(place);
            let done = programs.attach(namespace, &device.name);
            marks.carried.store(done.is_ok(), Ordering::Relaxed);
            self.error = done.err().map(|e| e.to_string());
        } else if self.error.is_none() && self.looks.is_multiple_of(LOOK_AGAIN) {
            match programs.mend(namespace, &device.name) {
                Ok(true) => {
                    log::warn!(target: "netdev_linux", "{}: another program removed the classifiers of packet marks; they are attached again", device.port);
                }
                Ok(false) => {}
                // Perhaps the device moves at this moment: the next look finds out.
                Err(_) => self.place = None,
            }
        }
        self.report(marks, device.port);
    }

    /// Logs that marks are lost, once.
    fn report(&mut self, marks: &Marks, port: &str) {
        if !self.reported && marks.lost() > 0 {
            self.reported = true;
            let why = self.error.as_deref().unwrap_or("packets are too short");
            log::warn!(target: "netdev_linux", "{port}: packets are sent without their pkt_mark ({why})");
        }
    }

    /// The entry of `Interface.status`, if marks do not cross the port.
    pub(super) fn status(&self) -> Option<(String, String)> {
        let why = self.error.as_ref()?;
        Some((STATUS_KEY.into(), format!("not carried ({why})")))
    }

    /// Removes the programs: the next owner of the device does not know headers.
    pub(super) fn detach(&mut self, device: &Device<'_>) {
        if let Some(programs) = self.programs.take().filter(|_| self.error.is_none()) {
            programs.detach(device.namespace.as_ref(), &device.name);
        }
    }
}
