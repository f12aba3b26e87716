//! When a notification is due (virtio 1.2 §2.7.10 and §2.8.10): the one comparison that both sides make.

/// Split ring with EVENT_IDX: whether the index went past `event` on its way from `old` to `new` (indices
/// modulo 2^16).
#[inline]
pub(crate) fn split_event_passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Packed ring: whether the descriptor named by `off_wrap` (position, wrap counter in bit 15) is among the
/// last `count` slots. These end before position `new` of a ring of `size` slots whose wrap counter is now
/// `wrap`.
#[inline]
pub(crate) fn packed_event_passed(off_wrap: u16, new: u16, wrap: bool, count: u32, size: u16) -> bool {
    if count >= u32::from(size) {
        return true; // a whole round passed every descriptor
    }
    let event = u32::from(off_wrap & 0x7fff);
    let size = u32::from(size);
    if event >= size {
        return true; // no such descriptor: the safe error is to notify
    }
    // The distance of the named descriptor behind `new`, in slots: 1 is the one just passed.
    let behind = if (off_wrap >> 15 != 0) == wrap {
        i64::from(new) - i64::from(event)
    } else {
        i64::from(new) + i64::from(size) - i64::from(event)
    };
    (1..=i64::from(count)).contains(&behind)
}

#[cfg(all(test, loom))]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a walk over each index that was passed.
        #[test]
        fn split_matches_a_walk(event: u16, old: u16, n in 0_u16..2000, near in 0_u16..2100, use_near: bool) {
            let event = if use_near { old.wrapping_add(near).wrapping_sub(50) } else { event };
            let passed = (0..n).any(|i| old.wrapping_add(i) == event);
            prop_assert_eq!(split_event_passed(event, old.wrapping_add(n), old), passed);
        }

        /// Against a walk over each slot that was passed.
        #[test]
        fn packed_matches_a_walk(size in 1_u16..40, start in 0_u16..40, wrap0: bool, count in 0_u32..80, at in 0_u16..40, wrap_e: bool) {
            let (start, at) = (start % size, at % size);
            let (mut pos, mut wrap, mut passed) = (start, wrap0, false);
            for _ in 0..count {
                passed |= pos == at && wrap == wrap_e;
                pos += 1;
                if pos == size { pos = 0; wrap = !wrap; }
            }
            let got = packed_event_passed(at | u16::from(wrap_e) << 15, pos, wrap, count, size);
            // After a whole round the result is always yes: an extra notification is the safe error.
            prop_assert_eq!(got, passed || count >= u32::from(size));
        }
    }
}
