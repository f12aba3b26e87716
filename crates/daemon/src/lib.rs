//! Parts that Open vSwitch's daemons have in common: detaching, pid file, log, control socket, counters.
//!
//! The crate knows nothing of a switch.

pub mod commands;
pub mod coverage;
pub mod daemonize;
pub mod dirs;
pub mod exit;
pub mod memory;
pub mod pidfile;
pub mod unixctl;
pub mod vlog;
