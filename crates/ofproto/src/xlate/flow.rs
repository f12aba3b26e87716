//! The two states of a packet in a translation. [`Flow`] is the packet as the pipeline has made it, and
//! [`Base`] is the packet as the actions emitted so far have made it. [`super::commit`] emits what turns the
//! second into the first.

use heddle_flow::FlowKey;
use std::ops::{Deref, DerefMut};

/// The packet as the pipeline has made it: a key, whose `in_port` is the OpenFlow port, and what keys do not
/// show. Actions whose changes are undone copy it before, and put the copy back after.
#[derive(Clone, Copy)]
pub(super) struct Flow {
    key: FlowKey,
    /// The last MPLS label was popped; the headers behind it were not parsed.
    pub(super) was_mpls: bool,
    /// Whether the pipeline may see the connection state of the packet.
    pub(super) conntracked: Tracked,
}

/// Whether the pipeline may see the connection state that the datapath keeps with the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tracked {
    Yes,
    No,
    /// Only if the packet was tracked when it came in.
    AsItCame,
}

/// Clears the connection state of a key.
pub(crate) fn clear_connection(f: &mut FlowKey) {
    f.ct_state = 0;
    f.ct_zone = 0;
    f.ct_mark = 0;
    f.ct_label = [0; 16];
    f.ct_nw_proto = 0;
    f.ct_tp_src = 0;
    f.ct_tp_dst = 0;
    f.ct_nw_src = 0;
    f.ct_nw_dst = 0;
    f.ct_ipv6_src = [0; 16];
    f.ct_ipv6_dst = [0; 16];
}

impl Flow {
    #[inline]
    pub(super) fn new(key: FlowKey) -> Self {
        Self {
            key,
            was_mpls: false,
            conntracked: Tracked::AsItCame,
        }
    }
    /// Clears the packet's connection state in the pipeline; that needs no action.
    pub(super) fn forget_connection(&mut self) {
        self.conntracked = Tracked::No;
        clear_connection(self);
    }
}

impl Deref for Flow {
    type Target = FlowKey;
    #[inline]
    fn deref(&self) -> &FlowKey {
        &self.key
    }
}

impl DerefMut for Flow {
    #[inline]
    fn deref_mut(&mut self) -> &mut FlowKey {
        &mut self.key
    }
}

/// The packet as the emitted actions have made it. Its key is copied when it is first written to: most
/// packets leave as they came.
#[derive(Clone)]
pub(super) struct Base<'w> {
    came: &'w FlowKey,
    own: Option<FlowKey>,
    /// Outer destination port of the tunnel that it has; keys have no such field.
    pub(super) tunnel_port: u16,
    /// A header that was pushed or popped in the flow, and not yet here.
    pub(super) pending: Option<Pending>,
}

/// A change of the packet's outermost header that is still to be emitted.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Pending {
    /// A header was pushed, with these options of a network service header.
    Encap(Vec<u8>),
    /// A header was popped.
    Decap,
}

impl<'w> Base<'w> {
    #[inline]
    pub(super) fn new(came: &'w FlowKey) -> Self {
        Self {
            came,
            own: None,
            tunnel_port: 0,
            pending: None,
        }
    }
}

impl Deref for Base<'_> {
    type Target = FlowKey;
    #[inline]
    fn deref(&self) -> &FlowKey {
        self.own.as_ref().unwrap_or(self.came)
    }
}

impl DerefMut for Base<'_> {
    #[expect(clippy::unnecessary_lazy_evaluations, reason = "a copy costs something")]
    fn deref_mut(&mut self) -> &mut FlowKey {
        self.own.get_or_insert_with(|| *self.came)
    }
}
