//! Packets that operators look at: examples of dropped ones (`heddle drops`) and captures (`heddle capture`).
//!
//! Workers give examples, a few of each reason and port a second ([`heddle_datapath::DropExample`]). The last
//! one of each reason and port is kept here. The commands explain them on request. A capture lives as long as
//! its client reads it.

mod capture;
mod drops;

pub(crate) use capture::Captures;
pub(crate) use drops::Drops;
