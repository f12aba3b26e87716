//! Types of datapaths and interfaces, and the effects of `--enable-dummy` and `--disable-system`.

use heddle_port::PortType;
use heddle_port::types::{Make, Pretend, TYPES};
use heddle_tunnel::TunnelType;

use crate::cli::{Dummy, Options};

/// The port types of an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// The type in the database.
    pub(super) requested: &'static PortType,
    /// The type that it is made as.
    pub(super) open: &'static PortType,
    /// The type to show.
    pub(super) shown: &'static str,
}

impl Kind {
    /// Whether it is a patch port: no device.
    pub(super) fn is_patch(&self) -> bool {
        matches!(self.open.make, Make::Nothing)
    }
    /// The type of tunnel that it is.
    pub(super) fn tunnel(&self) -> Option<TunnelType> {
        match self.open.make {
            Make::Tunnel(ty) => Some(ty),
            Make::Nothing | Make::As(_) | Make::Device(_) => None,
        }
    }
}

/// A type that does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unknown;

/// Types of datapaths that exist, in order.
pub(super) fn datapath_types(options: &Options) -> Vec<&'static str> {
    let system = !options.disable_system || options.dummy >= Some(Dummy::System);
    let mut types = Vec::new();
    if options.dummy.is_some() {
        types.push("dummy");
    }
    types.push("netdev");
    if system {
        types.push("system");
    }
    types
}

fn exists(options: &Options, kind: &PortType) -> bool {
    !kind.pretended || options.dummy.is_some()
}

/// Types of interfaces that exist, in order.
pub(super) fn interface_types(options: &Options) -> impl Iterator<Item = &'static str> {
    TYPES.iter().filter(|t| exists(options, t)).map(|t| t.name)
}

/// Whether a datapath is a pretended one: its internal ports are no devices, and its port numbers are
/// predictable.
pub(super) fn is_dummy_datapath(options: &Options, datapath_type: &str) -> bool {
    match options.dummy {
        None => false,
        Some(Dummy::Plain) => datapath_type == "dummy",
        Some(Dummy::System) => matches!(datapath_type, "dummy" | "system"),
        Some(Dummy::Override) => true,
    }
}

/// The kind of an interface of type `name` in a datapath of type `datapath_type`.
pub(super) fn interface_kind(options: &Options, datapath_type: &str, name: &str) -> Result<Kind, Unknown> {
    let requested = PortType::named(name)
        .filter(|t| exists(options, t))
        .ok_or(Unknown)?;
    let dummy = is_dummy_datapath(options, datapath_type);
    let applies = |when| match when {
        Pretend::InDatapath => dummy,
        Pretend::System => options.dummy >= Some(Dummy::System),
        Pretend::Override => options.dummy == Some(Dummy::Override),
    };
    let pretended = requested.instead.filter(|(when, _)| applies(*when));
    let open = pretended.and_then(|(_, name)| PortType::named(name));
    let open = open.unwrap_or_else(|| requested.real());
    let shown = match requested.name {
        "internal" if dummy => open.name,
        "internal" if datapath_type != "system" => "tap",
        own => own,
    };
    Ok(Kind {
        requested,
        open,
        shown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Options {
        let args = ["heddled"].iter().chain(args).map(Into::into);
        match crate::cli::parse(args) {
            Ok(crate::cli::Parsed::Run(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dummies_replace_the_types_of_their_level() {
        let kind = |args: &[&str], dp, name| {
            let kind = interface_kind(&options(args), dp, name).ok()?;
            Some((kind.open.name, kind.shown))
        };
        assert_eq!(kind(&[], "system", "internal"), Some(("internal", "internal")));
        assert_eq!(kind(&[], "netdev", "internal"), Some(("internal", "tap")));
        assert_eq!(kind(&[], "netdev", "tap"), Some(("internal", "tap")));
        assert_eq!(kind(&[], "netdev", "dummy"), None);
        assert_eq!(
            kind(&["--enable-dummy"], "netdev", "system"),
            Some(("system", "system"))
        );
        assert_eq!(
            kind(&["--enable-dummy"], "dummy", "internal"),
            Some(("dummy-internal", "dummy-internal"))
        );
        assert_eq!(
            kind(&["--enable-dummy=system"], "netdev", "system"),
            Some(("dummy", "system"))
        );
        let over = ["--enable-dummy=override"];
        assert_eq!(
            kind(&over, "netdev", "internal"),
            Some(("dummy-internal", "dummy-internal"))
        );
        assert_eq!(kind(&over, "netdev", "tap"), Some(("dummy", "tap")));
        assert_eq!(kind(&over, "netdev", "patch"), Some(("patch", "patch")));
        assert_eq!(kind(&over, "netdev", "foo"), None);
    }

    #[test]
    fn types_are_listed_as_open_vswitch_lists_them() {
        let plain = [
            "afxdp",
            "afxdp-nonpmd",
            "bareudp",
            "dpdk",
            "dpdkvhostuser",
            "dpdkvhostuserclient",
            "erspan",
            "geneve",
            "gre",
            "gtpu",
            "internal",
            "ip6erspan",
            "ip6gre",
            "lisp",
            "patch",
            "srv6",
            "stt",
            "system",
            "tap",
            "vduse",
            "vxlan",
        ];
        assert!(interface_types(&options(&[])).eq(plain));
        assert_eq!(interface_types(&options(&["--enable-dummy"])).count(), 24);
    }

    #[test]
    fn disabling_the_system_leaves_netdev() {
        assert_eq!(datapath_types(&options(&["--disable-system"])), ["netdev"]);
        assert_eq!(
            datapath_types(&options(&["--disable-system", "--enable-dummy"])),
            ["dummy", "netdev"]
        );
        let all = ["dummy", "netdev", "system"];
        assert_eq!(
            datapath_types(&options(&["--disable-system", "--enable-dummy=override"])),
            all
        );
    }
}
