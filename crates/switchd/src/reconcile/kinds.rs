//! Types of datapaths and interfaces, and what `--enable-dummy` and `--disable-system` make of them.

use crate::cli::{Dummy, Options};

/// What an interface is to be made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A patch port: it exists in translation only.
    Patch,
    /// A device.
    Device {
        /// The type to open, as `heddle_port::open` knows it.
        open: &'static str,
        /// The type to show.
        shown: &'static str,
    },
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

/// Types of interfaces that exist, in order.
pub(super) fn interface_types(options: &Options) -> Vec<&'static str> {
    let mut types = vec!["internal", "patch", "system", "tap"];
    types.extend(heddle_port::VHOST_KINDS);
    if options.dummy.is_some() {
        types.extend(["dummy", "dummy-internal", "dummy-pmd"]);
    }
    types.sort_unstable();
    types
}

/// Whether a datapath is a pretended one: its internal ports are no devices, and its port numbers are easy to guess.
pub(super) fn is_dummy_datapath(options: &Options, datapath_type: &str) -> bool {
    match options.dummy {
        None => false,
        Some(Dummy::Plain) => datapath_type == "dummy",
        Some(Dummy::System) => matches!(datapath_type, "dummy" | "system"),
        Some(Dummy::Override) => true,
    }
}

/// What an interface of type `name` is in a datapath of type `datapath_type`.
pub(super) fn interface_kind(options: &Options, datapath_type: &str, name: &str) -> Result<Kind, Unknown> {
    let device = |open, shown| Ok(Kind::Device { open, shown });
    match name {
        "patch" => Ok(Kind::Patch),
        "internal" if is_dummy_datapath(options, datapath_type) => device("dummy-internal", "dummy-internal"),
        "internal" if datapath_type == "system" => device("internal", "internal"),
        "internal" => device("internal", "tap"),
        "tap" if options.dummy == Some(Dummy::Override) => device("dummy", "tap"),
        "tap" => device("internal", "tap"),
        "system" if options.dummy >= Some(Dummy::System) => device("dummy", "system"),
        "system" => device("system", "system"),
        "dpdkvhostuser" => device("dpdkvhostuser", "dpdkvhostuser"),
        "dpdkvhostuserclient" => device("dpdkvhostuserclient", "dpdkvhostuserclient"),
        "dummy" if options.dummy.is_some() => device("dummy", "dummy"),
        "dummy-internal" if options.dummy.is_some() => device("dummy-internal", "dummy-internal"),
        "dummy-pmd" if options.dummy.is_some() => device("dummy-pmd", "dummy-pmd"),
        _ => Err(Unknown),
    }
}

/// The name of the datapath of a type, as `dpctl` knows it.
pub(crate) fn datapath_name(datapath_type: &str) -> String {
    format!("{datapath_type}@ovs-{datapath_type}")
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
    fn dummies_replace_what_they_are_told_to() {
        let kind = |args: &[&str], dp, name| interface_kind(&options(args), dp, name);
        let device = |open, shown| Ok(Kind::Device { open, shown });
        assert_eq!(kind(&[], "system", "internal"), device("internal", "internal"));
        assert_eq!(kind(&[], "netdev", "internal"), device("internal", "tap"));
        assert_eq!(kind(&[], "netdev", "dummy"), Err(Unknown));
        assert_eq!(
            kind(&["--enable-dummy"], "netdev", "system"),
            device("system", "system")
        );
        assert_eq!(
            kind(&["--enable-dummy"], "dummy", "internal"),
            device("dummy-internal", "dummy-internal")
        );
        assert_eq!(
            kind(&["--enable-dummy=system"], "netdev", "system"),
            device("dummy", "system")
        );
        assert_eq!(
            kind(&["--enable-dummy=override"], "netdev", "internal"),
            device("dummy-internal", "dummy-internal")
        );
        assert_eq!(
            kind(&["--enable-dummy=override"], "netdev", "patch"),
            Ok(Kind::Patch)
        );
        assert_eq!(kind(&["--enable-dummy=override"], "netdev", "foo"), Err(Unknown));
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
