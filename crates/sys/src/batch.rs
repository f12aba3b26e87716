//! Many messages per system call: recvmmsg(2) and sendmmsg(2) with arrays that are allocated once.
//!
//! The kernel's arrays hold raw addresses. Both types therefore refill them from borrows on every call: an
//! address is never used after the call that it was given to.

#![allow(unsafe_code)] // recvmmsg, sendmmsg

use crate::{Iov, cvt};
use core::marker::PhantomData;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Room for one `PACKET_AUXDATA` control message (16 + 20 bytes, rounded up), aligned for `cmsghdr`.
type Control = [u64; 8];

/// A VLAN tag that the kernel has taken out of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrippedVlan {
    /// EtherType of the tag (0x8100, 0x88a8).
    pub tpid: u16,
    /// Priority, DEI and VLAN id.
    pub tci: u16,
}

/// One message of the last [`RecvBatch::recv`].
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Bytes written to its buffer.
    pub len: usize,
    /// The message was longer than its buffer; the rest is lost.
    pub truncated: bool,
    /// The tag to put back, if the kernel took one out.
    pub vlan: Option<StrippedVlan>,
}

/// Receive arrays for up to a fixed number of messages of one buffer each.
#[derive(Debug)]
pub struct RecvBatch {
    msgs: Box<[libc::mmsghdr]>,
    iovs: Box<[libc::iovec]>,
    control: Box<[Control]>,
}

// SAFETY: the raw addresses inside are only used during `recv`, which refills them first.
unsafe impl Send for RecvBatch {}

fn zeroed_msg() -> libc::mmsghdr {
    // SAFETY: a C structure for which all zeroes mean "nothing".
    unsafe { core::mem::zeroed() }
}
const NO_IOV: libc::iovec = libc::iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

impl RecvBatch {
    /// Arrays for up to `max` messages.
    pub fn new(max: usize) -> Self {
        Self {
            msgs: (0..max).map(|_| zeroed_msg()).collect(),
            iovs: vec![NO_IOV; max].into_boxed_slice(),
            control: vec![[0; 8]; max].into_boxed_slice(),
        }
    }

    /// Receives at most one message for each buffer of `bufs`, without waiting. Returns their number; 0 means
    /// none is there. Each message goes to the buffer of its index.
    ///
    /// # Errors
    /// The error of recvmmsg(2) except `EAGAIN`. A packet socket returns `ENETDOWN` once when its device goes
    /// down.
    pub fn recv<'b>(
        &mut self,
        fd: BorrowedFd<'_>,
        bufs: impl Iterator<Item = &'b mut [u8]>,
    ) -> io::Result<usize> {
        let mut n = 0;
        for (((buf, msg), iov), control) in bufs
            .zip(self.msgs.iter_mut())
            .zip(self.iovs.iter_mut())
            .zip(self.control.iter_mut())
        {
            *iov = libc::iovec {
                iov_base: buf.as_mut_ptr().cast(),
                iov_len: buf.len(),
            };
            let hdr = &mut msg.msg_hdr;
            hdr.msg_iov = iov;
            hdr.msg_iovlen = 1;
            hdr.msg_control = control.as_mut_ptr().cast();
            hdr.msg_controllen = size_of::<Control>() as _;
            hdr.msg_flags = 0;
            n += 1;
        }
        // SAFETY: the first `n` messages point at one vector, one buffer and one control area each, all of
        // them borrowed mutably by this call.
        let got = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.msgs.as_mut_ptr(),
                n,
                libc::MSG_DONTWAIT as _,
                core::ptr::null_mut(),
            )
        };
        match cvt(got) {
            Ok(n) => Ok(n as usize),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Message `i` of the last call. One that was not received has length 0.
    pub fn received(&self, i: usize) -> Received {
        let Some(msg) = self.msgs.get(i) else {
            return Received {
                len: 0,
                truncated: false,
                vlan: None,
            };
        };
        let truncated = msg.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let vlan = self
            .control
            .get(i)
            .and_then(|c| stripped_vlan(c, msg.msg_hdr.msg_controllen));
        Received {
            len: msg.msg_len as usize,
            truncated,
            vlan,
        }
    }
}

/// `struct tpacket_auxdata` (linux/if_packet.h) as 32-bit words: status, len, snaplen, mac|net, tci|tpid.
fn stripped_vlan(control: &Control, len: usize) -> Option<StrippedVlan> {
    const STATUS_VLAN_VALID: u32 = 1 << 4;
    const STATUS_TPID_VALID: u32 = 1 << 6;
    // cmsghdr: length (8 bytes), level and type (4 each); then the structure.
    if len < 36 {
        return None;
    }
    let (level, kind) = (control[1] as u32, (control[1] >> 32) as u32);
    if cfg!(target_endian = "little")
        && (level, kind) != (libc::SOL_PACKET as u32, libc::PACKET_AUXDATA as u32)
    {
        return None;
    }
    let mut bytes = [0_u8; 20];
    for (dst, word) in bytes.chunks_mut(8).zip(control.iter().skip(2)) {
        let src = word.to_ne_bytes();
        dst.copy_from_slice(&src[..dst.len()]);
    }
    let status = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    if status & STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tci = u16::from_ne_bytes([bytes[16], bytes[17]]);
    let tpid = u16::from_ne_bytes([bytes[18], bytes[19]]);
    let tpid = if status & STATUS_TPID_VALID != 0 {
        tpid
    } else {
        0x8100
    };
    Some(StrippedVlan { tpid, tci })
}

