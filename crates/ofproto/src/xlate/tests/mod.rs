//! Tests of translation as a whole: bridges of a few ports, random rules, random packets.

mod bonds;
mod bounds;
mod ct;
mod encap;
mod fields;
mod isolation;
pub(crate) mod lab;
mod normal;
mod parts;
mod peer;
mod pipeline;
mod props;
mod snoop;
mod snooping;
mod standby;
mod underlay;
mod without_features;
