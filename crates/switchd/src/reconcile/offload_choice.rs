//! `heddle-ebpf`, `hw-offload` and `tc-policy`: the bridges whose flows are offloaded, and the back ends.

use std::sync::Arc;

use heddle_offload::TcPolicy;
use heddle_port::Divert;

use super::desired::Smap;
use super::kinds;
use crate::cli::Options;

/// The setting of the eBPF back end.
pub(super) const EBPF: &str = "heddle-ebpf";
/// Open vSwitch's setting of the places that filters of tc may have.
pub(super) const TC_POLICY: &str = "tc-policy";

/// The settings of offload.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    pub(super) choice: Choice,
    /// The eBPF back end may be used.
    pub(super) ebpf: bool,
    /// The tc back end may be used, with this policy.
    pub(super) tc: Option<TcPolicy>,
}

impl Wanted {
    /// Reads the settings. `hw-offload=false` is Open vSwitch's default, and does not concern eBPF.
    pub(super) fn read(config: &Smap) -> Wanted {
        let ebpf = config.get(EBPF).map(str::to_ascii_lowercase);
        let hw = config.bool("hw-offload", false);
        let policy = config
            .get(TC_POLICY)
            .and_then(TcPolicy::parse)
            .unwrap_or_default();
        let choice = match (ebpf.as_deref(), hw) {
            (Some("false"), false) => Choice::Never,
            (Some("true"), _) | (_, true) => Choice::All,
            (_, false) => Choice::Auto,
        };
        Wanted {
            choice,
            ebpf: ebpf.as_deref() != Some("false"),
            tc: hw.then_some(policy),
        }
    }
}

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
    /// The eBPF back end is on.
    is_ebpf: bool,
    options: Arc<Options>,
}

impl Diverter {
    pub(super) fn new(
        divert: Arc<dyn Divert>,
        choice: Choice,
        is_ebpf: bool,
        options: Arc<Options>,
    ) -> Diverter {
        Diverter {
            divert,
            choice,
            is_ebpf,
            options,
        }
    }
    /// Whether the eBPF back end is on.
    pub(super) fn is_ebpf(&self) -> bool {
        self.is_ebpf
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
            Wanted::read(&Smap(pairs.collect())).choice
        };
        assert_eq!(choice(&[]), Choice::Auto);
        assert_eq!(choice(&[("hw-offload", "false")]), Choice::Auto);
        assert_eq!(choice(&[("hw-offload", "true")]), Choice::All);
        assert_eq!(choice(&[("hw-offload", "true"), (EBPF, "auto")]), Choice::All);
        assert_eq!(choice(&[("hw-offload", "true"), (EBPF, "False")]), Choice::All);
        assert_eq!(choice(&[(EBPF, "false")]), Choice::Never);
        assert_eq!(choice(&[(EBPF, "true")]), Choice::All);
        assert_eq!(choice(&[(EBPF, "perhaps")]), Choice::Auto);
        assert!(is_known("AUTO") && !is_known("perhaps"));
        let plain = options(&[]);
        assert!(Choice::Auto.takes("system", &plain) && !Choice::Auto.takes("netdev", &plain));
        assert!(Choice::All.takes("netdev", &plain) && !Choice::Never.takes("system", &plain));
        // A pretended datapath has no devices.
        assert!(!Choice::Auto.takes("system", &options(&["--enable-dummy=override"])));
    }
    #[test]
    fn settings_choose_back_ends() {
        let wanted = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            let wanted = Wanted::read(&Smap(pairs.collect()));
            (wanted.ebpf, wanted.tc)
        };
        assert_eq!(wanted(&[]), (true, None));
        assert_eq!(wanted(&[(TC_POLICY, "skip_hw")]), (true, None));
        assert_eq!(wanted(&[("hw-offload", "true")]), (true, Some(TcPolicy::None)));
        let tc = [("hw-offload", "true"), (EBPF, "false"), (TC_POLICY, "skip_sw")];
        assert_eq!(wanted(&tc), (false, Some(TcPolicy::SkipSw)));
        let odd = [("hw-offload", "true"), (TC_POLICY, "perhaps")];
        assert_eq!(wanted(&odd), (true, Some(TcPolicy::None)));
    }
}
