//! The runtime's parameters, in variables of the environment.

use crate::error::{Code, Failure, fail};
use heddle_sys::names::{is_absolute, is_device, is_plain};

/// A command of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Add,
    Del,
    Check,
    Status,
    Gc,
    Version,
}

/// The variables, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) command: Command,
    /// Container id; empty for commands that are about no container.
    pub(crate) container: String,
    /// Path of the network namespace; may be empty for DEL.
    pub(crate) netns: String,
    /// Name of the device in the container.
    pub(crate) ifname: String,
    /// `CNI_ARGS`, in order.
    pub(crate) extra: Vec<(String, String)>,
    /// Directories that hold plug-ins.
    pub(crate) path: String,
}

impl Args {
    pub(crate) fn from_env() -> Result<Self, Failure> {
        Self::from(|name| std::env::var(name).ok())
    }

    fn from(get: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let command = match get("CNI_COMMAND").unwrap_or_default().as_str() {
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            "CHECK" => Command::Check,
            "STATUS" => Command::Status,
            "GC" => Command::Gc,
            "VERSION" => Command::Version,
            other => {
                return fail(
                    Code::Environment,
                    format!("CNI_COMMAND: no such command: {other:?}"),
                );
            }
        };
        let mut args = Self {
            command,
            container: String::new(),
            netns: String::new(),
            ifname: String::new(),
            extra: Vec::new(),
            path: get("CNI_PATH").unwrap_or_default(),
        };
        if !matches!(command, Command::Add | Command::Del | Command::Check) {
            return Ok(args);
        }
        args.container = required(&get, "CNI_CONTAINERID", is_plain)?;
        args.ifname = required(&get, "CNI_IFNAME", is_device)?;
        args.netns = match command {
            Command::Del => get("CNI_NETNS").unwrap_or_default(),
            _ => required(&get, "CNI_NETNS", is_absolute)?,
        };
        args.extra = extra(&get("CNI_ARGS").unwrap_or_default())?;
        Ok(args)
    }

    /// Name of the port of the container's device, always the same.
    pub(crate) fn port_name(&self) -> String {
        format!("h{:014x}", self.hash() & 0xff_ffff_ffff_ffff)
    }

    /// Address of the container's device, always the same: a local one.
    pub(crate) fn port_mac(&self) -> [u8; 6] {
        let [.., b, c, d, e, f] = self.hash().to_be_bytes();
        [0x0a, b, c, d, e, f]
    }

    /// Hash of the container's id and the device's name.
    fn hash(&self) -> u64 {
        // FNV-1a, 64 bits, and a mixing step, since neighbours would differ in few bits.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.container.bytes().chain([0]).chain(self.ifname.bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        hash ^ (hash >> 32)
    }

    /// The last of `CNI_ARGS` with that key.
    pub(crate) fn extra(&self, key: &str) -> Option<&str> {
        let found = self.extra.iter().rev().find(|(k, _)| k == key)?;
        Some(&found.1)
    }
}

fn required(
    get: impl Fn(&str) -> Option<String>,
    name: &str,
    fits: impl Fn(&str) -> bool,
) -> Result<String, Failure> {
    match get(name) {
        Some(text) if !text.is_empty() && fits(&text) => Ok(text),
        Some(text) if !text.is_empty() => fail(Code::Environment, format!("{name}: {text:?} is not valid")),
        _ => fail(Code::Environment, format!("{name} is missing")),
    }
}

fn extra(text: &str) -> Result<Vec<(String, String)>, Failure> {
    let pair = |part: &str| match part.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => fail(Code::Environment, format!("CNI_ARGS: {part:?} is not KEY=VALUE")),
    };
    text.split(';')
        .filter(|part| !part.is_empty())
        .map(pair)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Args, Failure> {
        Args::from(|name| {
            pairs
                .iter()
                .find(|(k, _)| *k == name)
                .map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn what_commands_need() {
        let all = [
            ("CNI_CONTAINERID", "a1"),
            ("CNI_NETNS", "/n"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "A=1;B=;A=2"),
        ];
        let with = |command: &'static str| {
            let mut pairs = all.to_vec();
            pairs.push(("CNI_COMMAND", command));
            read(&pairs)
        };
        let args = with("ADD").unwrap();
        assert_eq!(
            (args.extra("A"), args.extra("B"), args.extra("C")),
            (Some("2"), Some(""), None)
        );
        assert_eq!(with("DROP").unwrap_err().code, 4);
        assert_eq!(
            read(&[("CNI_COMMAND", "ADD")]).unwrap_err().msg,
            "CNI_CONTAINERID is missing"
        );
        assert!(read(&[("CNI_COMMAND", "STATUS")]).is_ok());
        let del = [
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "a"),
            ("CNI_IFNAME", "eth0"),
        ];
        assert_eq!(read(&del).unwrap().netns, "");
        let bad = [
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "../a"),
            ("CNI_IFNAME", "eth0"),
        ];
        assert_eq!(
            read(&bad).unwrap_err().msg,
            "CNI_CONTAINERID: \"../a\" is not valid"
        );
        let bad = [
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "a"),
            ("CNI_IFNAME", "eth0/1234567890"),
        ];
        assert!(read(&bad).is_err());
        let bad = [
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "a"),
            ("CNI_IFNAME", "e"),
            ("CNI_ARGS", "x"),
        ];
        assert_eq!(read(&bad).unwrap_err().code, 4);
    }
}
