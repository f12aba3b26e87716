//! Tags on the wire, and VLANs inside the bridge.

use crate::model::{PortBundle, PriorityTags, VlanMode};
use heddle_flow::{FlowKey, N_VLANS, Vlan};
use heddle_wire::eth::{ethertype as eth, is_vlan};

/// One tag. Priority in place (upper three bits of the TCI).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::xlate) struct Tag {
    pub(super) tpid: u16,
    pub(super) vid: u16,
    pub(super) pcp: u16,
}

/// Tags, or the VLANs that a packet is in, outermost first.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::xlate) struct Tags(pub(super) [Tag; N_VLANS]);

/// Whether a trunk carries `vid`. A native port always carries its native VLAN, and never VLAN 0 beside it.
pub(super) fn trunks(b: &PortBundle, vid: u16) -> bool {
    let native =
        matches!(b.vlan_mode, VlanMode::NativeTagged | VlanMode::NativeUntagged).then(|| own_vlan(b));
    match native {
        _ if b.vlan_mode == VlanMode::Access => false,
        Some(own) if own != 0 && (vid == own || vid == 0) => vid == own,
        _ => b.trunks.as_ref().is_none_or(|t| t.contains(vid)),
    }
}

/// Whether a dot1q tunnel carries the customer's VLAN.
pub(super) fn allows_cvlan(b: &PortBundle, vid: u16) -> bool {
    b.cvlans.as_ref().is_none_or(|c| c.contains(vid))
}

/// Access, native or service VLAN.
fn own_vlan(b: &PortBundle) -> u16 {
    b.tag.filter(|t| *t < 4096).unwrap_or(0)
}

fn qinq(b: &PortBundle) -> u16 {
    if b.qinq_ethtype == 0 {
        eth::QINQ
    } else {
        b.qinq_ethtype
    }
}

impl Tags {
    /// The tags that a packet has.
    pub(in crate::xlate) fn of(key: &FlowKey) -> Self {
        let mut tags = Self::default();
        let present = key.vlans.iter().take_while(|v| is_vlan(v.tpid) && v.present());
        for (tag, v) in tags.0.iter_mut().zip(present) {
            *tag = Tag {
                tpid: v.tpid,
                vid: v.vid(),
                pcp: v.tci & Vlan::PCP_MASK,
            };
        }
        tags
    }

    /// The outer VLAN; 0: none.
    pub(in crate::xlate) fn vid(&self) -> u16 {
        self.0[0].vid
    }
    /// The same, but in another outer VLAN.
    pub(in crate::xlate) fn moved_to(mut self, vid: u16) -> Self {
        self.0[0].vid = vid;
        self
    }

    fn pop(&mut self) {
        self.0.copy_within(1.., 0);
        self.0[N_VLANS - 1] = Tag::default();
    }

    /// The VLANs of a packet that came in with these tags. `None`: from a controller, as on a trunk.
    pub(in crate::xlate) fn on_input(self, from: Option<&PortBundle>) -> Self {
        let Some(from) = from else { return self };
        let mut vlans = self;
        let tpid = if self.0[0].tpid != 0 {
            self.0[0].tpid
        } else {
            eth::VLAN
        };
        let own = Tag {
            tpid,
            vid: own_vlan(from),
            pcp: self.0[0].pcp,
        };
        match from.vlan_mode {
            VlanMode::Access => {
                vlans = Self::default();
                vlans.0[0] = own;
            }
            VlanMode::NativeTagged | VlanMode::NativeUntagged if self.0[0].vid == 0 => vlans.0[0] = own,
            VlanMode::Trunk | VlanMode::NativeTagged | VlanMode::NativeUntagged => {}
            VlanMode::Dot1qTunnel => {
                vlans.0.copy_within(..N_VLANS - 1, 1);
                vlans.0[0] = Tag {
                    tpid: qinq(from),
                    vid: own_vlan(from),
                    pcp: 0,
                };
            }
        }
        vlans
    }

    /// The tags of a packet in these VLANs that goes out. `first` is the outermost tag that it has now.
    pub(in crate::xlate) fn on_output(self, to: &PortBundle, first: Vlan) -> Self {
        let mut tags = self;
        match to.vlan_mode {
            VlanMode::Access => tags = Self::default(),
            VlanMode::Trunk | VlanMode::NativeTagged => {}
            VlanMode::NativeUntagged if self.0[0].vid == own_vlan(to) => tags.pop(),
            VlanMode::NativeUntagged => {}
            VlanMode::Dot1qTunnel => tags.pop(),
        }
        if to.priority_tags != PriorityTags::Never {
            tags.0[0].pcp = first.tci & Vlan::PCP_MASK;
        }
        tags
    }

    /// Whether packets in these VLANs may go out on `to`.
    pub(in crate::xlate) fn are_in(&self, to: &PortBundle) -> bool {
        let [outer, inner] = &self.0;
        match to.vlan_mode {
            VlanMode::Access => outer.vid == own_vlan(to) && inner.vid == 0,
            VlanMode::Trunk | VlanMode::NativeTagged | VlanMode::NativeUntagged => trunks(to, outer.vid),
            VlanMode::Dot1qTunnel => outer.vid == own_vlan(to) && allows_cvlan(to, inner.vid),
        }
    }

    /// Writes the tags to a key. VLAN 0 needs a tag only for its priority.
    pub(super) fn put(&self, key: &mut FlowKey, priority_tags: PriorityTags) {
        for (v, tag) in key.vlans.iter_mut().zip(&self.0) {
            let tci = tag.vid | tag.pcp;
            *v = if tci != 0 || priority_tags == PriorityTags::Always && tag.tpid != 0 {
                Vlan {
                    tpid: if tag.tpid != 0 { tag.tpid } else { eth::VLAN },
                    tci: tci | Vlan::CFI,
                }
            } else {
                Vlan::default()
            };
        }
    }
}

/// The tags with which a packet in this VLAN (0: none) leaves a bundle. `None`: the bundle does not carry it.
pub(crate) fn tags_on_output(to: &PortBundle, vlan: u16) -> Option<Vec<Vlan>> {
    let mut vlans = Tags::default();
    vlans.0[0] = Tag {
        tpid: eth::VLAN,
        vid: vlan,
        pcp: 0,
    };
    if !vlans.are_in(to) {
        return None;
    }
    let mut key = FlowKey::default();
    vlans
        .on_output(to, Vlan::default())
        .put(&mut key, to.priority_tags);
    Some(key.vlans.into_iter().filter(|v| v.present()).collect())
}
