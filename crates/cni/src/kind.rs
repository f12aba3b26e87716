//! The kinds of device that a pod can get, and which of them the node can make.

use crate::error::{Code, Failure, fail};
use std::path::Path;

/// The kind of a pod's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The best kind that the node supports.
    Auto,
    /// A virtio device whose other end is the switch (VDUSE).
    Vduse,
    /// The switch's own tap device.
    Internal,
    /// One end of a veth pair.
    Veth,
    /// A socket, for pods that bring their own virtio driver.
    VhostUser,
}

const NAMES: [(&str, Kind); 5] = [
    ("auto", Kind::Auto),
    ("vduse", Kind::Vduse),
    ("internal", Kind::Internal),
    ("veth", Kind::Veth),
    ("vhost-user", Kind::VhostUser),
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
            Self::Veth => "system",
            Self::VhostUser => "dpdkvhostuserclient",
        }
    }

    /// The kind itself if this node can make it; for `Auto` the best kind that it can make.
    pub(crate) fn on_this_node(self) -> Result<Self, Failure> {
        let lacks = |kind: Self| match kind {
            Self::Vduse => missing(&["/dev/vduse/control", "/sys/bus/vdpa/drivers/virtio_vdpa"]),
            Self::Internal => missing(&["/dev/net/tun"]),
            _ => None,
        };
        if self == Self::Auto {
            let best = [Self::Vduse, Self::Internal]
                .into_iter()
                .find(|k| lacks(*k).is_none());
            return Ok(best.unwrap_or(Self::Veth));
        }
        match lacks(self) {
            None => Ok(self),
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
        assert_ne!(Kind::Auto.on_this_node().unwrap(), Kind::Auto);
        assert_eq!(Kind::Veth.on_this_node().unwrap(), Kind::Veth);
        assert_eq!(Kind::named("fast").unwrap_err().code, 7);
    }
}
