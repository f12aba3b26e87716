//! Features of the datapath, and which of them translations use: `dpif/show-dp-features` and
//! `dpif/set-dp-features`.
//!
//! There is one datapath, with the features of [`Feature`]'s table. A bridge may be set to do without some of
//! them, so that tests see how it translates for a lesser datapath.

/// The table of features: name of the constant, name and title in Open vSwitch, kind, and the datapath's
/// value (1 or 0 of a `flag`).
macro_rules! features {
    ($($id:ident, $name:literal, $title:literal, $kind:ident, $boot:expr;)*) => {
        /// One feature of a datapath: it is there or not, or has a number.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)] // named by their titles
        pub enum Feature {
            $($id,)*
        }

        impl Feature {
            /// All, in the order in which they are shown.
            pub const ALL: [Feature; [$($name),*].len()] = [$(Feature::$id),*];

            /// The name by which it is set.
            pub fn name(self) -> &'static str {
                match self { $(Feature::$id => $name,)* }
            }
            /// The title that users see.
            pub fn title(self) -> &'static str {
                match self { $(Feature::$id => $title,)* }
            }
            fn is_flag(self) -> bool {
                match self { $(Feature::$id => is_flag!($kind),)* }
            }
            /// Whether its value is `true` or `false` in the database.
            fn in_database(self) -> bool {
                // The database shows the nesting depth of samples as `true` or `false`.
                self.is_flag() || self == Feature::SampleNesting
            }
            const fn boot(self) -> usize {
                match self { $(Feature::$id => $boot,)* }
            }
        }
    };
}
macro_rules! is_flag {
    (flag) => {
        true
    };
    (number) => {
        false
    };
}

features! {
    MaskedSetAction, "masked_set_action", "Masked set action", flag, 1;
    TnlPushPop, "tnl_push_pop", "Tunnel push pop", flag, 1;
    Ufid, "ufid", "Ufid", flag, 1;
    Trunc, "trunc", "Truncate action", flag, 1;
    Clone, "clone", "Clone action", flag, 1;
    SampleNesting, "sample_nesting", "Sample nesting", number, 10;
    CtEventmask, "ct_eventmask", "Conntrack eventmask", flag, 1;
    CtClear, "ct_clear", "Conntrack clear", flag, 1;
    MaxHashAlg, "max_hash_alg", "Max dp_hash algorithm", number, 1;
    CheckPktLen, "check_pkt_len", "Check pkt length action", flag, 1;
    CtTimeout, "ct_timeout", "Conntrack timeout policy", flag, 1;
    ExplicitDropAction, "explicit_drop_action", "Explicit Drop action", flag, 1;
    LbOutputAction, "lb_output_action", "Optimized Balance TCP mode", flag, 0;
    CtZeroSnat, "ct_zero_snat", "Conntrack all-zero IP SNAT", flag, 1;
    AddMpls, "add_mpls", "MPLS Label add", flag, 1;
    MaxVlanHeaders, "max_vlan_headers", "Max VLAN headers", number, heddle_flow::N_VLANS;
    MaxMplsDepth, "max_mpls_depth", "Max MPLS depth", number, heddle_flow::key::N_MPLS;
    Recirc, "recirc", "Recirc", flag, 1;
    CtState, "ct_state", "CT state", flag, 1;
    CtZone, "ct_zone", "CT zone", flag, 1;
    CtMark, "ct_mark", "CT mark", flag, 1;
    CtLabel, "ct_label", "CT label", flag, 1;
    CtStateNat, "ct_state_nat", "CT state NAT", flag, 1;
    CtOrigTuple, "ct_orig_tuple", "CT orig tuple", flag, 1;
    CtOrigTuple6, "ct_orig_tuple6", "CT orig tuple for IPv6", flag, 1;
    NdExt, "nd_ext", "IPv6 ND Extension", flag, 1;
}

/// The features of the datapath that a bridge uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Features {
    /// Values in force.
    now: [usize; Feature::ALL.len()],
    /// Values of the datapath when it was first probed.
    boot: [usize; Feature::ALL.len()],
}

impl Default for Features {
    /// All features of the datapath.
    fn default() -> Self {
        let all = Feature::ALL.map(Feature::boot);
        Self { now: all, boot: all }
    }
}

