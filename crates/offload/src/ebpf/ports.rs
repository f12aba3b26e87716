//! Devices are diverted to the program, and given back.
//!
//! Each diverted device has a miss device ([`crate::miss`]), to which the program sends the packets that it
//! does not forward.
//!
//! An *internal port* is the other way round: packets that the host's stack sends leave by its tap device. So
//! the program is at that device's egress, and packets that it does not forward continue to the switch.

use super::flows::{Diverted, State};
use super::load::{self, Hook};
use crate::PortLink;
use crate::miss::{MissDevice, claim};
use heddle_datapath_api::PortNo;
use heddle_sys::TapQueue;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// Passes over the ports in which each device is checked once. Then the address of a veth device's peer is
/// read again, and a missing program is attached again.
const ASK_AGAIN: u32 = 10;

impl State {
    pub(super) fn divert(&mut self, name: &str, ifindex: u32) -> io::Result<Arc<TapQueue>> {
        let look = self.others.look(name, ifindex, Hook::Ingress)?;
        if let Some(why) = look.stays {
            self.let_go(ifindex);
            self.others.leave(name, ifindex, &why, true);
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let done = self.take_device(name, ifindex, look.direct);
        match &done {
            Ok(_) => self.others.taken(ifindex),
            // The port cannot be opened.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => self.others.leave(name, ifindex, &error.to_string(), false),
        }
        done
    }
    /// Diverts a device that no other program has.
    fn take_device(&mut self, name: &str, ifindex: u32, direct: bool) -> io::Result<Arc<TapQueue>> {
        match self.diverted.get(&ifindex).map(|d| &d.miss) {
            Some(Some(miss)) => return Ok(Arc::clone(&miss.tap)),
            Some(None) => self.let_go(ifindex),
            None => {}
        }
        let claim = claim(ifindex, &mut self.claim_timeout)?;
        let miss = MissDevice::make(ifindex, self.group)?;
        let slot = self.take_slot().ok_or(io::ErrorKind::QuotaExceeded)?;
        let tap = Arc::clone(&miss.tap);
        let d = Diverted {
            miss: Some(miss),
            slot,
            peer: None,
            direct,
            _claim: Some(claim),
        };
        self.diverted.insert(ifindex, d);
        self.find_peers(Some(ifindex));
        let done = self
            .write_port(ifindex)
            .map_err(|why| io::Error::other(why.to_string()))
            .and_then(|()| self.loaded.attach(name, Hook::Ingress));
        if let Err(error) = done {
            self.let_go(ifindex);
            return Err(error);
        }
        self.ports.mark(ifindex);
        Ok(tap)
    }
    /// Attaches the program to the devices of internal ports, and detaches it from devices that are no
    /// internal ports any more.
    fn set_internal(&mut self, ports: &[PortLink]) {
        let wanted: HashMap<u32, &str> = ports
            .iter()
            .filter(|p| p.internal)
            .map(|p| (p.ifindex, p.name.as_str()))
            .collect();
        let gone = |(ifindex, d): (&u32, &Diverted)| {
            (d.miss.is_none() && !wanted.contains_key(ifindex)).then_some(*ifindex)
        };
        let gone: Vec<u32> = self.diverted.iter().filter_map(gone).collect();
        gone.into_iter().for_each(|ifindex| self.let_go(ifindex));
        for (ifindex, name) in wanted {
            if self.diverted.contains_key(&ifindex) || self.others.of(ifindex).is_some() {
                continue;
            }
            match self.take_internal(ifindex) {
                Ok(None) => self.others.taken(ifindex),
                Ok(Some(why)) => self.others.leave_to_program(name, ifindex, &why),
                Err(error) => {
                    self.others.leave(name, ifindex, &error.to_string(), false);
                    log::warn!(
                        target: "netdev_offload",
                        "{name}: nothing that comes from there is offloaded ({error})"
                    );
                }
            }
        }
    }
    /// Attaches the program to the device of an internal port; or returns why the device stays with workers.
    fn take_internal(&mut self, ifindex: u32) -> io::Result<Option<String>> {
        let name = load::name_of(ifindex).ok_or(io::ErrorKind::NotFound)?;
        if let Some(why) = self.others.look(&name, ifindex, Hook::Egress)?.stays {
            return Ok(Some(why));
        }
        let slot = self.take_slot().ok_or(io::ErrorKind::QuotaExceeded)?;
        let d = Diverted {
            miss: None,
            slot,
            peer: None,
            direct: false,
            _claim: None,
        };
        self.diverted.insert(ifindex, d);
        let done = self
            .write_port(ifindex)
            .map_err(|why| io::Error::other(why.to_string()))
            .and_then(|()| self.loaded.attach(&name, Hook::Egress));
        match done {
            Ok(()) => self.ports.mark(ifindex),
            Err(_) => self.let_go(ifindex),
        }
        done.map(|()| None)
    }
    /// Whether a system port's queues are to be opened again: another program came to its device, or went.
    pub(super) fn changed(&self, ifindex: u32, diverted: bool) -> bool {
        match diverted {
            true => self.others.of(ifindex).is_some_and(|stays| stays.others),
            false => self.others.is_freed(ifindex),
        }
    }
    pub(super) fn release(&mut self, name: &str, ifindex: u32) {
        // Detaching fails if the device is gone, and the program with it.
        let _ = load::detach(name);
        self.let_go(ifindex);
    }
    /// Detaches the program from a device, and ends its flows.
    pub(super) fn let_go(&mut self, ifindex: u32) {
        if let Some(name) = load::name_of(ifindex) {
            let _ = load::detach(&name);
        }
        let _ = self.loaded.ports.remove(&ifindex);
        if let Some(d) = self.diverted.remove(&ifindex) {
            self.end_slot(d.slot);
            self.wait();
            // Flows of the port are installed anew, which fails with the reason.
            self.ports.mark(ifindex);
        }
    }
    pub(super) fn shutdown(&mut self) {
        self.drop_adopted();
        let all: Vec<u32> = self.diverted.keys().copied().collect();
        all.into_iter().for_each(|ifindex| self.let_go(ifindex));
    }

    pub(super) fn set_ports(&mut self, ports: &[PortLink]) -> Vec<PortNo> {
        let listed: HashSet<u32> = ports.iter().map(|p| p.ifindex).collect();
        self.others.keep_only(|ifindex| listed.contains(&ifindex));
        self.others.read_disciplines();
        for (ifindex, d) in &mut self.diverted {
            d.direct &= self.others.discipline(*ifindex).is_none();
        }
        self.set_internal(ports);
        self.find_peers(None);
        self.look_again(ports);
        self.ports.set(ports)
    }

    /// Looks at some devices each time. The program is attached again where another program removed it:
    /// without it, packets of a port go to the host's stack. A device to which another program came stays
    /// with workers from now on. One that the other program has left does not.
    fn look_again(&mut self, ports: &[PortLink]) {
        let turn = self.rounds % ASK_AGAIN;
        for p in ports.iter().filter(|p| p.ifindex % ASK_AGAIN == turn) {
            let hook = if p.internal { Hook::Egress } else { Hook::Ingress };
            // The device may have gone.
            let Ok(look) = self.others.look(&p.name, p.ifindex, hook) else {
                continue;
            };
            let left = self.others.of(p.ifindex).is_some_and(|stays| stays.others);
            let Some(d) = self.diverted.get_mut(&p.ifindex) else {
                if left && look.stays.is_none() {
                    self.others.free(&p.name, p.ifindex);
                }
                continue;
            };
            d.direct = look.direct;
            if let Some(why) = look.stays {
                if !left {
                    self.others.leave_to_program(&p.name, p.ifindex, &why);
                }
                if p.internal {
                    self.let_go(p.ifindex);
                }
                continue;
            }
            if self.loaded.attach_again(&p.name, hook) {
                log::warn!(
                    target: "netdev_offload",
                    "{}: another program removed the classifier; it is attached again", p.name
                );
            }
        }
    }

    /// Finds devices whose peers are in other network namespaces, for all devices or one.
    fn find_peers(&mut self, only: Option<u32>) {
        if only.is_none() {
            self.rounds = self.rounds.wrapping_add(1);
        }
        let again = self.rounds.is_multiple_of(ASK_AGAIN);
        let Some(peers) = &self.peers else { return };
        let all = match only {
            Some(ifindex) => peers.of(ifindex).map(|peer| peer.into_iter().collect()),
            None => peers.all(),
        };
        let Ok(all) = all else { return };
        let mut changed = Vec::new();
        for (ifindex, d) in &mut self.diverted {
            if only.is_some_and(|only| only != *ifindex) {
                continue;
            }
            let peer = all.iter().find(|p| p.ifindex == *ifindex).copied();
            let peer = peer.filter(|_| d.direct);
            if peer == d.peer.map(|(p, _)| p) && !again {
                continue;
            }
            let now = peer.and_then(|p| Some((p, peers.mac(&p).ok()??)));
            if now != d.peer {
                d.peer = now;
                changed.push(*ifindex);
            }
        }
        for ifindex in changed.into_iter().filter(|_| only.is_none()) {
            let _ = self.write_port(ifindex);
        }
    }
}
