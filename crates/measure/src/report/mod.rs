//! Reports of results: tables for a terminal, a page with plots, comparisons of contenders, and changes
//! between two files.

mod html;
mod svg;
mod table;
#[cfg(test)]
mod tests;
mod verdict;

pub use html::{page, plots};
pub use table::{against, text};
pub(crate) use table::{bounds, figure};
pub use verdict::{Beats, Metric, Verdict, beats, compare};
