//! The directories that Open vSwitch's programs share: Debian's defaults, which environment variables
//! replace.

use std::env;
use std::path::{Path, PathBuf};

fn dir(variable: &str, default: &str) -> PathBuf {
    env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map_or_else(|| default.into(), PathBuf::from)
}

/// The directory of sockets and pid files: `OVS_RUNDIR`.
#[must_use]
pub fn rundir() -> PathBuf {
    dir("OVS_RUNDIR", "/var/run/openvswitch")
}

/// The directory of log files: `OVS_LOGDIR`.
#[must_use]
pub fn logdir() -> PathBuf {
    dir("OVS_LOGDIR", "/var/log/openvswitch")
}

/// `name` itself if it is absolute, else `name` inside `dir`.
#[must_use]
pub fn inside(dir: &Path, name: &str) -> PathBuf {
    // `join` replaces the whole path by an absolute argument.
    dir.join(name)
}
