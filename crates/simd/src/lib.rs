//! Vector instructions of the lookup path: prefetches, comparison of tags, and hashes of many masks at once.
//!
//! Problem: a lookup spends its few dozen cycles on comparing and hashing, and the compiler does not find the
//! vector instructions for them by itself.
//!
//! Invariants: every function is safe to call on any processor, and equals its plain twin bit for bit. A
//! property test of each compares them.
//!
//! Costs: no allocation, no lock, no system call.

#![allow(unsafe_code)] // vector intrinsics and prefetches; each block says why it is sound

pub mod nh;
pub mod simd;