impl Features {
    /// All features of a datapath that parses at most `vlan_limit` VLAN tags (0: the maximum).
    pub fn probed(vlan_limit: usize) -> Self {
        let mut all = Self::default();
        if vlan_limit != 0 {
            let vlans = &mut all.boot[Feature::MaxVlanHeaders as usize];
            *vlans = vlan_limit.min(*vlans);
            all.now = all.boot;
        }
        all
    }
    /// The features of a new bridge on the same datapath: the values when it was first probed.
    pub fn at_boot(&self) -> Self {
        Self {
            now: self.boot,
            boot: self.boot,
        }
    }
    /// Whether the feature's value is not zero.
    pub fn has(&self, feature: Feature) -> bool {
        self.number(feature) > 0
    }
    /// The feature's value.
    pub fn number(&self, feature: Feature) -> usize {
        self.now[feature as usize]
    }
    fn at_first(&self, feature: Feature) -> usize {
        self.boot[feature as usize]
    }
    /// One feature, or all of them, as `dpif/set-dp-features` shows them: the value in force, and the
    /// datapath's.
    pub fn shown(&self, name: Option<&str>) -> Result<String, String> {
        let mut named = Feature::ALL
            .into_iter()
            .filter(|f| name.is_none_or(|n| n == f.name()))
            .peekable();
        if named.peek().is_none() {
            return Err("Unexpected support field".into());
        }
        let text = |f: Feature, n: usize| match (f.is_flag(), n) {
            (true, 0) => "false".to_owned(),
            (true, _) => "true".to_owned(),
            (false, n) => n.to_string(),
        };
        let line = |f: Feature| {
            let (now, boot) = (text(f, self.number(f)), text(f, self.at_first(f)));
            format!(
                "{} ({}) : [run time]:{now}, [boot time]:{boot}\n",
                f.name(),
                f.title()
            )
        };
        Ok(named.map(line).collect())
    }
    /// Sets a feature.
    ///
    /// # Errors
    /// The text of Open vSwitch, if there is no such feature, or if the value is invalid or more than the
    /// datapath has.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let feature = Feature::ALL.into_iter().find(|f| f.name() == name);
        let feature = feature.ok_or("Unexpected support field")?;
        let value = if feature.is_flag() {
            match value.to_ascii_lowercase().as_str() {
                "true" => 1,
                "false" => 0,
                _ => return Err("Boolean value expected".into()),
            }
        } else {
            let number: i32 = value.parse().map_err(|_| "Integer number expected")?;
            usize::try_from(number).map_err(|_| "Negative number not expected")?
        };
        if value > self.at_first(feature) {
            return Err(if feature.is_flag() {
                "Can not enable features not supported by the datapth".into()
            } else {
                "Can not set value beyond the datapath capability".into()
            });
        }
        self.now[feature as usize] = value;
        Ok(())
    }
    /// The features of the datapath, as `dpif/show-dp-features` lists them.
    pub fn of_datapath(&self) -> String {
        let line = |f: Feature| {
            let n = self.at_first(f);
            let text = match (f.is_flag(), n) {
                (true, 0) => "No".to_owned(),
                (true, _) => "Yes".to_owned(),
                (false, n) => n.to_string(),
            };
            format!("{}: {text}\n", f.title())
        };
        Feature::ALL.into_iter().map(line).collect()
    }
    /// The features of the datapath for `Datapath.capabilities` of the database. Every datapath can flush
    /// connections by their tuples (`ct_flush`).
    pub fn capabilities(&self) -> Vec<(&'static str, String)> {
        let value = |f: Feature| match (f.in_database(), self.at_first(f)) {
            (true, 0) => "false".to_owned(),
            (true, _) => "true".to_owned(),
            (false, n) => n.to_string(),
        };
        let all = Feature::ALL.into_iter().map(|f| (f.name(), value(f)));
        all.chain([("ct_flush", "true".to_owned())]).collect()
    }
    /// The features of the datapath as log lines, for when it is first probed. Programs and tests look for
    /// these lines.
    pub fn log_lines(&self) -> Vec<String> {
        LOGGED
            .iter()
            .filter_map(|(f, words)| words.line(self.at_first(*f)))
            .collect()
    }
}

