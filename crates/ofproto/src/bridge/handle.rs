//! What each message means to the bridge. What belongs to one connection (hello, roles, formats, which events
//! it wants) is the connection's own business and does not come here.

use super::Bridge;
use heddle_openflow::message::{
    ConfigFlags, Message, MpReply, MpRequest, QueueConfig, QueueGetConfig, TableMiss as OfMiss, TableMod,
};
use heddle_openflow::{ErrorKind, Port as OfPort, Version};

impl Bridge {
    /// Carries out one message and returns what to answer, in order. Messages that are none of the bridge's
    /// business are refused as of an unknown type.
    pub fn handle(&self, version: Version, message: &Message) -> Result<Vec<Message>, ErrorKind> {
        match message {
            Message::FeaturesRequest => Ok(vec![Message::FeaturesReply(self.features(version))]),
            Message::FlowMod(fm) => {
                self.check_flow_mod(version, fm)?;
                self.flow_mod(version, fm).map(|()| Vec::new())
            }
            Message::PacketOut(po) => self.packet_out(version, po).map(|()| Vec::new()),
            Message::PortMod(pm) => self.port_mod(pm).map(|()| Vec::new()),
            Message::TableMod(tm) => self.table_mod(tm).map(|()| Vec::new()),
            Message::MultipartRequest { body, .. } => self.answer_multipart(version, body),
            Message::QueueGetConfigRequest(q) => self.queues(q),
            _ => Err(ErrorKind::BadRequestBadType),
        }
    }

    fn answer_multipart(&self, version: Version, body: &MpRequest) -> Result<Vec<Message>, ErrorKind> {
        let body: MpReply = self.multipart(version, body)?;
        Ok(vec![Message::MultipartReply { more: false, body }])
    }

    /// No queues are configured, so every known port has none.
    fn queues(&self, q: &QueueGetConfig) -> Result<Vec<Message>, ErrorKind> {
        let known = self.state.lock().ports.contains_key(&q.port);
        if !known && !matches!(q.port, OfPort::NONE | OfPort::ALL) {
            return Err(ErrorKind::QueueOpFailedBadPort);
        }
        Ok(vec![Message::QueueGetConfigReply(QueueConfig {
            port: q.port,
            queues: Vec::new(),
        })])
    }

    fn table_mod(&self, tm: &TableMod) -> Result<(), ErrorKind> {
        let all = tm.table_id == 0xff;
        if !all && usize::from(tm.table_id) >= self.tables.len() {
            return Err(ErrorKind::TableModFailedBadTable);
        }
        let miss = tm.miss.map(|m| match m {
            OfMiss::Controller => crate::model::TableMiss::Controller,
            OfMiss::Continue => crate::model::TableMiss::Continue,
            OfMiss::Drop => crate::model::TableMiss::Drop,
        });
        let mut state = self.state.lock();
        for t in self.tables.iter().filter(|t| all || t.id == tm.table_id) {
            if let Some(evict) = tm.eviction {
                state.tables.entry(t.id).or_default().evict = evict;
            }
            if let Some(miss) = miss {
                t.set_miss(miss);
                if let Some(of) = self.of.upgrade() {
                    of.generations().bump(t.slot);
                }
            }
        }
        Ok(())
    }

    /// How fragments are treated, as `OFPT_SET_CONFIG` says. Only "normal" and Nicira's "match" change nothing
    /// about forwarding; the others are kept and reported.
    pub fn set_frag_flags(&self, flags: ConfigFlags) {
        self.state.lock().frag_flags = flags.bits();
    }

    /// What `set_frag_flags` was last told.
    pub fn frag_flags(&self) -> ConfigFlags {
        ConfigFlags::from_bits_truncate(self.state.lock().frag_flags)
    }
}
