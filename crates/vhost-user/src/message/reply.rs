//! Replies of the back end.

use super::payload::{ConfigSpace, Inflight, Payload, VringState};
use super::wire::Reader;
use super::{MessageError, Request};

/// A reply. A descriptor comes beside [`Reply::Inflight`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A number, or for an acknowledgement zero or an error.
    U64(u64),
    /// A ring's base.
    Vring(VringState),
    /// A part of the configuration space.
    Config(ConfigSpace),
    /// No configuration space, which is an error (specification, GET_CONFIG: "zero length of payload").
    NoConfig,
    /// The record of chains in flight.
    Inflight(Inflight),
}

impl Reply {
    /// Appends its payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::U64(v) => v.write(out),
            Self::Vring(v) => v.write(out),
            Self::Config(v) => v.write(out),
            Self::NoConfig => {}
            Self::Inflight(v) => v.write(out),
        }
    }

    /// Reads the reply to `request`; for the front end.
    ///
    /// # Errors
    /// [`MessageError::Size`].
    pub fn decode(request: &Request, payload: &[u8]) -> Result<Self, MessageError> {
        let mut r = Reader::new(payload);
        let reply = match request {
            Request::GetVringBase(_) => VringState::read(&mut r).map(Self::Vring),
            Request::GetConfig(_) if payload.is_empty() => Some(Self::NoConfig),
            Request::GetConfig(_) => ConfigSpace::read(&mut r).map(Self::Config),
            Request::GetInflightFd(_) => Inflight::read(&mut r).map(Self::Inflight),
            // DPDK replies without a payload.
            Request::SetLogBase(_) if payload.is_empty() => Some(Self::U64(0)),
            _ => r.u64().map(Self::U64),
        };
        reply.filter(|_| r.end().is_some()).ok_or(MessageError::Size {
            request: request.code(),
            size: payload.len(),
        })
    }
}
