//! The header in which the mark of a packet (`skb->mark`) crosses a tap device.
//!
//! **Problem.** A tap hands over frames with a virtio-net header, which has no field for a mark. Programs at
//! the device's clsact hooks (`offload/bpf/marks.bpf.c`) read and write marks, but reach the switch only by
//! the bytes of the frame.
//!
//! **Shape.** The header follows the two addresses, like a VLAN tag. Behind it is the frame's own EtherType.
//! The header has the EtherType of IPv4, since the kernel removes bytes only from IP packets. The IP version
//! in it is 15, so a stack without the program drops the packet. The version of the header is in the same
//! byte. Headers of other kinds may have other state.
//!
//! **Trust.** A frame of a guest or of the host may begin with these bytes, too. The sending side of a tap
//! puts a header before such a frame, with mark 0 if it has none. The receiving side removes one header.

use crate::Offload;

/// Offset in the frame.
pub const AT: usize = 12;
/// Length, bytes.
pub const LEN: usize = size_of::<MarkHeader>();
/// Shortest frame that takes a header. The kernel requires an IPv4 header behind the one that it removes.
pub const MIN_FRAME: usize = 34;

/// The kind of header that has a mark.
const KIND_MARK: u8 = 1;
/// Bytes by which every kind of header is recognised: EtherType, version.
const PREFIX: [u8; 3] = [0x08, 0x00, 0xf1];

/// The header, in the order of its bytes.
#[repr(C)]
struct MarkHeader {
    ethertype: [u8; 2],
    version: u8,
    kind: u8,
    /// In network order.
    mark: [u8; 4],
}
const _: () = assert!(LEN == 8 && align_of::<MarkHeader>() == 1);

/// The header of a packet with this mark.
pub fn with(mark: u32) -> [u8; LEN] {
    let [a, b, c] = PREFIX;
    let [m0, m1, m2, m3] = mark.to_be_bytes();
    [a, b, c, KIND_MARK, m0, m1, m2, m3]
}

/// Whether a frame begins like one with a header of any kind.
#[inline]
pub fn is_in(frame: &[u8]) -> bool {
    let word = frame.get(AT..).and_then(|b| b.first_chunk::<4>());
    word.is_some_and(|[a, b, c, _]| [*a, *b, *c] == PREFIX)
}

/// The mark of a frame with a header that has one, and an EtherType behind it.
pub fn read(frame: &[u8]) -> Option<u32> {
    const ETHERTYPE: usize = 2;
    let header: &[u8; LEN + ETHERTYPE] = frame.get(AT..)?.first_chunk()?;
    let [a, b, c, kind, m0, m1, m2, m3, ..] = *header;
    ([a, b, c] == PREFIX && kind == KIND_MARK).then(|| u32::from_be_bytes([m0, m1, m2, m3]))
}

/// The metadata of a packet whose frame gets a header.
pub fn offload(of: &Offload) -> Offload {
    let mut offload = *of;
    offload.shift(LEN as i32);
    offload
}
