//! `--user`: giving up root, but not what a switch needs.
//!
//! The process keeps the capabilities to configure the network, to open raw and packet sockets, to broadcast, to
//! bind low ports and to lock memory; it loses all others for good, together with its other groups.

use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::prctl;
use nix::unistd::{Gid, Group, Uid, User, setgid, setgroups, setuid};

use crate::vlog;

const KEPT: [Capability; 5] = [
    Capability::CAP_IPC_LOCK,
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_NET_BROADCAST,
];

/// A user and group to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    uid: Uid,
    gid: Gid,
}

impl Identity {
    /// Looks up `USER`, `USER:GROUP` or `:GROUP`.
    ///
    /// # Errors
    /// The text to show: not root, no such user or group, or the user is not in the group.
    pub fn parse(spec: &str) -> Result<Identity, String> {
        if !Uid::current().is_root() || !Uid::effective().is_root() {
            return Err("only root can use --user option".into());
        }
        let (user_name, group_name) = spec
            .trim_start()
            .split_once(':')
            .unwrap_or((spec.trim_start(), ""));
        let user = match user_name {
            "" => User::from_uid(Uid::current()),
            name => User::from_name(name),
        };
        let user = user
            .map_err(|error| {
                format!(
                    "Failed to retrieve user {user_name}'s uid ({}), aborting.",
                    error.desc()
                )
            })?
            .ok_or_else(|| format!("user {user_name} not found, aborting."))?;
        let group_name = group_name.trim();
        if group_name.is_empty() {
            return Ok(Identity {
                uid: user.uid,
                gid: user.gid,
            });
        }
        let group = Group::from_name(group_name)
            .map_err(|error| {
                format!(
                    "Failed to get group entry for {group_name}, ({}), aborting.",
                    error.desc()
                )
            })?
            .ok_or_else(|| format!("group {group_name} not found, aborting."))?;
        if group.gid != user.gid && !group.mem.contains(&user.name) {
            return Err(format!(
                "Invalid --user option {spec} (user {} is not in group {group_name}), aborting.",
                user.name
            ));
        }
        Ok(Identity {
            uid: user.uid,
            gid: group.gid,
        })
    }

    /// Becomes this user. Call it before any thread is started: capabilities belong to threads.
    ///
    /// # Errors
    /// The text to show; the process may be half changed then and must not go on.
    pub fn assume(self) -> Result<(), String> {
        let failed = |what: &str, why: &str| {
            format!(
                "fail to switch to user and group {}:{} ({what}: {why}), aborting",
                self.uid, self.gid
            )
        };
        if let Some(path) = vlog::log_file() {
            std::os::unix::fs::chown(&path, Some(self.uid.as_raw()), Some(self.gid.as_raw())).map_err(
                |error| {
                    format!(
                        "Failed to change {} ownership: {}.",
                        path.display(),
                        vlog::errno_text(&error)
                    )
                },
            )?;
        }
        let kept: CapsHashSet = KEPT.into_iter().collect();
        caps::clear(None, CapSet::Bounding).map_err(|error| failed("bounding set", &error.to_string()))?;
        prctl::set_keepcaps(true).map_err(|error| failed("keepcaps", error.desc()))?;
        setgroups(&[self.gid]).map_err(|error| failed("setgroups", error.desc()))?;
        setgid(self.gid).map_err(|error| failed("setgid", error.desc()))?;
        setuid(self.uid).map_err(|error| failed("setuid", error.desc()))?;
        for set in [CapSet::Effective, CapSet::Permitted] {
            // The effective set may only shrink to what the permitted set allows, so it goes first.
            caps::set(None, set, &kept).map_err(|error| failed("capabilities", &error.to_string()))?;
        }
        caps::clear(None, CapSet::Inheritable).map_err(|error| failed("capabilities", &error.to_string()))?;
        Ok(())
    }
}
