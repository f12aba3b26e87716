//! What results say: tables for a terminal, a page with plots, who beats whom, and what changed between two
//! files.

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
