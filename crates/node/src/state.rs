//! The values before the first change: a file, written before each change.

use crate::setting::Target;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedValue {
    pub(crate) target: Target,
    /// Value before the first change; `None`: not set.
    pub(crate) before: Option<String>,
}

/// All changes, the first one first.
#[derive(Debug)]
pub(crate) struct SavedValues {
    path: PathBuf,
    pub(crate) entries: Vec<SavedValue>,
}

impl SavedValues {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let entries = match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).with_context(|| path.display().to_string())?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e).with_context(|| path.display().to_string()),
        };
        Ok(Self {
            path: path.to_owned(),
            entries,
        })
    }

    /// Notes the present value of a target. An earlier note is kept; then the result is `false`.
    pub(crate) fn note(&mut self, target: &Target, before: Option<String>) -> Result<bool> {
        if self.entries.iter().any(|e| e.target == *target) {
            return Ok(false);
        }
        self.entries.push(SavedValue {
            target: target.clone(),
            before,
        });
        self.save()?;
        Ok(true)
    }

    /// Forgets a change that was undone.
    pub(crate) fn forget(&mut self, target: &Target) -> Result<()> {
        self.entries.retain(|e| e.target != *target);
        self.save()
    }

    /// Writes a new file and renames it, so that the file is never half written.
    fn save(&self) -> Result<()> {
        let save = || -> std::io::Result<()> {
            if self.entries.is_empty() {
                return match std::fs::remove_file(&self.path) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
                    _ => Ok(()),
                };
            }
            if let Some(dir) = self.path.parent() {
                std::fs::create_dir_all(dir)?;
            }
            let new = self.path.with_extension("new");
            let mut file = std::fs::File::create(&new)?;
            serde_json::to_writer_pretty(&mut file, &self.entries)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            std::fs::rename(&new, &self.path)
        };
        save().with_context(|| self.path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/state.json");
        let (a, b) = (Target::OtherConfig("a".into()), Target::Module("m".into()));
        let mut state = SavedValues::open(&path).unwrap();
        assert!(state.note(&a, Some("1".into())).unwrap());
        assert!(state.note(&b, None).unwrap());
        assert!(!state.note(&a, Some("2".into())).unwrap());
        let mut again = SavedValues::open(&path).unwrap();
        assert_eq!(again.entries, state.entries);
        assert_eq!(
            again.entries[0],
            SavedValue {
                target: a.clone(),
                before: Some("1".into())
            }
        );
        again.forget(&a).unwrap();
        again.forget(&b).unwrap();
        assert!(!path.exists() && SavedValues::open(&path).unwrap().entries.is_empty());
        std::fs::write(&path, "nonsense").unwrap();
        assert!(SavedValues::open(&path).is_err());
    }
}
