//! Files and directories of `/sys` and `/proc`.

use std::path::{Path, PathBuf};

/// Paths of what a directory has, sorted; none if it cannot be read.
pub(crate) fn entries(dir: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = found.map(|e| e.path()).collect();
    all.sort();
    all
}

/// Removes leading zeros of masks, and the end of the line.
pub(crate) fn plain(text: &str) -> String {
    let text = text.trim();
    let cut = text.trim_start_matches(['0', ',']);
    if cut.is_empty() && !text.is_empty() {
        "0".to_owned()
    } else {
        cut.to_owned()
    }
}
