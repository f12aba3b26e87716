//! Carries out the messages that concern the bridge. The connection handles those that concern itself alone
//! (hello, roles, formats, the events that it wants).

use super::{Bridge, Origin, ct_flush};
use heddle_openflow::message::{ConfigFlags, Message, QueueConfig};
use heddle_openflow::{ErrorKind, Version, decode_ct_flush};

impl Bridge {
    /// Carries out one message and returns the replies, in order. Messages that do not concern the bridge are
    /// refused as of an unknown type.
    pub fn handle(
        &self,
        version: Version,
        origin: Option<Origin>,
        message: &Message,
    ) -> Result<Vec<Message>, ErrorKind> {
        match message {
            Message::FeaturesRequest => Ok(vec![Message::FeaturesReply(self.features(version))]),
            Message::FlowMod(fm) => self.flow_mod_by(version, fm, origin).map(|()| Vec::new()),
            Message::GroupMod(gm) => self.group_mod_by(gm, origin).map(|()| Vec::new()),
            Message::MeterMod(mm) => self.meter_mod_by(mm, origin).map(|()| Vec::new()),
            Message::PacketOut(po) => self.packet_out(version, po).map(|()| Vec::new()),
            Message::Resume(p) => self.resume(version, p).map(|()| Vec::new()),
            Message::PortMod(pm) => self.port_mod(pm, origin.map(|o| o.peer)).map(|()| Vec::new()),
            Message::TableMod(tm) => self.table_mod(tm).map(|()| Vec::new()),
            Message::TlvTableMod(m) => self.tlv_table_mod(m).map(|()| Vec::new()),
            Message::TlvTableRequest => Ok(vec![Message::TlvTableReply(self.tlv_table())]),
            Message::CtFlushZone(zone) => {
                self.forget_connections(&ct_flush::of_zone(*zone));
                Ok(Vec::new())
            }
            Message::CtFlush { ip_proto, properties } => {
                let wanted = decode_ct_flush(*ip_proto, properties)?;
                self.forget_connections(&wanted);
                Ok(Vec::new())
            }
            Message::MultipartRequest { body, .. } => {
                let body = self.multipart(version, body)?;
                Ok(vec![Message::MultipartReply { more: false, body }])
            }
            Message::QueueGetConfigRequest(q) => {
                let all = self.queue_configs(q)?;
                // A reply of 1.3 and earlier is for one port (a request for all of them gets one with all
                // queues).
                let queues = all.into_iter().flat_map(|p| p.queues).collect();
                Ok(vec![Message::QueueGetConfigReply(QueueConfig {
                    port: q.port,
                    queues,
                })])
            }
            _ => Err(ErrorKind::BadRequestBadType),
        }
    }

    /// Sets the treatment of fragments, by `OFPT_SET_CONFIG`. The bridge reassembles none. A request for that
    /// leaves the treatment as it was, with a line in the log and, as in Open vSwitch, no error.
    pub fn set_frag_flags(&self, flags: ConfigFlags) {
        let mut state = self.state.lock();
        let mut new = flags;
        if flags & ConfigFlags::FRAG_MASK == ConfigFlags::FRAG_REASM {
            log::warn!(target: "ofproto", "{}: unsupported fragment handling mode reassemble", self.name);
            let old = ConfigFlags::from_bits_truncate(state.frag_flags);
            new = (flags - ConfigFlags::FRAG_MASK) | (old & ConfigFlags::FRAG_MASK);
        }
        let old = std::mem::replace(&mut state.frag_flags, new.bits());
        drop(state);
        if old != new.bits()
            && let Some(of) = self.of.upgrade()
        {
            of.publish();
        }
    }

    /// The flags that are in force.
    pub fn frag_flags(&self) -> ConfigFlags {
        ConfigFlags::from_bits_truncate(self.state.lock().frag_flags)
    }
}
