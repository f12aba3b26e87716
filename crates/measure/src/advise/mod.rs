//! Advice: which attachment for a workload, from measured results ([`workload`]); what is wrong with a
//! running switch ([`live`]).

pub mod live;
pub mod workload;
