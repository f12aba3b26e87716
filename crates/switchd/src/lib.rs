//! The daemon heddled: reconcile the database with the two halves, unixctl, logging.

pub mod cli;
pub mod commands;
pub mod coverage;
pub mod daemonize;
pub mod exit;
mod give_back;
pub mod memory;
mod metrics;
pub mod pidfile;
pub mod reconcile;
pub mod run;
mod samples;
mod sessions;
pub mod shell;
pub mod switch;
mod underlay;
pub mod unixctl;
pub mod user;
pub mod vlog;
mod watch;
