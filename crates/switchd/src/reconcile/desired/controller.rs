//! Rows of `Controller`.

use std::path::{Component, Path};
use std::time::Duration;

use heddle_ofproto::conn::ControllerConfig;
use heddle_ovsdb::{Row, Uuid};
use heddle_stream::{OPENFLOW_PORT, Passive};

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

    /// Whether the bridge connects to this controller and depends on it. A controller that connects to the
    /// bridge is only a service.
    pub(in crate::reconcile) fn is_primary(&self) -> bool {
        !self.target.starts_with('p')
    }

    /// The connection or socket to make of it. `confined`: Unix sockets must be in `rundir`, since an author
    /// of the database may have no right to the rest of the machine.
    ///
    /// # Errors
    /// The reason why the controller is left out.
    pub(in crate::reconcile) fn remote(
        &self,
        bridge: &str,
        rundir: &Path,
        confined: bool,
    ) -> Result<Remote, String> {
        let run = rundir.display();
        if let Some(path) = self.target.strip_prefix("punix:") {
            let path = rundir.join(path);
            let own = path.file_name().and_then(|f| f.to_str());
            let own = own.is_some_and(|f| f.starts_with(&format!("{bridge}.")));
            if confined && !(own && is_plainly(path.parent(), rundir)) {
                return Err(format!(
                    "bridge {bridge}: Not adding Unix domain socket controller \"{}\" due to possibility of \
                     overwriting local files. Instead, specify path in permitted format \"punix:{run}/{bridge}.*\" or \
                     connect to \"unix:{run}/{bridge}.mgmt\" (which is always available without special \
                     configuration).",
                    self.target
                ));
            }
            return Ok(Remote::Listen(Passive::Unix(path), self.probe));
        }
        if !self.is_primary() {
            let at = Passive::parse(&self.target, OPENFLOW_PORT);
            return match at {
                Ok(at) => Ok(Remote::Listen(at, self.probe)),
                Err(error) => Err(format!("bridge {bridge}: {error}")),
            };
        }
        let mut target = self.target.clone();
        if let Some(path) = self.target.strip_prefix("unix:") {
            let path = rundir.join(path);
            let inside = path
                .strip_prefix(rundir)
                .is_ok_and(|rest| rest.components().all(|c| matches!(c, Component::Normal(_))));
            if confined && !inside {
                return Err(format!(
                    "bridge {bridge}: Not connecting to socket controller \"{target}\" due to possibility for remote \
                     exploit.  Instead, specify socket in permitted directory \"unix:{run}/\" or connect to \
                     \"unix:{run}/{bridge}.mgmt\" (which is always available without special configuration)."
                ));
            }
            target = format!("unix:{}", path.display());
        }
        Ok(Remote::Call(ControllerConfig {
            target,
            max_backoff: self.max_backoff,
            probe: self.probe,
        }))
    }
}

/// The connection or socket that a row of `Controller` describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reconcile) enum Remote {
    /// Call it.
    Call(ControllerConfig),
    /// Let it call here, and probe it after this silence.
    Listen(Passive, Option<Duration>),
}

/// Whether a path is this directory, spelled the same: without `..` that lead out of it.
fn is_plainly(path: Option<&Path>, dir: &Path) -> bool {
    path.is_some_and(|p| p == dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(target: &str, confined: bool) -> Result<Remote, String> {
        let row = ControllerRow {
            uuid: Uuid::nil(),
            target: target.into(),
            max_backoff: Duration::from_secs(8),
            probe: None,
        };
        row.remote("br0", Path::new("/run/ovs"), confined)
    }

    #[test]
    fn sockets_are_confined() {
        for good in ["unix:x", "unix:/run/ovs/x", "unix:sub/x"] {
            assert!(
                matches!(remote(good, true), Ok(Remote::Call(c)) if c.target.starts_with("unix:/run/ovs/")),
                "{good}"
            );
        }
        for bad in [
            "unix:/tmp/x",
            "unix:../x",
            "unix:/run/ovs/../x",
            "punix:/tmp/br0.x",
            "punix:/run/ovs/br1.x",
            "punix:/run/ovs/br0.x/../y",
            "punix:/run/ovs/../br0.x",
            "punix:/run/ovs/br0.x/y",
        ] {
            assert!(remote(bad, true).is_err(), "{bad}");
            assert!(remote(bad, false).is_ok(), "{bad}");
        }
        assert_eq!(
            remote("punix:br0.x", true),
            Ok(Remote::Listen(Passive::Unix("/run/ovs/br0.x".into()), None))
        );
        assert!(matches!(remote("tcp:127.0.0.1:1", true), Ok(Remote::Call(_))));
        assert_eq!(
            remote("ptcp:7:127.0.0.1", true),
            Ok(Remote::Listen(Passive::Tcp(([127, 0, 0, 1], 7).into()), None))
        );
        assert!(remote("pxyz:7", true).is_err());
    }
}
