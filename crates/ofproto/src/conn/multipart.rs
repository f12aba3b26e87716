//! Multipart requests that come in parts (OpenFlow 1.3 §7.3.5).
//!
//! Parts with the same transaction id are put together if the request is a list. A request of one part passes
//! through. An incomplete request is forgotten when no part has come for a second. The number of incomplete
//! requests of one connection is bounded, and so are their bytes.

use heddle_openflow::message::MpRequest;
use heddle_openflow::{ErrorKind, OfError};
use std::collections::HashMap;

/// Time in which the next part must come.
const TIMEOUT_MS: u64 = 1000;
/// Bytes of one request (table features take more than a megabyte).
const MAX_BYTES: usize = 4 << 20;
/// Requests that may be incomplete at a time.
const MAX_PARTIAL: usize = 16;

struct Partial {
    body: MpRequest,
    bytes: usize,
    until_ms: u64,
    /// The last part, to be named by an error about the request.
    last: Vec<u8>,
}

/// The incomplete requests of one connection.
#[derive(Default)]
pub(super) struct Multiparts {
    partial: HashMap<u32, Partial>,
}

impl Multiparts {
    /// Takes a part; returns the request when it is complete. `whole`: the part's bytes.
    pub(super) fn take(
        &mut self,
        xid: u32,
        more: bool,
        body: MpRequest,
        whole: &[u8],
        now_ms: u64,
    ) -> Result<Option<MpRequest>, ErrorKind> {
        let Some(mut p) = self.partial.remove(&xid) else {
            if !more {
                return Ok(Some(body));
            }
            if self.partial.len() >= MAX_PARTIAL {
                return Err(ErrorKind::BadRequestMultipartBufferOverflow);
            }
            self.keep(xid, body, whole.len(), whole, now_ms);
            return Ok(None);
        };
        p.bytes += whole.len();
        if p.bytes > MAX_BYTES {
            return Err(ErrorKind::BadRequestMultipartBufferOverflow);
        }
        match (&mut p.body, body) {
            (MpRequest::TableFeatures(all), MpRequest::TableFeatures(mut part)) => all.append(&mut part),
            (MpRequest::FlowMonitor(all), MpRequest::FlowMonitor(mut part)) => all.append(&mut part),
            _ => return Err(ErrorKind::BadRequestBadStat),
        }
        if more {
            self.keep(xid, p.body, p.bytes, whole, now_ms);
            return Ok(None);
        }
        Ok(Some(p.body))
    }

    fn keep(&mut self, xid: u32, body: MpRequest, bytes: usize, whole: &[u8], now_ms: u64) {
        let p = Partial {
            body,
            bytes,
            until_ms: now_ms + TIMEOUT_MS,
            last: whole.to_vec(),
        };
        self.partial.insert(xid, p);
    }

    /// Forgets requests whose next part is late; returns the errors about them, with their transaction ids.
    pub(super) fn expire(&mut self, now_ms: u64) -> Vec<(u32, OfError)> {
        let mut late = Vec::new();
        self.partial.retain(|xid, p| {
            let keep = now_ms < p.until_ms;
            if !keep {
                let kind = ErrorKind::BadRequestMultipartRequestTimeout;
                late.push((*xid, OfError::new(kind, &p.last)));
            }
            keep
        });
        late
    }
}
