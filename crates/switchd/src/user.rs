//! `--user`: giving up root, but not what a switch needs.
//!
//! The process keeps the capabilities to configure the network, to open raw and packet sockets, to broadcast,
//! to bind low ports and to lock memory. It loses all others for good, together with its other groups.

use caps::{CapSet, Capability, CapsHashSet};
use heddle_sys::users::{group_named, user_named, user_of};
use rustix::process::{Gid, Uid, geteuid, getuid};
use rustix::thread::{set_keep_capabilities, set_thread_gid, set_thread_groups, set_thread_uid};

use heddle_daemon::vlog;

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
        if !getuid().is_root() || !geteuid().is_root() {
            return Err("only root can use --user option".into());
        }
        let (user_name, group_name) = spec
            .trim_start()
            .split_once(':')
            .unwrap_or((spec.trim_start(), ""));
        let user = match user_name {
            "" => user_of(getuid()),
            name => user_named(name),
        };
        let user = user
            .map_err(|error| {
                format!(
                    "Failed to retrieve user {user_name}'s uid ({}), aborting.",
                    vlog::errno_text(&error)
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
        let group = group_named(group_name)
            .map_err(|error| {
                format!(
                    "Failed to get group entry for {group_name}, ({}), aborting.",
                    vlog::errno_text(&error)
                )
            })?
            .ok_or_else(|| format!("group {group_name} not found, aborting."))?;
        if group.gid != user.gid && !group.members.contains(&user.name) {
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
    /// The text to show; the process may be half changed then and must exit.
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
        // The following calls change only this thread, and those that it starts.
        let threads =
            heddle_sys::process::thread_count().map_err(|e| failed("threads", &vlog::errno_text(&e)))?;
        if threads != 1 {
            return Err(failed("threads", &format!("there are {threads} already")));
        }
        let step =
            |what, done: rustix::io::Result<()>| done.map_err(|e| failed(what, &vlog::errno_text(&e.into())));
        step("keepcaps", set_keep_capabilities(true))?;
        step("setgroups", set_thread_groups(&[self.gid]))?;
        step("setgid", set_thread_gid(self.gid))?;
        step("setuid", set_thread_uid(self.uid))?;
        for set in [CapSet::Effective, CapSet::Permitted] {
            // The effective set may only shrink to the permitted set, so it goes first.
            caps::set(None, set, &kept).map_err(|error| failed("capabilities", &error.to_string()))?;
        }
        caps::clear(None, CapSet::Inheritable).map_err(|error| failed("capabilities", &error.to_string()))?;
        Ok(())
    }
}
