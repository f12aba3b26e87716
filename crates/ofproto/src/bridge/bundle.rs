//! Bundles: many messages that take effect together (OpenFlow 1.4 §6.9).
//!
//! All flow mods and group mods of a bundle are steps of one [`Change`]: workers see them all at once, or, where one of them fails, none.
//! A packet-out sees the tables as the messages before it leave them; its packet leaves when all has gone well.
//! Ports cannot be changed in a way that workers see at the same moment, so an atomic bundle with a port mod is refused.

use super::change::Change;
use super::packet_out::Prepared;
use super::{Bridge, Origin};
use heddle_openflow::message::{BUNDLE_ATOMIC, Message, PortMod};
use heddle_openflow::{ErrorKind, Version};

/// One message of a bundle.
pub struct BundleEntry<M> {
    /// The transaction id of the message that carried it.
    pub xid: u32,
    /// The message, or how to get it.
    pub message: M,
}

/// Which entry of a bundle failed, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BundleFailed {
    /// Its place.
    pub index: usize,
    /// What was wrong with it.
    pub kind: ErrorKind,
}

/// What is left to do when every step has been taken.
enum Later {
    PacketOut(Box<Prepared>),
    PortMod(PortMod),
}

impl Bridge {
    /// Checks a message as far as that can be done before its bundle is committed.
    pub fn check_bundled(&self, version: Version, message: &Message) -> Result<(), ErrorKind> {
        match message {
            Message::FlowMod(fm) => self.check_flow_mod(version, fm),
            Message::GroupMod(_) => Ok(()),
            Message::PacketOut(po) => self.check_packet_out(version, po).map(|_| ()),
            Message::PortMod(_) => Ok(()),
            Message::Unsupported(u) => Err(u.error.kind),
            _ => Err(ErrorKind::BundleFailedMsgUnsup),
        }
    }

    /// Carries out a bundle; `read` gives an entry's message.
    ///
    /// # Errors
    /// The first entry that failed; no flow has changed then.
    pub fn commit_bundle<M>(
        &self,
        version: Version,
        peer: u64,
        flags: u16,
        entries: &[BundleEntry<M>],
        read: impl Fn(&M) -> Result<Message, ErrorKind>,
    ) -> Result<(), BundleFailed> {
        let later = self.change(None, |c| {
            let mut later = Vec::new();
            for (index, e) in entries.iter().enumerate() {
                c.origin = Some(Origin { peer, xid: e.xid });
                let done = read(&e.message).and_then(|m| c.bundled(version, flags, &m));
                later.extend(done.map_err(|kind| BundleFailed { index, kind })?);
            }
            Ok(later)
        })?;
        for l in later {
            match l {
                Later::PacketOut(p) => self.finish_packet_out(*p),
                // It was checked: only a port that has gone since can make it fail, which is as good as done.
                Later::PortMod(pm) => drop(self.port_mod(&pm, Some(peer))),
            }
        }
        Ok(())
    }
}

impl Change<'_> {
    fn bundled(&mut self, version: Version, flags: u16, m: &Message) -> Result<Option<Later>, ErrorKind> {
        match m {
            Message::FlowMod(fm) => {
                self.bridge.check_flow_mod(version, fm)?;
                self.flow_mod(version, fm).map(|()| None)
            }
            Message::GroupMod(gm) => self.group_mod(gm).map(|()| None),
            Message::PacketOut(po) => {
                let input = self.bridge.check_packet_out(version, po)?;
                let prepared = self.bridge.prepare_packet_out(po, input, Some(self.version))?;
                Ok(prepared.map(|p| Later::PacketOut(Box::new(p))))
            }
            Message::PortMod(_) if flags & BUNDLE_ATOMIC != 0 => Err(ErrorKind::BundleFailedMsgFailed),
            Message::PortMod(pm) => {
                let port = self
                    .state
                    .ports
                    .get(&pm.port)
                    .ok_or(ErrorKind::PortModFailedBadPort)?;
                if pm.hw_addr != [0; 6] && pm.hw_addr != port.config.mac {
                    return Err(ErrorKind::PortModFailedBadHwAddr);
                }
                Ok(Some(Later::PortMod(pm.clone())))
            }
            _ => Err(ErrorKind::BundleFailedMsgUnsup),
        }
    }
}
