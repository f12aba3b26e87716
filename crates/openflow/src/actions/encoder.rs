//! The encoder of actions: what it follows, and the form of one action. [`super::encode`] has the actions.

use super::raw::{Raw, row};
use crate::error::EncodeError;
use crate::version::Version;
use crate::wire::cursor::Put;
use heddle_flow::Match;

/// Encodes lists of actions for one version.
pub(crate) struct Encoder {
    pub(super) version: Version,
    pub(super) has_vlan: bool,
    pub(super) ip_proto: u8,
}

pub(super) type Encoded = Result<(), EncodeError>;

impl Encoder {
    /// For the actions of a flow with this match.
    pub(crate) fn new(version: Version, m: &Match) -> Encoder {
        Encoder {
            version,
            has_vlan: m.key.vlans[0].present(),
            ip_proto: m.key.nw_proto,
        }
    }

    pub(super) fn missing(&self, what: &'static str) -> EncodeError {
        EncodeError::NotInVersion {
            what,
            version: self.version,
        }
    }

    /// Writes the header of a form; gives where it starts, for [`end`].
    pub(super) fn begin(
        &self,
        raw: Raw,
        what: &'static str,
        out: &mut Vec<u8>,
    ) -> Result<usize, EncodeError> {
        let row = row(self.version, raw).ok_or(self.missing(what))?;
        let start = out.end();
        out.u16(if row.vendor == 0 { row.number } else { 0xffff });
        out.u16(row.min);
        if row.vendor != 0 {
            out.u32(row.vendor);
            out.u16(row.number);
        }
        Ok(start)
    }
}

/// Ends an action: pads it to at least its form's length and a multiple of eight, and fills its length in.
pub(super) fn end(out: &mut Vec<u8>, start: usize) {
    let min = out
        .get(start + 2..start + 4)
        .and_then(|b| <[u8; 2]>::try_from(b).ok());
    let min = usize::from(min.map_or(0, u16::from_be_bytes));
    let now = out.end() - start;
    out.zeros(min.saturating_sub(now));
    out.pad8(start);
    out.patch_len(start, 2);
}
