//! The names of this process in messages and files.
//!
//! Messages, pid file, log file and control socket take the base name of `argv[0]`, as with Open vSwitch's
//! daemons. Through a symbolic link called `ovs-vswitchd`, scripts find every file at the expected path.
//! Started as `heddled`, the files have the names of `ovs-vswitchd` too, since that is the default target of
//! `ovs-appctl`. The pid file and the control socket then have a second name, so that `ovs-appctl -t heddled`
//! finds them as well.

use std::ffi::OsStr;
use std::path::Path;

/// The version of Open vSwitch whose interfaces this program has.
pub const COMPATIBLE_VERSION: &str = "3.1.0";
/// The name of the program that this one replaces.
const COMPATIBLE_NAME: &str = "ovs-vswitchd";
const OWN_NAME: &str = "heddled";

/// The names of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// For messages: the base name of `argv[0]`.
    pub program: String,
    /// For default file names.
    pub service: String,
    /// A second name for the pid file and the control socket.
    pub alias: Option<String>,
}

impl Names {
    /// The names that follow from `argv[0]`.
    #[must_use]
    pub fn from_argv0(argv0: Option<&OsStr>) -> Names {
        let base = argv0
            .map(Path::new)
            .and_then(Path::file_name)
            .and_then(OsStr::to_str)
            .unwrap_or(OWN_NAME);
        let is_own = base == OWN_NAME;
        Names {
            program: base.to_owned(),
            service: if is_own { COMPATIBLE_NAME } else { base }.to_owned(),
            alias: is_own.then(|| OWN_NAME.to_owned()),
        }
    }

    /// The text of `--version` and of the command `version`.
    ///
    /// Scripts read the version from the last word of a line: ovs-ctl of the first line with "Open vSwitch"
    /// in it, ovs-lib of the first line. The second line names this program.
    #[must_use]
    pub fn version_text(&self) -> String {
        format!(
            "{} (Open vSwitch) {COMPATIBLE_VERSION}\nHeddle {}\n",
            self.program,
            env!("CARGO_PKG_VERSION")
        )
    }
}
