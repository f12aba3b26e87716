//! Chains in flight, recorded where they survive a crash: GET_INFLIGHT_FD and SET_INFLIGHT_FD (specification,
//! "Inflight I/O tracking").
//!
//! This back end takes and gives back chains in order. So a split ring itself shows the chains in flight: all
//! from its used index on, and the states of single descriptors stay clear. If another back end left some
//! states set, those chains come first ([`SplitRecord`]). A packed ring does not contain its position; its
//! [`Record`] is in its region. Chains of a packed ring that another back end took out of order are not taken
//! again by number.
//!
//! Everything in the area is a claim: the front end can write to it. Sizes are those of the message, checked
//! against the mapping and against the ring at each start.

use super::{Handled, Outcome, Refusal, Session, memory_file, refuse};
use crate::message::{Inflight, Reply};
use heddle_sys::mmap::{Pages, memfd};
use heddle_sys::{Foreign, Mapping};
use heddle_virtio::ring::limits::MAX_QUEUE;
use heddle_virtio::ring::{Record, RecordLayout, SplitRecord};
use std::sync::Arc;

/// Regions of queues begin at multiples of this.
const ALIGN: u64 = 64;

/// The area that the front end handed over.
#[derive(Debug)]
pub(super) struct Area {
    map: Arc<Mapping>,
    shape: Inflight,
}

/// Bytes from one queue's region to the next.
fn stride(queue_size: u16, packed: bool) -> u64 {
    let len = if packed {
        RecordLayout::Inflight.len(queue_size)
    } else {
        SplitRecord::len(queue_size)
    };
    len.next_multiple_of(ALIGN)
}

impl Area {
    /// Offset of the region of ring `index` of `size` entries; `None` when the area does not hold it.
    fn place(&self, index: u16, size: u16, packed: bool) -> Option<u64> {
        let stride = stride(self.shape.queue_size, packed);
        let at = u64::from(index) * stride;
        let fits = index < self.shape.num_queues
            && size <= self.shape.queue_size
            && at + stride <= self.map.len() as u64;
        fits.then_some(at)
    }
    /// Whether its file was cut.
    pub(super) fn is_cut(&self) -> bool {
        self.map.was_cut()
    }
    /// The record of a packed ring.
    pub(super) fn record(&self, index: u16, size: u16) -> Option<Record> {
        let at = self.place(index, size, true)?;
        Record::new(&self.map, at, size, RecordLayout::Inflight).ok()
    }
    /// The region of a split ring.
    pub(super) fn split_record(&self, index: u16, size: u16) -> Option<SplitRecord> {
        let at = self.place(index, size, false)?;
        SplitRecord::new(&self.map, at, size).ok()
    }
}

impl Session {
    fn check_shape(&self, shape: Inflight) -> Result<u64, Refusal> {
        let Inflight {
            num_queues,
            queue_size,
            ..
        } = shape;
        if num_queues == 0 || usize::from(num_queues) > self.rings.len() {
            refuse!("{num_queues} of {} queues", self.rings.len());
        }
        if queue_size == 0 || queue_size > MAX_QUEUE {
            refuse!("queues of {queue_size} entries");
        }
        // The layout is not negotiated yet: room for the larger one.
        Ok(u64::from(num_queues) * stride(queue_size, true))
    }

    pub(super) fn get_inflight_fd(&mut self, shape: Inflight) -> Handled {
        let size = self.check_shape(shape)?;
        let fd = memfd("vhost-user-inflight", size, Pages::Normal)?;
        let shape = Inflight {
            mmap_size: size,
            mmap_offset: 0,
            ..shape
        };
        Ok(Outcome::Reply(Reply::Inflight(shape), Some(fd)))
    }

    pub(super) fn set_inflight_fd(&mut self, shape: Inflight, fd: Option<Foreign>) -> Handled {
        let Some(fd) = fd else { refuse!("no descriptor") };
        memory_file(&fd)?;
        self.check_shape(shape)?;
        if self.rings.iter().any(super::ring::Ring::is_started) {
            refuse!("rings are running");
        }
        // Another back end's area may be smaller, for split rings: each ring's region is checked when it
        // starts.
        let most = u64::from(shape.num_queues) * stride(shape.queue_size, true);
        let least = u64::from(shape.num_queues) * stride(shape.queue_size, false);
        if shape.mmap_size < least {
            refuse!("{:#x} bytes for regions of {least:#x}", shape.mmap_size);
        }
        let map = super::memory::mapped(&fd, shape.mmap_offset, shape.mmap_size.min(most))?;
        self.inflight = Some(Area {
            map: Arc::new(map),
            shape,
        });
        Ok(Outcome::Done)
    }
}
