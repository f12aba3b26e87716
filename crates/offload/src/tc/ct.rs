//! The action `ct`, the jump to a chain, and the keys of connections. Layouts are from
//! `linux/tc_act/tc_ct.h` and `linux/pkt_cls.h`.

use super::attrs;
use netlink_packet_core::DefaultNla;
use netlink_packet_route::tc::{TcAction, TcFilterFlowerOption as Key};

/// Number of bits of a chain's number (`TC_ACT_EXT_VAL_MASK`).
pub(super) const CHAIN_BITS: u32 = 28;
/// Control value: continue in another chain, whose number is in the lower bits.
const TC_ACT_GOTO_CHAIN: u32 = 2 << CHAIN_BITS;

const TCA_CT_PARMS: u16 = 1;
const TCA_CT_ACTION: u16 = 3;
pub(super) const TCA_CT_ZONE: u16 = 4;
const TCA_CT_ACT_NAT: u16 = 1 << 3;

/// Bits of flower's `ct_state`.
const NEW: u16 = 1;
const ESTABLISHED: u16 = 1 << 1;
const RELATED: u16 = 1 << 2;
const TRACKED: u16 = 1 << 3;
const INVALID: u16 = 1 << 4;
const REPLY: u16 = 1 << 5;

/// `ct` in a zone of the kernel. `nat`: translate the packet if its connection is translated.
pub(super) fn track(zone: u16, nat: bool) -> TcAction {
    let what = if nat { TCA_CT_ACT_NAT } else { 0 };
    attrs::action(
        "ct",
        vec![
            DefaultNla::new(TCA_CT_ZONE, zone.to_ne_bytes().to_vec()),
            DefaultNla::new(TCA_CT_ACTION, what.to_ne_bytes().to_vec()),
            DefaultNla::new(TCA_CT_PARMS, attrs::general(attrs::TC_ACT_PIPE)),
        ],
    )
}

/// Continues in another chain.
pub(super) fn goto_chain(chain: u32) -> TcAction {
    attrs::gact(TC_ACT_GOTO_CHAIN | chain)
}

/// Conditions on the connection of a packet, which is established.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct ConnMatch {
    /// The packet has the reply direction.
    pub(super) reply: Option<bool>,
    /// Value and mask.
    pub(super) mark: (u32, u32),
    /// Value and mask.
    pub(super) label: ([u8; 16], [u8; 16]),
}

impl ConnMatch {
    /// The keys of these conditions.
    pub(super) fn keys(&self) -> Vec<Key> {
        let mut state = TRACKED | ESTABLISHED;
        let mut mask = state | NEW | RELATED | INVALID;
        if let Some(reply) = self.reply {
            mask |= REPLY;
            state |= if reply { REPLY } else { 0 };
        }
        let mut keys = vec![Key::CtState(state), Key::CtStateMask(mask)];
        if self.mark.1 != 0 {
            keys.extend([Key::CtMark(self.mark.0), Key::CtMarkMask(self.mark.1)]);
        }
        if self.label.1 != [0; 16] {
            // The kernel's label has the host's byte order; its first word has the lowest bits.
            let (value, mask) = (words(self.label.0), words(self.label.1));
            keys.extend([Key::CtLabels(value), Key::CtLabelsMask(mask)]);
        }
        keys
    }
}

/// A label as the kernel has it.
fn words(label: [u8; 16]) -> [u8; 16] {
    match cfg!(target_endian = "little") {
        true => u128::from_be_bytes(label).to_le_bytes(),
        false => u128::from_be_bytes(label).rotate_left(64).to_be_bytes(),
    }
}
