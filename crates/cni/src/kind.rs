//! The kinds of device that a pod can get, and which of them the node can make.

use crate::error::{Code, Failure, fail};
use std::borrow::Cow;
use std::path::Path;

/// The kind of a pod's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The faster one of `Veth` and `Internal` at the pod's bridge.
    Auto,
    /// A virtio device whose other end is the switch (VDUSE).
    Vduse,
    /// The switch's own tap device.
    Internal,
    /// One end of a veth pair.
    Veth,
    /// A socket, for pods that bring their own virtio driver.
    VhostUser,
    /// A device of the host, such as a virtual function of a card; another device is the port.
    Device,
}

const NAMES: [(&str, Kind); 6] = [
    ("auto", Kind::Auto),
    ("vduse", Kind::Vduse),
    ("internal", Kind::Internal),
    ("veth", Kind::Veth),
    ("vhost-user", Kind::VhostUser),
    ("device", Kind::Device),
];

impl Kind {
    pub(crate) fn named(name: &str) -> Result<Self, Failure> {
        match NAMES.iter().find(|(n, _)| *n == name) {
            Some((_, kind)) => Ok(*kind),
            None => {
                let names = NAMES.map(|(n, _)| n).join(", ");
                fail(Code::Conf, format!("kind {name:?} is none of {names}"))
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        NAMES.iter().find(|(_, k)| *k == self).map_or("", |(n, _)| n)
    }

    /// `Interface.type` of its port.
    pub(crate) fn interface_type(self) -> &'static str {
        match self {
            Self::Vduse => "vduse",
            Self::Internal | Self::Auto => "internal",
            Self::Veth | Self::Device => "system",
            Self::VhostUser => "dpdkvhostuserclient",
        }
    }

    /// The kind for a pod of a bridge. `offloads` reads whether the kernel forwards the bridge's veths; it is
    /// called for `Auto` only.
    ///
    /// # Errors
    /// This node cannot make the kind that the configuration names, or `offloads` fails.
    pub(crate) fn choose(self, offloads: impl FnOnce() -> Result<bool, Failure>) -> Result<Choice, Failure> {
        if self != Self::Auto {
            self.is_possible()?;
            return Ok(Choice {
                kind: self,
                why: "the configuration names it".into(),
            });
        }
        let (kind, why) = if offloads()? {
            (Self::Veth, "the kernel forwards the bridge's veths (eBPF is on)")
        } else if Self::Internal.lacks().is_none() {
            (Self::Internal, "eBPF is not on at the bridge")
        } else {
            (Self::Veth, "this node has no tap devices")
        };
        Ok(Choice {
            kind,
            why: why.into(),
        })
    }

    /// The file that this node lacks for the kind.
    fn lacks(self) -> Option<&'static str> {
        match self {
            Self::Vduse => missing(&["/dev/vduse/control", "/sys/bus/vdpa/drivers/virtio_vdpa"]),
            Self::Internal => missing(&["/dev/net/tun"]),
            _ => None,
        }
    }

    /// Fails if this node cannot make the kind.
    pub(crate) fn is_possible(self) -> Result<(), Failure> {
        match self.lacks() {
            None => Ok(()),
            Some(path) => {
                let what = match self {
                    Self::Vduse => "this node has no VDUSE (modprobe vduse virtio_vdpa; Linux 6.4 or newer)",
                    _ => "this node has no tap devices (modprobe tun)",
                };
                fail(Code::NoKind, format!("{what}: {path} is missing"))
            }
        }
    }
}

/// A kind, and why it is that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) kind: Kind,
    /// For the log and the result.
    pub(crate) why: Cow<'static, str>,
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kind {}: {}", self.kind.name(), self.why)
    }
}

fn missing(paths: &[&'static str]) -> Option<&'static str> {
    paths.iter().copied().find(|path| !Path::new(path).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_choices() {
        for (name, kind) in NAMES {
            assert_eq!((Kind::named(name).unwrap(), kind.name()), (kind, name));
        }
        let auto = |offloads| Kind::Auto.choose(|| Ok(offloads)).unwrap();
        assert_eq!(auto(true).kind, Kind::Veth);
        let has_taps = Path::new("/dev/net/tun").exists();
        assert_eq!(
            auto(false).kind,
            if has_taps { Kind::Internal } else { Kind::Veth }
        );
        assert_ne!(auto(true).why, auto(false).why);
        // A kind that the configuration names needs no query.
        let named = Kind::Veth.choose(|| fail(Code::Later, "queried")).unwrap();
        assert_eq!(named.to_string(), "kind veth: the configuration names it");
        assert_eq!(
            Kind::Auto.choose(|| fail(Code::Later, "no")).unwrap_err().code,
            Code::Later as u64
        );
        assert_eq!(Kind::named("fast").unwrap_err().code, 7);
    }
}
