//! The options of an `afxdp` port, and the modes in which a device can be opened.

use crate::PortError;
use std::collections::BTreeMap;

/// The way in which the kernel hands packets over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// The driver reads and writes our frames.
    ZeroCopy,
    /// The driver runs the program, and the kernel copies packets.
    Native,
    /// The host's stack runs the program: works with every driver.
    Generic,
}

impl Mode {
    const ALL: [Self; 3] = [Self::ZeroCopy, Self::Native, Self::Generic];

    /// The number of cards for which new memory has room, so that frames go from one to the other without a
    /// copy. Where the kernel copies, that saves less than the memory is worth.
    pub(super) fn cards_per_memory(self) -> u32 {
        if self == Self::ZeroCopy { 2 } else { 1 }
    }

    /// The mode's name in the database.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "native-with-zerocopy",
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// The options of a port. Keys and defaults are Open vSwitch's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Options {
    /// The wanted mode; `None`: the best one that the device has.
    pub(super) mode: Option<Mode>,
    /// The kernel reports when it has to be called.
    pub(super) need_wakeup: bool,
    /// The device's first queue that the port uses.
    pub(super) first_queue: u32,
    /// Frames of each queue, to receive and to send: also the sizes of the rings.
    pub(super) frames: (u32, u32),
}

/// Default of `n_rxq_desc` and `n_txq_desc`: 2 MB of packets may come while the worker is elsewhere.
const DEFAULT_FRAMES: u32 = 2048;
/// Maximum of both, as in Open vSwitch.
const MAX_FRAMES: u32 = 4096;
/// Minimum of both: a few bursts.
const MIN_FRAMES: u32 = 64;

impl Options {
    /// # Errors
    /// [`PortError::Config`] names the option, its value and what is possible.
    pub(super) fn parse(name: &str, options: &BTreeMap<String, String>) -> Result<Self, PortError> {
        let get = |key: &str| options.get(key).map(String::as_str);
        let refused = |key: &str, value: &str, possible: &str| {
            PortError::Config(format!("{name}: options:{key}={value}: expected {possible}"))
        };
        let mode = match get("xdp-mode") {
            None => None,
            Some(mode) if mode.eq_ignore_ascii_case("best-effort") => None,
            Some(mode) => Some(
                *Mode::ALL
                    .iter()
                    .find(|m| mode.eq_ignore_ascii_case(m.name()))
                    .ok_or_else(|| {
                        refused(
                            "xdp-mode",
                            mode,
                            "best-effort, native-with-zerocopy, native or generic",
                        )
                    })?,
            ),
        };
        let need_wakeup = match get("use-need-wakeup") {
            None | Some("true") => true,
            Some("false") => false,
            Some(other) => return Err(refused("use-need-wakeup", other, "true or false")),
        };
        let first_queue = match get("start-qid") {
            None => 0,
            Some(text) => text
                .parse()
                .ok()
                .filter(|n| *n < heddle_xsk::MAX_QUEUES)
                .ok_or_else(|| refused("start-qid", text, "a queue of the device"))?,
        };
        let frames = |key: &str| match get(key) {
            None => Ok(DEFAULT_FRAMES),
            Some(text) => text
                .parse()
                .ok()
                .filter(|n: &u32| n.is_power_of_two() && (MIN_FRAMES..=MAX_FRAMES).contains(n))
                .ok_or_else(|| refused(key, text, "a power of two from 64 to 4096")),
        };
        Ok(Self {
            mode,
            need_wakeup,
            first_queue,
            frames: (frames("n_rxq_desc")?, frames("n_txq_desc")?),
        })
    }

    /// The modes to try, best first.
    pub(super) fn modes(&self) -> Vec<Mode> {
        self.mode.map_or_else(|| Mode::ALL.to_vec(), |mode| vec![mode])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Options, String> {
        let pairs = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Options::parse("p0", &pairs.collect()).map_err(|e| e.to_string())
    }

    #[test]
    fn options_are_open_vswitch_s() {
        let plain = parse(&[]).unwrap();
        assert_eq!(
            (plain.mode, plain.need_wakeup, plain.first_queue),
            (None, true, 0)
        );
        assert_eq!(plain.modes(), Mode::ALL);
        let all = parse(&[
            ("xdp-mode", "Native"),
            ("use-need-wakeup", "false"),
            ("start-qid", "3"),
            ("n_rxq", "2"),
        ]);
        let all = all.unwrap();
        assert_eq!(
            (all.modes(), all.need_wakeup, all.first_queue),
            (vec![Mode::Native], false, 3)
        );
        assert_eq!(parse(&[("xdp-mode", "best-effort")]), Ok(plain));
        assert_eq!(
            parse(&[("xdp-mode", "skb")]).unwrap_err(),
            "p0: options:xdp-mode=skb: expected best-effort, native-with-zerocopy, native or generic"
        );
        let sized = parse(&[("n_rxq_desc", "4096"), ("n_txq_desc", "64")]).unwrap();
        assert_eq!((plain.frames, sized.frames), ((2048, 2048), (4096, 64)));
        for bad in [
            ("use-need-wakeup", "no"),
            ("start-qid", "-1"),
            ("start-qid", "64"),
            ("n_rxq_desc", "1000"),
            ("n_txq_desc", "8192"),
        ] {
            assert!(parse(&[bad]).unwrap_err().contains(bad.0));
        }
    }
}
