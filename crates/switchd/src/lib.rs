//! The daemon heddled: reconcile the database with the two halves.

pub mod cli;
pub mod commands;
pub mod context;
mod diagnostics;
mod give_back;
pub mod inventory;
mod kernel_conntrack;
mod log_modules;
mod metrics;
mod migration;
mod mirror_state;
mod path_mtu;
mod priority;
pub mod reconcile;
pub mod run;
mod sample_counts;
mod samples;
mod sessions;
pub mod shell;
pub mod switch;
mod underlay;
pub mod user;
