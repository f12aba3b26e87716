//! Sums over packets whose bytes are in several segments.

use heddle_packet::Packet;
use heddle_wire::checksum::Sum;

/// Bytes that are copied and summed at a time where they are not private.
const PIECE_BYTES: usize = 512;

/// Adds `len` bytes of a packet, from byte `at` on, to a sum. `None`: the packet ends before.
pub fn add_bytes(mut sum: Sum, p: &Packet, at: usize, len: usize) -> Option<Sum> {
    let private = p.head().get(at..)?;
    if let Some(all) = private.get(..len) {
        return Some(sum.bytes(all));
    }
    let mut piece = [0; PIECE_BYTES];
    for done in (0..len).step_by(PIECE_BYTES) {
        // Only the last piece may be of odd length.
        let some = piece.get_mut(..PIECE_BYTES.min(len - done))?;
        if p.copy_from(at + done, some) < some.len() {
            return None;
        }
        sum = sum.bytes(some);
    }
    Some(sum)
}
