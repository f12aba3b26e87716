//! The names of a configuration that become a path, a device or a program, checked in one place before
//! anything is done. Tenants write configurations where NetworkAttachmentDefinitions are theirs.
//!
//! Files are confined to the directories of Heddle and Open vSwitch. The administrator adds directories with
//! `HEDDLE_CNI_DIRS` and `HEDDLE_CNI_LOG_DIRS` in the environment of the container runtime.

use crate::error::{Code, Failure, fail, kernel};
use heddle_sys::names::{dir_of, is_plain, make_dir_below, remove_dir_below};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Variable with further directories of sockets, separated by `:`.
const DIRS_VARIABLE: &str = "HEDDLE_CNI_DIRS";
/// Variable with further directories of log files. Directories of sockets hold databases and pid files too,
/// and the plug-in would append to those.
const LOG_DIRS_VARIABLE: &str = "HEDDLE_CNI_LOG_DIRS";
/// Variable with the devices of the host that pods can get, and with representors. It has names or PCI
/// addresses, separated by commas; `*` at the end of one matches any suffix.
pub(crate) const DEVICES_VARIABLE: &str = "HEDDLE_CNI_DEVICES";
const SOCKET_DIRS: [&str; 4] = [
    "/run/heddle",
    "/var/run/heddle",
    "/run/openvswitch",
    "/var/run/openvswitch",
];
const LOG_DIRS: [&str; 2] = ["/var/log/heddle", "/var/log/openvswitch"];

/// The administrator's directories from `variable`, and `own`.
fn with_given(own: &[&str], variable: &str) -> Vec<PathBuf> {
    let given = std::env::var_os(variable).unwrap_or_default();
    let given = std::env::split_paths(&given).filter(|dir| dir.is_absolute());
    own.iter().map(PathBuf::from).chain(given).collect()
}

/// Whether the administrator allows that a device of the host goes to a pod or becomes a port.
pub(crate) fn is_allowed_device(name: &str) -> bool {
    std::env::var(DEVICES_VARIABLE).is_ok_and(|given| is_listed(name, &given))
}

fn is_listed(name: &str, list: &str) -> bool {
    list.split(',')
        .map(str::trim)
        .any(|given| match given.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == given,
        })
}

/// The directory that a log file is confined to; `None` if the name leaves the directories or does not end in
/// `.log`.
pub(crate) fn log_dir(path: &str) -> Option<PathBuf> {
    let dirs = with_given(&LOG_DIRS, LOG_DIRS_VARIABLE);
    let dir = dir_of(path, &dirs).filter(|dir| dir.as_os_str() != path)?;
    path.ends_with(".log").then(|| dir.to_owned())
}

/// The directory that a socket is confined to.
fn allowed_dir(path: &str) -> Option<PathBuf> {
    dir_of(path, &with_given(&SOCKET_DIRS, DIRS_VARIABLE)).map(Path::to_owned)
}

/// Makes the directory of a port's vhost-user socket; returns its path.
pub(crate) fn make_socket_dir(socket_dir: &str, port: &str) -> Result<PathBuf, Failure> {
    let dir = Path::new(socket_dir).join(port);
    let Some(allowed) = allowed_dir(socket_dir) else {
        return outside("socketDir", socket_dir, &SOCKET_DIRS);
    };
    make_dir_below(&allowed, &dir).map_err(|e| kernel(&format!("socketDir {}", dir.display()), &e))?;
    Ok(dir)
}

/// Removes the directory of a port's vhost-user socket, if it is there.
pub(crate) fn remove_socket_dir(socket_dir: &str, port: &str) {
    if let Some(allowed) = allowed_dir(socket_dir) {
        let _ = remove_dir_below(&allowed, &Path::new(socket_dir).join(port));
    }
}

/// Whether a database is on this machine, behind a socket that tenants cannot make.
fn is_own_database(text: &str) -> bool {
    match text.split_once(':') {
        Some(("unix", path)) => allowed_dir(path).is_some(),
        // The switch is in the plug-in's network namespace, and so is its database.
        Some(("tcp", place)) => place.rsplit_once(':').is_some_and(|(host, _)| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        }),
        _ => false,
    }
}

