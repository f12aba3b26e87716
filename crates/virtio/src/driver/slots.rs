//! A driver's record of its chains.
//!
//! Identifiers are handed out first in, first out. With IN_ORDER they are then used in ring order, as virtio
//! 1.2 §2.7.9 demands of a split ring's descriptors.

use super::{Done, DriverError};
use std::collections::VecDeque;

/// A chain that the device has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) token: u32,
    /// Descriptors (split) or slots (packed) that it takes.
    pub(super) slots: u16,
    /// Bytes that the device may write.
    pub(super) writable: u32,
}

/// Chains by identifier.
#[derive(Debug)]
pub(super) struct Slots {
    chains: Vec<Option<Chain>>,
    /// With IN_ORDER: identifiers in the order in which they were added.
    order: Option<VecDeque<u16>>,
    /// With IN_ORDER: the identifier and length that end the batch which is being taken.
    batch: Option<(u16, u32)>,
}

impl Slots {
    pub(super) fn new(size: u16, in_order: bool) -> Self {
        Self {
            chains: vec![None; usize::from(size)],
            order: in_order.then(|| VecDeque::with_capacity(usize::from(size))),
            batch: None,
        }
    }
    pub(super) fn put(&mut self, id: u16, chain: Chain) {
        if let Some(slot) = self.chains.get_mut(usize::from(id)) {
            *slot = Some(chain);
        }
        if let Some(order) = &mut self.order {
            order.push_back(id);
        }
    }
    /// Whether chains of a batch are left, so that the ring need not be looked at.
    pub(super) fn in_batch(&self) -> bool {
        self.batch.is_some()
    }
    /// The device reports that `id` was used with `len` bytes written. Without IN_ORDER that is one chain;
    /// with it the first of a batch that ends with `id`.
    pub(super) fn used(&mut self, id: u16, len: u32) -> Result<(u16, Chain, Done), DriverError> {
        if self.order.is_none() {
            return self.take(id, Some(len));
        }
        if self.chains.get(usize::from(id)).is_none_or(Option::is_none) {
            return Err(DriverError::Device("used a chain that it does not have"));
        }
        self.batch = Some((id, len));
        self.next_of_batch()
    }
    /// The next chain of the batch.
    pub(super) fn next_of_batch(&mut self) -> Result<(u16, Chain, Done), DriverError> {
        let next = self.order.as_mut().and_then(VecDeque::pop_front);
        let (Some(id), Some((last, len))) = (next, self.batch) else {
            return Err(DriverError::Device(
                "ended a batch with a chain that it does not have",
            ));
        };
        if id == last {
            self.batch = None;
            self.take(id, Some(len))
        } else {
            self.take(id, None)
        }
    }
    fn take(&mut self, id: u16, len: Option<u32>) -> Result<(u16, Chain, Done), DriverError> {
        let chain = self.chains.get_mut(usize::from(id)).and_then(Option::take);
        let chain = chain.ok_or(DriverError::Device("used a chain that it does not have"))?;
        let len = len.unwrap_or(chain.writable);
        if len > chain.writable {
            return Err(DriverError::Device("wrote more than the chain has"));
        }
        let done = Done {
            token: chain.token,
            len,
        };
        Ok((id, chain, done))
    }
}
