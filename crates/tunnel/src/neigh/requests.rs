//! Requests for unknown neighbours.
//!
//! **Problem.** A packet to an unknown neighbour waits for a request and its reply. The worker must not wait:
//! a control thread sends the request.
//!
//! **Shape.** A worker calls [`Neighbours::request`]. The request is open for [`OPEN_MS`]; further calls for
//! the same neighbour change nothing, so one request is sent in that time. If there is no reply until the
//! end, the hook is notified, which makes the cached translation stale. The next packet, or the first that
//! waits, is translated again and requests again. So requests end when packets do.
//!
//! The list of open requests has a lock, which workers only try. Requests to be sent are in a lock-free
//! queue, as the control thread wakes up in the middle of a translation, which may request more.
//!
//! **Limits.** At most [`MAX_OPEN`] requests are open. Beyond that, and if another thread holds the list, the
//! outcome is [`RequestOutcome::Busy`]: the translation must not be cached.

use super::Neighbours;
use crossbeam_queue::SegQueue;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;

/// Time for which a request is open, ms.
pub const OPEN_MS: u64 = 1000;
/// Maximum number of open requests.
pub const MAX_OPEN: usize = 1024;

/// A request for a neighbour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeighRequest {
    /// Number of the bridge, unique among all bridges.
    pub bridge: u64,
    /// OpenFlow port number of the sender.
    pub port: u32,
    /// IP address of the sender.
    pub source: IpAddr,
    /// IP address of the neighbour.
    pub target: IpAddr,
}

/// A request for a neighbour that the kernel makes, on one of its devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelRequest {
    /// Name of the device.
    pub device: Box<str>,
    /// IP address of the neighbour.
    pub target: IpAddr,
}

/// Time of the request, ms; bridge and address to look up at its end.
type Open = (u64, Box<str>, IpAddr);

/// All requests. See the module's text.
#[derive(Default)]
pub(super) struct Requests {
    /// Open requests by [`Neighbours::thing`].
    open: Mutex<HashMap<u64, Open>>,
    /// Requests to be sent.
    waiting: SegQueue<NeighRequest>,
    /// Requests to be made by the kernel.
    for_kernel: SegQueue<KernelRequest>,
}

/// The outcome of [`Neighbours::request`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestOutcome {
    /// Queued, for a control thread to send it.
    New,
    /// The same request is already open.
    Open,
    /// Too many requests are open, or another thread holds the list: request with the next packet.
    Busy,
}

impl Neighbours {
    /// Requests a neighbour on the bridge of that name. Never waits.
    pub fn request(&self, bridge: &str, request: &NeighRequest, now_ms: u64) -> RequestOutcome {
        let outcome = self.open_request(bridge, request.target, now_ms);
        if outcome == RequestOutcome::New {
            self.requests.waiting.push(request.clone());
        }
        outcome
    }

    /// Requests a neighbour on a device that is no port of a bridge: the kernel sends the request. Never
    /// waits.
    pub fn request_from_kernel(&self, device: &str, target: IpAddr, now_ms: u64) -> RequestOutcome {
        let outcome = self.open_request(device, target, now_ms);
        if outcome == RequestOutcome::New {
            self.requests.for_kernel.push(KernelRequest {
                device: device.into(),
                target,
            });
        }
        outcome
    }

    fn open_request(&self, bridge: &str, target: IpAddr, now_ms: u64) -> RequestOutcome {
        let thing = self.thing(bridge, target);
        let Some(mut open) = self.requests.open.try_lock() else {
            return RequestOutcome::Busy;
        };
        if open.contains_key(&thing) {
            return RequestOutcome::Open;
        }
        if open.len() >= MAX_OPEN {
            return RequestOutcome::Busy;
        }
        open.insert(thing, (now_ms, bridge.into(), target));
        RequestOutcome::New
    }

    /// Whether a neighbour is known or requested. Never waits: an open request is missed if another thread
    /// holds the list.
    pub fn wants(&self, bridge: &str, ip: IpAddr, now_ms: u64) -> bool {
        let is_open = || {
            let open = self.requests.open.try_lock();
            open.is_some_and(|o| o.contains_key(&self.thing(bridge, ip)))
        };
        self.find(bridge, ip, now_ms).is_some() || is_open()
    }

    /// Takes the requests that are to be sent.
    pub fn take_requests(&self) -> Vec<NeighRequest> {
        let n = self.requests.waiting.len();
        (0..n).map_while(|_| self.requests.waiting.pop()).collect()
    }

    /// Takes the requests that the kernel is to make.
    pub fn take_kernel_requests(&self) -> Vec<KernelRequest> {
        let n = self.requests.for_kernel.len();
        (0..n).map_while(|_| self.requests.for_kernel.pop()).collect()
    }

    /// Forgets open requests, and notifies the hook: waiting packets and later ones request again.
    pub(super) fn forget_requests(&self, bridge: Option<&str>) {
        for (thing, _) in self.take_open(|(_, of, _)| bridge.is_none_or(|b| *b == **of)) {
            (self.notify)(thing);
        }
    }

    /// Ends requests that were open for long enough. Notifies the hook of neighbours that are unknown or in
    /// doubt.
    pub(super) fn end_requests(&self, now_ms: u64) {
        let ended = self.take_open(|(asked_ms, ..)| now_ms >= asked_ms.saturating_add(OPEN_MS));
        for (thing, (_, bridge, ip)) in ended {
            let in_doubt = |bridge| self.system(bridge, ip).is_none_or(|known| known.in_doubt);
            if self.find(&bridge, ip, now_ms).is_none() && in_doubt(&bridge) {
                (self.notify)(thing);
            }
        }
    }

    /// Takes open requests. The caller notifies the hook after the lock is released.
    fn take_open(&self, which: impl Fn(&Open) -> bool) -> Vec<(u64, Open)> {
        let mut open = self.requests.open.lock();
        open.extract_if(|_, request| which(request)).collect()
    }
}
