//! Bundles: many messages that take effect together (OpenFlow 1.4 §6.9).
//!
//! All flow mods and group mods of a bundle are steps of one [`Change`]: workers see them all at once, or
//! none after a failure. A packet-out sees the tables as the messages before it leave them; its packet leaves
//! when all has gone well. Ports cannot be changed in a way that workers see at the same moment, so an atomic
//! bundle with a port mod is refused.

use super::change::Change;
use super::packet_out::Prepared;
use super::{Addition, Bridge, Origin};
use heddle_classifier::MiniMask;
use heddle_openflow::message::{BUNDLE_ATOMIC, Message, PortMod};
use heddle_openflow::{ErrorKind, Version};
use std::collections::HashMap;
use std::sync::Arc;

/// Number of flows under one mask from which room is made for them beforehand.
const MIN_RESERVED_FLOWS: usize = 1024;

/// One message of a bundle that is committed.
pub enum Bundled {
    /// A flow mod that was prepared.
    Addition(Addition),
    /// Any other.
    Message(Box<Message>),
}

/// The entry of a bundle that failed, with its error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BundleFailed {
    /// Index of the entry.
    pub index: usize,
    /// The error.
    pub kind: ErrorKind,
}

/// A message that is carried out when every step has been taken.
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

    /// Makes room for flows that are to be added, so that tables need not grow while that is done.
    pub(crate) fn make_ready<'a>(&self, additions: impl Iterator<Item = &'a Addition>) {
        let mut places: HashMap<(u8, *const MiniMask), (&Arc<MiniMask>, usize)> = HashMap::new();
        for a in additions {
            let (table, mask) = a.place();
            places.entry((table, Arc::as_ptr(mask))).or_insert((mask, 0)).1 += 1;
        }
        let _tables_in_use = self.tables_in_use.read();
        for ((table, _), (mask, n)) in places {
            if let Some(t) = self
                .tables
                .get(usize::from(table))
                .filter(|_| n >= MIN_RESERVED_FLOWS)
            {
                t.rules.reserve(mask, n);
            }
        }
    }

    /// Carries out a bundle of messages, which come with their transaction ids.
    ///
    /// # Errors
    /// The first entry that failed; no flow has changed then.
    pub fn commit_bundle(
        &self,
        version: Version,
        peer: u64,
        flags: u16,
        entries: impl IntoIterator<Item = (u32, Result<Bundled, ErrorKind>)>,
    ) -> Result<(), BundleFailed> {
        let later = self.change(None, |c| {
            let mut later = Vec::new();
            for (index, (xid, message)) in entries.into_iter().enumerate() {
                c.origin = Some(Origin { peer, xid });
                let done = message.and_then(|m| match m {
                    Bundled::Addition(new) => c.add_prepared(new).map(|()| None),
                    Bundled::Message(m) => c.bundled(version, flags, &m),
                });
                later.extend(done.map_err(|kind| BundleFailed { index, kind })?);
                c.state.refs.end_message();
            }
            Ok(later)
        })?;
        for l in later {
            match l {
                Later::PacketOut(p) => self.finish_packet_out(*p),
                // The port mod was checked: it fails only if the port has gone since, which is as good as
                // done.
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
                // The packet-out sees what the messages before it do.
                self.publish();
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

#[cfg(test)]
mod tests {
    use super::super::tests::concurrent::{bridge, rule};
    use super::*;
    use heddle_datapath_api::{Action as DpAction, PortNo};
    use heddle_flow::Match;
    use heddle_openflow::message::PacketOut;
    use heddle_openflow::{Action, Port};

    /// Also where rules are the first ones of their mask.
    #[test]
    fn a_packet_out_sees_the_rules_that_were_added_before_it() {
        let (_of, bridge) = bridge();
        let mut metadata = Match::any();
        metadata.key.in_port = 1;
        let output = Action::Output {
            port: Port::TABLE,
            max_len: 0,
        };
        let out = Message::PacketOut(Box::new(PacketOut {
            metadata,
            buffer_id: None,
            actions: vec![output],
            data: vec![0; 60],
        }));
        let mut seen = Vec::new();
        let done = bridge.change(None, |c| {
            for to in 2..5 {
                let fm = rule((to == 3).then_some(0), u16::try_from(to).expect("few"), to);
                c.flow_mod(Version::V14, &fm)?;
                match c.bundled(Version::V14, BUNDLE_ATOMIC, &out)? {
                    Some(Later::PacketOut(p)) => seen.push(p.translation.actions.to_vec()),
                    _ => panic!("a packet-out that does nothing"),
                }
            }
            Ok::<(), ErrorKind>(())
        });
        assert_eq!(done, Ok(()));
        let to = |n| vec![DpAction::Output(PortNo(n))];
        assert_eq!(seen, [to(2), to(2), to(4)]);
    }
}
