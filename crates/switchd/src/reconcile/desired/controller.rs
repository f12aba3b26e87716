//! Rows of `Controller`.

use std::path::Path;
use std::time::Duration;

use heddle_ofproto::conn::ControllerConfig;
use heddle_ovsdb::{Row, Uuid};

use super::{text, value};

/// A controller of one bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reconcile) struct ControllerRow {
    pub(in crate::reconcile) uuid: Uuid,
    pub(in crate::reconcile) target: String,
    max_backoff: Duration,
    probe: Option<Duration>,
}

impl ControllerRow {
    pub(super) fn read(row: &Row) -> ControllerRow {
        let ms = |column| value(row.opt_int(column)).map(|n| u64::try_from(n).unwrap_or(0));
        ControllerRow {
            uuid: row.uuid(),
            target: text(row, "target"),
            max_backoff: Duration::from_secs(ms("max_backoff").map_or(8, |ms| ms / 1000)),
            // Whole seconds, at least one; zero switches probing off.
            probe: match ms("inactivity_probe") {
                None => Some(Duration::from_secs(5)),
                Some(0) => None,
                Some(ms) => Some(Duration::from_secs((ms / 1000).max(1))),
            },
        }
    }

    /// What to connect to. `confined`: Unix sockets lie in `rundir`, nowhere else, for the database may be written by
    /// somebody who has no right to the rest of the machine.
    ///
    /// # Errors
    /// Why it is left out.
    pub(in crate::reconcile) fn config(
        &self,
        bridge: &str,
        rundir: &Path,
        confined: bool,
    ) -> Result<ControllerConfig, String> {
        let mut target = self.target.clone();
        if let Some(path) = self.target.strip_prefix("unix:") {
            let path = Path::new(path);
            let plain = path
                .components()
                .all(|c| matches!(c, std::path::Component::Normal(_)));
            let inside = path.strip_prefix(rundir).is_ok_and(|rest| {
                rest.components()
                    .all(|c| matches!(c, std::path::Component::Normal(_)))
            });
            if confined && !inside && !plain {
                let run = rundir.display();
                return Err(format!(
                    "bridge {bridge}: Not connecting to socket controller \"{target}\" due to possibility for remote \
                     exploit.  Instead, specify socket in permitted directory \"unix:{run}/\" or connect to \
                     \"unix:{run}/{bridge}.mgmt\" (which is always available without special configuration)."
                ));
            }
            target = format!("unix:{}", rundir.join(path).display());
        }
        Ok(ControllerConfig {
            target,
            max_backoff: self.max_backoff,
            probe: self.probe,
        })
    }
}
