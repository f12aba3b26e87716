//! Fields of packets that only filters of tc match on, beside those of [`Headers`](crate::Headers).

use crate::Why;
use heddle_flow::FlowKey;
use heddle_flow::key::{Vlan, frag};

/// TCP flags (FIN, SYN, RST) of packets that go up, if the rule tracks or does not have
/// [`Rule::all_flags`](crate::Rule::all_flags).
pub const TCP_UP: u16 = 0x007;
const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const DOT1Q: u16 = 0x8100;
const DOT1AD: u16 = 0x88a8;

/// The fields; or a mask of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MoreHeaders {
    /// TCP flags, 12 bits.
    pub tcp_flags: u16,
    /// Bits of a fragment ([`frag`]).
    pub frag: u8,
    /// ARP: hardware address of the sender.
    pub arp_sha: [u8; 6],
    /// ARP: hardware address of the target.
    pub arp_tha: [u8; 6],
    /// EtherType of the outermost tag.
    pub tpid: u16,
    /// The tag behind it: EtherType, and control information with [`Vlan::CFI`].
    pub inner: (u16, u16),
}

/// The match of a rule on more fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct More {
    /// Why a back end without these fields cannot have the rule. `None`: it can, and a filter of tc is for
    /// those packets of the rule that have the fields.
    pub why: Option<Why>,
    /// Values of the fields in the bits of the mask.
    pub key: MoreHeaders,
    /// Bits that are compared.
    pub mask: MoreHeaders,
}

impl More {
    /// Moves the fields out of a masked key. `packet`: the whole key of one of the flow's packets. `None`:
    /// the flow has nothing of that kind.
    ///
    /// # Errors
    /// No back end has the fields.
    pub(crate) fn take(packet: &FlowKey, rest: &mut FlowKey, m: &FlowKey) -> Result<Option<More>, Why> {
        let mut more = More {
            why: None,
            key: MoreHeaders::default(),
            mask: MoreHeaders::default(),
        };
        let is_ip = matches!(packet.dl_type, IPV4 | IPV6);
        if m.dl_type == u16::MAX && !is_ip {
            if packet.dl_type != ARP {
                return Err(Why::Protocol);
            }
            more.why = Some(Why::Protocol);
            (more.key.arp_sha, more.mask.arp_sha) = (std::mem::take(&mut rest.arp_sha), m.arp_sha);
            (more.key.arp_tha, more.mask.arp_tha) = (std::mem::take(&mut rest.arp_tha), m.arp_tha);
        }
        if is_ip && m.nw_proto == u8::MAX && !matches!(packet.nw_proto, 1 | 6 | 17 | 58) {
            more.why = Some(Why::Protocol);
        }
        // Other back ends send packets with these flags up, and see no others.
        let flags = std::mem::take(&mut rest.tcp_flags);
        if flags != 0 || m.tcp_flags & !TCP_UP != 0 {
            more.why = Some(Why::TcpFlags);
        }
        (more.key.tcp_flags, more.mask.tcp_flags) = (flags, m.tcp_flags);
        let part = std::mem::take(&mut rest.nw_frag);
        if part != 0 {
            if m.nw_frag & frag::MASK != frag::MASK {
                return Err(Why::Match);
            }
            more.why = Some(Why::Fragments);
            (more.key.frag, more.mask.frag) = (part, frag::MASK);
        }
        more.tags(packet, rest, m)?;
        Ok((more.why.is_some() || more.mask != MoreHeaders::default()).then_some(more))
    }

    /// Moves the tags' types and the second tag out of a masked key.
    fn tags(&mut self, packet: &FlowKey, rest: &mut FlowKey, m: &FlowKey) -> Result<(), Why> {
        let [outer, inner] = packet.vlans;
        let second = std::mem::take(&mut rest.vlans[1]);
        let tpid = std::mem::take(&mut rest.vlans[0].tpid);
        if !outer.present() {
            return Ok(());
        }
        // Other back ends have packets with one tag of 802.1Q only.
        let is_plain = m.vlans[0].tpid == 0 || tpid == DOT1Q & m.vlans[0].tpid;
        if second != Vlan::default() || !is_plain {
            self.why = Some(Why::Vlan);
        }
        if !inner.present() && outer.tpid == DOT1Q {
            return Ok(());
        }
        if !matches!(outer.tpid, DOT1Q | DOT1AD) || inner.present() && inner.tpid != DOT1Q {
            return self.why.map_or(Ok(()), Err);
        }
        (self.key.tpid, self.mask.tpid) = (outer.tpid, u16::MAX);
        if inner.present() {
            let bits = m.vlans[1].tci | Vlan::CFI;
            (self.key.inner, self.mask.inner) = ((inner.tpid, inner.tci & bits), (u16::MAX, bits));
        }
        Ok(())
    }

    /// The EtherType of the outermost tag, in a rule of packets with a tag.
    pub(crate) fn tpid(more: Option<&More>) -> u16 {
        more.filter(|more| more.mask.tpid != 0)
            .map_or(DOT1Q, |more| more.key.tpid)
    }

    /// Whether packets have two tags.
    pub(crate) fn has_two_tags(&self) -> bool {
        self.mask.inner.0 != 0
    }
}
