//! Features of a network device by their names, as `ethtool -k` shows them.

use crate::link::LinkCtl;
use std::io;

const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
/// The set of strings that names features.
const ETH_SS_FEATURES: u32 = 4;
/// Length of a name, bytes and words.
const NAME_BYTES: usize = 32;
const NAME_WORDS: usize = NAME_BYTES / 4;
/// Maximum number of features that a kernel may have here; Linux 6.18 has about 60.
const MAX_FEATURES: usize = 256;
/// Words of a request before the names, and before the features.
const NAMES_AT: usize = 3;
const FEATURES_AT: usize = 2;
/// Words of 32 features, and the index of those that are on.
const BLOCK_WORDS: usize = 4;
const ACTIVE: usize = 2;

impl LinkCtl {
    /// Whether a feature of the device is on, such as `hw-tc-offload`. `None`: the kernel does not know it.
    ///
    /// # Errors
    /// The system's error, such as `ENODEV`.
    pub fn feature(&self, name: &str, feature: &str) -> io::Result<Option<bool>> {
        let mut count = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
        self.ethtool(name, &mut count)?;
        let n = count[4] as usize;
        // The kernel writes as many names as there are, whatever the request has room for.
        if n > MAX_FEATURES {
            return Ok(None);
        }
        let mut names = Box::new([0_u32; NAMES_AT + MAX_FEATURES * NAME_WORDS]);
        names[..2].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES]);
        self.ethtool(name, &mut names)?;
        let is = |words: &[u32]| {
            let bytes = words.iter().flat_map(|w| w.to_ne_bytes());
            bytes.take_while(|b| *b != 0).eq(feature.bytes())
        };
        let all = names[NAMES_AT..].chunks_exact(NAME_WORDS).take(n);
        let Some(index) = all.into_iter().position(is) else {
            return Ok(None);
        };
        let mut features = [0_u32; FEATURES_AT + BLOCK_WORDS * MAX_FEATURES / 32];
        features[..2].copy_from_slice(&[ETHTOOL_GFEATURES, (MAX_FEATURES / 32) as u32]);
        self.ethtool(name, &mut features)?;
        let active = features[FEATURES_AT + BLOCK_WORDS * (index / 32) + ACTIVE];
        Ok(Some(active >> (index % 32) & 1 != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_those_that_ethtool_shows() {
        let ctl = LinkCtl::new().unwrap();
        assert_eq!(ctl.feature("lo", "loopback").unwrap(), Some(true));
        assert_eq!(ctl.feature("lo", "hw-tc-offload").unwrap(), Some(false));
        assert_eq!(ctl.feature("lo", "no-such-feature").unwrap(), None);
        assert!(ctl.feature("no-such-device", "loopback").is_err());
        let Ok(out) = std::process::Command::new("ethtool").args(["-k", "lo"]).output() else {
            return; // not installed
        };
        let shown = String::from_utf8(out.stdout).unwrap();
        // Indented names are parts of groups that ethtool makes up.
        let all = shown.lines().skip(1).filter_map(|l| l.split_once(": "));
        let mut compared = 0;
        for (name, state) in all.filter(|(name, _)| name.starts_with('\t')) {
            if let Some(is_on) = ctl.feature("lo", name.trim()).unwrap() {
                assert_eq!(is_on, state.starts_with("on"), "{name}");
                compared += 1;
            }
        }
        assert!(compared > 5, "{shown}");
    }
}
