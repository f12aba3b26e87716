//! Failures, with the numbers that the specification gives them (section "Error").

use serde_json::{Value, json};

/// Kind of a failure. Numbers below 100 are the specification's, the others are listed in
/// `docs/cni-settings.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The version of the specification is not supported.
    Version = 1,
    /// The container's namespace does not exist (any more).
    Container = 3,
    /// A variable of the environment is missing or wrong.
    Environment = 4,
    /// Reading or writing failed, or the kernel refused an operation.
    Io = 5,
    /// The configuration is no JSON.
    Decode = 6,
    /// The configuration has an invalid value.
    Conf = 7,
    /// The database or the switch does not reply; it may later.
    Later = 11,
    /// No ADD can succeed now.
    Unavailable = 50,
    /// The database has no such bridge.
    NoBridge = 100,
    /// Another port of the bridge has this MAC address.
    DuplicateMac = 101,
    /// This node cannot make a device of this kind.
    NoKind = 102,
    /// The switch refused the port.
    Refused = 103,
    /// The container has a device of this name, or none that could be replaced.
    Device = 104,
    /// The device or port differs from the one that was made.
    Differs = 105,
    /// Another plug-in could not be run, or its reply is malformed.
    Delegate = 106,
}

/// Why a command has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// A number of [`Code`], or that of another plug-in, passed on as it is.
    pub(crate) code: u64,
    /// The failure in one sentence.
    pub(crate) msg: String,
    /// Field `details` of another plug-in's failure.
    pub(crate) details: String,
}

impl Failure {
    pub(crate) fn new(code: Code, msg: impl Into<String>) -> Self {
        Self {
            code: code as u64,
            msg: msg.into(),
            details: String::new(),
        }
    }

    pub(crate) fn to_json(&self, version: &str) -> Value {
        let mut out = json!({"cniVersion": version, "code": self.code, "msg": self.msg});
        if !self.details.is_empty() {
            out["details"] = json!(self.details);
        }
        out
    }
}

/// A failure, as a result.
pub(crate) fn fail<T>(code: Code, msg: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::new(code, msg))
}

/// An error of the kernel, without Rust's number behind it.
pub(crate) fn kernel(what: &str, e: &std::io::Error) -> Failure {
    let hint = match e.kind() {
        std::io::ErrorKind::PermissionDenied => "; the plug-in needs CAP_NET_ADMIN and CAP_SYS_ADMIN",
        _ => "",
    };
    Failure::new(Code::Io, format!("{what}: {}{hint}", heddle_sys::errno_text(e)))
}