/// Send arrays for up to a fixed number of messages and vectors.
#[derive(Debug)]
pub struct SendBatch {
    msgs: Box<[libc::mmsghdr]>,
    iovs: Box<[libc::iovec]>,
}

// SAFETY: the raw addresses inside are only used through `Filling`, which refills them first.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// Arrays for up to `max_msgs` messages with `max_iovs` vectors among them.
    pub fn new(max_msgs: usize, max_iovs: usize) -> Self {
        Self {
            msgs: (0..max_msgs).map(|_| zeroed_msg()).collect(),
            iovs: vec![NO_IOV; max_iovs].into_boxed_slice(),
        }
    }
    /// Starts a new list of messages.
    pub fn fill<'s, 'a>(&'s mut self) -> Filling<'s, 'a> {
        Filling {
            batch: self,
            msgs: 0,
            iovs: 0,
            _bytes: PhantomData,
        }
    }
}

/// A list of messages that borrows their bytes.
#[derive(Debug)]
pub struct Filling<'s, 'a> {
    batch: &'s mut SendBatch,
    msgs: usize,
    iovs: usize,
    _bytes: PhantomData<Iov<'a>>,
}

impl<'a> Filling<'_, 'a> {
    /// Appends a message of the given pieces; `false` (and nothing appended) when it does not fit any more.
    pub fn push(&mut self, pieces: impl Iterator<Item = Iov<'a>>) -> bool {
        if self.msgs >= self.batch.msgs.len() {
            return false;
        }
        let first = self.iovs;
        let mut end = first;
        for piece in pieces {
            let Some(slot) = self.batch.iovs.get_mut(end) else {
                return false;
            };
            *slot = piece.raw();
            end += 1;
        }
        // SAFETY: `first` is at most the length of the array.
        let at = unsafe { self.batch.iovs.as_mut_ptr().add(first) };
        let hdr = &mut self.batch.msgs[self.msgs].msg_hdr;
        hdr.msg_iov = at;
        hdr.msg_iovlen = (end - first) as _;
        self.iovs = end;
        self.msgs += 1;
        true
    }
    /// Messages in the list.
    pub fn len(&self) -> usize {
        self.msgs
    }
    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.msgs == 0
    }
    /// Sends the messages from index `from` on, without waiting. Returns how many were taken.
    ///
    /// # Errors
    /// Why the first of them was not: `EAGAIN` and `ENOBUFS` (full), `ENETDOWN`, `EMSGSIZE`, ...
    pub fn send(&mut self, fd: BorrowedFd<'_>, from: usize) -> io::Result<usize> {
        let Some(msgs) = self.batch.msgs.get_mut(from..self.msgs) else {
            return Ok(0);
        };
        // SAFETY: the messages' vectors point at bytes that are readable during 'a, which outlives `self`.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                msgs.as_mut_ptr(),
                msgs.len() as _,
                libc::MSG_DONTWAIT as _,
            )
        };
        cvt(sent).map(|n| n as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn messages_keep_order_and_bounds() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let mut out = SendBatch::new(4, 7);
        let mut fill = out.fill();
        let pieces: [&[u8]; 3] = [b"he", b"dd", b"le"];
        assert!(fill.push(pieces.iter().map(|p| Iov::new(p))));
        assert!(fill.push(pieces[..2].iter().map(|p| Iov::new(p))));
        assert!(
            !fill.push(pieces.iter().map(|p| Iov::new(p))),
            "three vectors do not fit in two"
        );
        assert!(fill.push(pieces[..1].iter().map(|p| Iov::new(p))));
        assert_eq!(fill.send(a.as_fd(), 0).unwrap(), 3);
        assert_eq!(fill.send(a.as_fd(), 3).unwrap_or(0), 0);

        let mut bufs = [[0_u8; 5]; 4];
        let mut batch = RecvBatch::new(4);
        assert_eq!(
            batch
                .recv(b.as_fd(), bufs.iter_mut().map(|b| &mut b[..]))
                .unwrap(),
            3
        );
        assert_eq!(&bufs[0], b"heddl");
        let first = batch.received(0);
        assert!(first.truncated && first.vlan.is_none());
        assert_eq!((batch.received(1).len, batch.received(2).len), (4, 2));
        assert!(!batch.received(1).truncated);
        assert_eq!(
            batch
                .recv(b.as_fd(), bufs.iter_mut().map(|b| &mut b[..]))
                .unwrap(),
            0
        );
    }

    #[test]
    fn auxdata_is_read_field_by_field() {
        let mut control: Control = [0; 8];
        let status: u32 = (1 << 4) | (1 << 6);
        control[0] = 36;
        control[1] = (libc::SOL_PACKET as u64) | ((libc::PACKET_AUXDATA as u64) << 32);
        control[2] = u64::from(status);
        control[4] = u64::from(0x2007_u16) | (u64::from(0x88a8_u16) << 16);
        assert_eq!(
            stripped_vlan(&control, 36),
            Some(StrippedVlan {
                tpid: 0x88a8,
                tci: 0x2007
            })
        );
        control[2] = 1 << 4;
        assert_eq!(
            stripped_vlan(&control, 36),
            Some(StrippedVlan {
                tpid: 0x8100,
                tci: 0x2007
            })
        );
        control[2] = 1 << 6;
        assert_eq!(stripped_vlan(&control, 36), None);
        assert_eq!(stripped_vlan(&control, 35), None);
    }
}
