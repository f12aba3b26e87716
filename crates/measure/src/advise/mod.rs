//! Advice: the attachment for a workload, from measured results ([`workload`]); faults of a running switch
//! ([`live`]).

pub mod live;
pub mod workload;
