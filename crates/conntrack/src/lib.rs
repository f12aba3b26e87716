//! Connection tracking: zones, states, address translation, limits, expiry.

pub mod action;

pub use action::{CtAction, CtHelper, CtNat, NatEnd, NatHow, NatRange};