/// The form of a feature's log line.
enum Words {
    /// `Datapath supports X`, `Datapath does not support X`.
    Support(&'static str),
    /// No line if the feature is there, else these words.
    Lack(&'static str),
    /// These words, and the value.
    Number(&'static str),
}

impl Words {
    fn line(&self, n: usize) -> Option<String> {
        match self {
            Self::Support(what) if n > 0 => Some(format!("Datapath supports {what}")),
            Self::Support(what) => Some(format!("Datapath does not support {what}")),
            Self::Lack(what) => (n == 0).then(|| (*what).to_owned()),
            Self::Number(what) => Some(format!("{what} {n}")),
        }
    }
}

/// The log lines, in Open vSwitch's order. Open vSwitch logs nothing about the features that are missing
/// here.
const LOGGED: [(Feature, Words); 23] = [
    (Feature::Recirc, Words::Support("recirculation")),
    (
        Feature::MaxVlanHeaders,
        Words::Number("VLAN header stack length probed as"),
    ),
    (
        Feature::MaxMplsDepth,
        Words::Number("MPLS label stack length probed as"),
    ),
    (
        Feature::MaskedSetAction,
        Words::Lack("datapath does not support masked set action feature."),
    ),
    (Feature::Trunc, Words::Support("truncate action")),
    (Feature::Ufid, Words::Support("unique flow ids")),
    (Feature::Clone, Words::Support("clone action")),
    (
        Feature::SampleNesting,
        Words::Number("Max sample nesting level probed as"),
    ),
    (
        Feature::CtEventmask,
        Words::Support("eventmask in conntrack action"),
    ),
    (Feature::CtClear, Words::Support("ct_clear action")),
    (
        Feature::MaxHashAlg,
        Words::Number("Max dp_hash algorithm probed to be"),
    ),
    (Feature::CheckPktLen, Words::Support("check_pkt_len action")),
    (
        Feature::CtTimeout,
        Words::Support("timeout policy in conntrack action"),
    ),
    (Feature::CtZeroSnat, Words::Support("ct_zero_snat")),
    (Feature::AddMpls, Words::Support("add_mpls action")),
    (Feature::CtState, Words::Support("ct_state")),
    (Feature::CtZone, Words::Support("ct_zone")),
    (Feature::CtMark, Words::Support("ct_mark")),
    (Feature::CtLabel, Words::Support("ct_label")),
    (Feature::CtStateNat, Words::Support("ct_state_nat")),
    (Feature::CtOrigTuple, Words::Support("ct_orig_tuple")),
    (Feature::CtOrigTuple6, Words::Support("ct_orig_tuple6")),
    (Feature::NdExt, Words::Support("IPv6 ND Extensions")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_can_be_given_up_and_taken_back() {
        let mut f = Features::default();
        assert!(f.has(Feature::Clone) && !f.has(Feature::LbOutputAction));
        f.set("clone", "FALSE").unwrap();
        assert!(!f.has(Feature::Clone));
        assert_eq!(
            f.shown(Some("clone")).unwrap(),
            "clone (Clone action) : [run time]:false, [boot time]:true\n"
        );
        f.set("clone", "true").unwrap();
        f.set("max_hash_alg", "0").unwrap();
        assert_eq!(f.number(Feature::MaxHashAlg), 0);
        assert_eq!(f.shown(None).unwrap().lines().count(), Feature::ALL.len());
    }

    #[test]
    fn capabilities_and_log_lines_list_all_features() {
        let f = Features::probed(1);
        let caps = f.capabilities();
        let value = |name| caps.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str());
        assert_eq!(caps.len(), Feature::ALL.len() + 1);
        let some = [
            "ct_flush",
            "ct_zero_snat",
            "max_hash_alg",
            "sample_nesting",
            "max_vlan_headers",
        ];
        assert_eq!(some.map(value), ["true", "true", "1", "true", "1"].map(Some));
        assert_eq!(
            Features::probed(0).number(Feature::MaxVlanHeaders),
            heddle_flow::N_VLANS
        );
        let lines = f.log_lines();
        for line in [
            "VLAN header stack length probed as 1",
            "Datapath supports ct_clear action",
        ] {
            assert!(lines.iter().any(|l| l == line), "{line}");
        }
        assert_eq!(LOGGED.len() - lines.len(), 1, "what is there and is never logged");
        let mut less = f.clone();
        less.set("clone", "false").unwrap();
        assert_eq!(less.at_boot(), f);
    }

    #[test]
    fn what_is_not_there_is_not_set() {
        let mut f = Features::default();
        let mut said = |name, value| f.set(name, value).unwrap_err();
        assert_eq!(said("no_such", "1"), "Unexpected support field");
        assert_eq!(said("clone", "1"), "Boolean value expected");
        assert_eq!(
            said("lb_output_action", "true"),
            "Can not enable features not supported by the datapth"
        );
        assert_eq!(
            said("max_hash_alg", "2"),
            "Can not set value beyond the datapath capability"
        );
        assert_eq!(said("max_hash_alg", "-1"), "Negative number not expected");
        assert_eq!(said("max_hash_alg", "x"), "Integer number expected");
        assert_eq!(f, Features::default());
    }
}
