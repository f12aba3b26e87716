//! The directories that Open vSwitch's programs share, as Debian's packages place them unless the environment
//! says otherwise.

use std::env;
use std::path::{Path, PathBuf};

fn dir(variable: &str, default: &str) -> PathBuf {
    env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map_or_else(|| default.into(), PathBuf::from)
}

/// Where sockets and pid files are: `OVS_RUNDIR`.
#[must_use]
pub fn rundir() -> PathBuf {
    dir("OVS_RUNDIR", "/var/run/openvswitch")
}

/// Where log files are: `OVS_LOGDIR`.
#[must_use]
pub fn logdir() -> PathBuf {
    dir("OVS_LOGDIR", "/var/log/openvswitch")
}

/// `name` as it stands when it is absolute, else inside `dir`.
#[must_use]
pub fn inside(dir: &Path, name: &str) -> PathBuf {
    // `join` replaces the whole path by an absolute argument.
    dir.join(name)
}
