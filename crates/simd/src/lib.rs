//! Vector instructions of the lookup path: prefetches, comparison of tags, and hashes of many masks at once.
//! Beside them is the keyed hash of single keys ([`hash`]).
//!
//! Problem: a lookup spends its few dozen cycles on comparing and hashing, and the compiler does not find the
//! vector instructions for them by itself.
//!
//! Invariants: every function is safe to call on any processor, and equals its plain twin bit for bit. A
//! property test of each compares them.
//!
//! Costs: no allocation, no lock, no system call.

pub mod hash;
pub mod nh;
pub mod simd;