fn outside<T>(key: &str, value: &str, own: &[&str]) -> Result<T, Failure> {
    fail(
        Code::Conf,
        format!(
            "{key} {value:?} is not below {} or a directory of {DIRS_VARIABLE}",
            own.join(", ")
        ),
    )
}

/// Refuses the address of a database that another machine, or a tenant, may have.
pub(crate) fn check_database(database: &str) -> Result<(), Failure> {
    match database.split_once(':') {
        Some(("unix", path)) if !is_own_database(database) => outside("database", path, &SOCKET_DIRS),
        Some(("unix", _)) => Ok(()),
        _ if is_own_database(database) => Ok(()),
        _ => fail(
            Code::Conf,
            format!("database {database:?}: expected unix:PATH, or tcp:HOST:PORT with a loopback address"),
        ),
    }
}

/// Refuses a log file that leaves the directories of log files.
pub(crate) fn check_log_file(path: &str) -> Result<(), Failure> {
    if log_dir(path).is_some() {
        return Ok(());
    }
    fail(
        Code::Conf,
        format!(
            "logFile {path:?} is not a name that ends in .log, below {} or a directory of {LOG_DIRS_VARIABLE}",
            LOG_DIRS.join(", ")
        ),
    )
}

/// Refuses a directory of sockets that leaves the allowed ones.
pub(crate) fn check_socket_dir(path: &str) -> Result<(), Failure> {
    match allowed_dir(path) {
        Some(_) => Ok(()),
        None => outside("socketDir", path, &SOCKET_DIRS),
    }
}

/// The failure of a configuration with which this plug-in would run itself.
pub(crate) fn itself<T>(key: &str, kind: &str) -> Result<T, Failure> {
    fail(
        Code::Conf,
        format!("{key} {kind:?} is this plug-in itself: name another plug-in"),
    )
}

/// Refuses a name of a plug-in that is not the name of a file in `CNI_PATH`.
pub(crate) fn program(key: &str, kind: &str) -> Result<(), Failure> {
    if is_plain(kind) {
        return Ok(());
    }
    fail(
        Code::Conf,
        format!("{key} {kind:?} is not a name of a plug-in: use the name of a file in CNI_PATH"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_list() {
        for (name, list) in [
            ("eth1", "eth0, eth1"),
            ("ens4v3", "ens4v*"),
            ("0000:03:00.0", "0000:03:00.0"),
        ] {
            assert!(is_listed(name, list), "{name} {list}");
        }
        for (name, list) in [("eth1", ""), ("eth10", "eth1"), ("eth1", "xeth1"), ("eth1", ",")] {
            assert!(!is_listed(name, list), "{name} {list}");
        }
    }

    #[test]
    fn databases_of_this_machine() {
        for good in [
            "unix:/run/openvswitch/db.sock",
            "unix:/var/run/openvswitch/x/db.sock",
            "tcp:127.0.0.1:6640",
            "tcp:[::1]:6640",
            "tcp:localhost:6640",
        ] {
            assert!(is_own_database(good), "{good}");
        }
        for bad in [
            "",
            "unix:db.sock",
            "unix:/run/openvswitch/../x",
            "unix:/tmp/db.sock",
            "tcp:10.0.0.1:6640",
            "tcp:evil:6640",
            "tcp:6640",
            "ssl:127.0.0.1:6640",
            "/run/openvswitch/db.sock",
        ] {
            assert!(!is_own_database(bad), "{bad}");
        }
        assert_eq!(log_dir("/var/log/heddle/cni.log"), Some("/var/log/heddle".into()));
        assert_eq!(log_dir("/var/log/heddle"), None);
        assert_eq!(log_dir("/etc/passwd"), None);
        for bad in ["cni.log/", "conf.db", "ovs-vswitchd.pid", "x.log/y", "log"] {
            assert_eq!(log_dir(&format!("/var/log/openvswitch/{bad}")), None, "{bad}");
        }
        assert_eq!(log_dir("/run/openvswitch/cni.log"), None);
    }
}
