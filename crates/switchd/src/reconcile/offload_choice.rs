//! `heddle-ebpf` and `hw-offload`: the bridges whose flows are offloaded.

use std::sync::Arc;

use heddle_port::Divert;

use super::desired::Smap;
use super::kinds;
use crate::cli::Options;

/// The setting of this back end.
pub(super) const EBPF: &str = "heddle-ebpf";

/// The bridges whose flows are offloaded.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    Never,
    /// Bridges of type `system`.
    #[default]
    Auto,
    All,
}

impl Choice {
    /// Reads the settings. `hw-offload=false` is Open vSwitch's default, and does not concern this back end.
    pub(super) fn read(config: &Smap) -> Choice {
        match config.get(EBPF) {
            Some(v) if v.eq_ignore_ascii_case("false") => Choice::Never,
            Some(v) if v.eq_ignore_ascii_case("true") => Choice::All,
            _ if config.bool("hw-offload", false) => Choice::All,
            _ => Choice::Auto,
        }
    }

    /// Whether ports of a bridge of this type count.
    pub(super) fn takes(self, datapath_type: &str, options: &Options) -> bool {
        match self {
            Choice::Never => false,
            Choice::Auto => datapath_type == "system" && !kinds::is_dummy_datapath(options, datapath_type),
            Choice::All => true,
        }
    }
}

/// Whether `heddle-ebpf` has a value that makes sense.
pub(super) fn is_known(value: &str) -> bool {
    ["auto", "true", "false"]
        .iter()
        .any(|known| value.eq_ignore_ascii_case(known))
}

/// The back end that diverts devices, and the bridges whose devices it diverts.
#[derive(Clone)]
pub(super) struct Diverter {
    divert: Arc<dyn Divert>,
    choice: Choice,
    options: Arc<Options>,
}

impl Diverter {
    pub(super) fn new(divert: Arc<dyn Divert>, choice: Choice, options: Arc<Options>) -> Diverter {
        Diverter {
            divert,
            choice,
            options,
        }
    }
    /// Whether flows of a bridge of this type are offloaded.
    pub(super) fn takes(&self, datapath_type: &str) -> bool {
        self.choice.takes(datapath_type, &self.options)
    }
    /// The back end.
    pub(super) fn back_end(&self) -> Arc<dyn Divert> {
        Arc::clone(&self.divert)
    }
    /// The back end, if flows of a bridge of this type are offloaded.
    pub(super) fn of_type(&self, datapath_type: &str) -> Option<Arc<dyn Divert>> {
        self.takes(datapath_type).then(|| self.back_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Parsed, parse};

    fn options(args: &[&str]) -> Options {
        match parse(["heddled"].iter().chain(args).map(Into::into)) {
            Ok(Parsed::Run(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn settings_and_types_choose_bridges() {
        let choice = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            Choice::read(&Smap(pairs.collect()))
        };
        assert_eq!(choice(&[]), Choice::Auto);
        assert_eq!(choice(&[("hw-offload", "false")]), Choice::Auto);
        assert_eq!(choice(&[("hw-offload", "true")]), Choice::All);
        assert_eq!(choice(&[("hw-offload", "true"), (EBPF, "auto")]), Choice::All);
        assert_eq!(choice(&[("hw-offload", "true"), (EBPF, "False")]), Choice::Never);
        assert_eq!(choice(&[(EBPF, "true")]), Choice::All);
        assert_eq!(choice(&[(EBPF, "perhaps")]), Choice::Auto);
        assert!(is_known("AUTO") && !is_known("perhaps"));
        let plain = options(&[]);
        assert!(Choice::Auto.takes("system", &plain) && !Choice::Auto.takes("netdev", &plain));
        assert!(Choice::All.takes("netdev", &plain) && !Choice::Never.takes("system", &plain));
        // A pretended datapath has no devices.
        assert!(!Choice::Auto.takes("system", &options(&["--enable-dummy=override"])));
    }
}
