//! Virtual functions of a card (SR-IOV): their settings are at the device of the physical function.

use super::NetConfig;
use netlink_packet_core::NLM_F_ACK;
use netlink_packet_route::RouteNetlinkMessage::SetLink;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkVfInfo, VfInfo, VfInfoMac, VfInfoTrust};
use std::io;

/// Changes of a virtual function; `None` leaves a setting as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VfChange {
    /// Hardware address that the function must use; zeros: any.
    pub mac: Option<[u8; 6]>,
    /// Whether the function may change its address and receive all packets.
    pub trust: Option<bool>,
}

impl NetConfig {
    /// Changes virtual function number `vf` of the device `pf`, in one request.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the driver lacks the setting; `EINVAL`: there is no such function.
    pub fn change_vf(&self, pf: u32, vf: u32, change: VfChange) -> io::Result<()> {
        let mac = change.mac.map(|mac| VfInfo::Mac(VfInfoMac::new(vf, &mac)));
        let trust = change.trust.map(|on| VfInfo::Trust(VfInfoTrust::new(vf, on)));
        let info: Vec<VfInfo> = mac.into_iter().chain(trust).collect();
        if info.is_empty() {
            return Ok(());
        }
        let mut request = LinkMessage::default();
        request.header.index = pf;
        request
            .attributes
            .push(LinkAttribute::VfInfoList(vec![LinkVfInfo(info)]));
        self.0.ask(SetLink(request), NLM_F_ACK, drop)
    }
}
