//! Packet sockets (packet(7)): raw frames of one network device, with the virtio-net header in front.
//!
//! Invariants: a socket is bound to one interface index. When that device is deleted the socket receives
//! nothing more, also if a device of the same name appears again, until [`PacketSocket::bind`] is called.
//!
//! The device's own IP stack sees the same packets: a packet socket is a tap, not a diversion.
//!
//! Closing one takes the kernel some 10 ms; that is done aside ([`crate::aside`]).

#![allow(unsafe_code)] // structures of the kernel

use crate::cbpf::RET;
use crate::outer_filter::{OuterFilter, ReturnCodes};
use crate::{aside, cvt, sock};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Length of the virtio-net header that `PACKET_VNET_HDR` uses.
pub const VNET_HDR_LEN: usize = 10;

const PACKET_IGNORE_OUTGOING: i32 = 23;
const PACKET_VNET_HDR: i32 = 15;

/// A packet socket that sends, and receives if that was requested.
#[derive(Debug)]
pub struct PacketSocket {
    /// Taken out when this is dropped, and never else.
    fd: ManuallyDrop<OwnedFd>,
    receives: bool,
    vnet: bool,
}

impl PacketSocket {
    /// A socket that receives packets that arrive at its device (not those that the host itself sends there),
    /// and may send.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_RAW`.
    pub fn receiver() -> io::Result<Self> {
        let mut s = Self::open(true)?;
        sock::set(s.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1_i32)?;
        sock::set(s.as_fd(), libc::SOL_PACKET, libc::PACKET_AUXDATA, &1_i32)?;
        s.vnet = sock::set(s.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &1_i32).is_ok();
        Ok(s)
    }
    /// A socket that only sends.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_RAW`.
    pub fn sender() -> io::Result<Self> {
        let mut s = Self::open(false)?;
        s.vnet = sock::set(s.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &1_i32).is_ok();
        Ok(s)
    }
    fn open(receives: bool) -> io::Result<Self> {
        // Protocol 0: nothing is queued before `bind` names the device.
        Ok(Self {
            fd: ManuallyDrop::new(sock::socket(AddressFamily::PACKET, SocketType::RAW)?),
            receives,
            vnet: false,
        })
    }
    /// Whether each packet has a virtio-net header of [`VNET_HDR_LEN`] bytes in front.
    pub fn has_vnet_hdr(&self) -> bool {
        self.vnet
    }
    /// Binds (again) to interface `ifindex`.
    ///
    /// # Errors
    /// `ENODEV` when it does not exist, `ENETDOWN` is not an error here; `EINVAL` for a member of a fanout
    /// group that is bound already.
    pub fn bind(&self, ifindex: u32) -> io::Result<()> {
        // SAFETY: a C structure for which all zeroes are a value.
        let mut addr: libc::sockaddr_ll = unsafe { core::mem::zeroed() };
        addr.sll_family = libc::AF_PACKET as u16;
        addr.sll_protocol = if self.receives {
            (libc::ETH_P_ALL as u16).to_be()
        } else {
            0
        };
        addr.sll_ifindex = i32::try_from(ifindex).unwrap_or(-1);
        sock::bind(self.as_fd(), &addr)
    }
    /// Takes nothing in until a later call.
    ///
    /// # Errors
    /// `ENOMEM`; the errors of a kernel without socket filters.
    pub fn refuse(&self) -> io::Result<()> {
        // One instruction: return 0 bytes of the packet.
        sock::attach_filter(self.as_fd(), &[(RET, 0, 0, 0)])
    }
    /// Takes in outer packets of tunnels only. If the kernel has no room for a long filter, packets from any
    /// source address are taken.
    ///
    /// # Errors
    /// `ENOMEM`; the errors of a kernel without socket filters.
    pub fn set_filter(&self, filter: &OuterFilter) -> io::Result<()> {
        const WHOLE: ReturnCodes = ReturnCodes {
            taken: u32::MAX,
            others: 0,
        };
        if let Some(program) = filter.program(0, WHOLE)
            && sock::attach_filter(self.as_fd(), &program).is_ok()
        {
            return Ok(());
        }
        let program = filter.coarse().program(0, WHOLE);
        sock::attach_filter(
            self.as_fd(),
            &program.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?,
        )
    }
    /// Takes packets in again.
    ///
    /// # Errors
    /// `ENOENT` when it did so all the time.
    pub fn accept(&self) -> io::Result<()> {
        sock::set(self.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32)
    }
    /// Makes the device promiscuous for as long as this socket lives.
    ///
    /// # Errors
    /// `ENODEV` when the device does not exist.
    pub fn join_promiscuous(&self, ifindex: u32) -> io::Result<()> {
        // SAFETY: a C structure for which all zeroes are a value.
        let mut req: libc::packet_mreq = unsafe { core::mem::zeroed() };
        req.mr_ifindex = i32::try_from(ifindex).unwrap_or(-1);
        req.mr_type = libc::PACKET_MR_PROMISC as u16;
        sock::set(self.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &req)
    }
    /// Joins fanout group `group`: its sockets share the device's packets by flow hash.
    ///
    /// # Errors
    /// `EINVAL` when the socket is not bound or the group has another type.
    pub fn join_fanout(&self, group: u16) -> io::Result<()> {
        // PACKET_FANOUT_HASH | PACKET_FANOUT_FLAG_DEFRAG is not used: defragmenting would change the packets.
        let arg = i32::from(group) | (libc::PACKET_FANOUT_HASH as i32) << 16;
        sock::set(self.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, &arg)
    }
    /// Requests `bytes` of receive buffer; beyond `net.core.rmem_max` only with `CAP_NET_ADMIN`.
    pub fn set_rcvbuf(&self, bytes: usize) {
        let forced = sockopt::set_socket_recv_buffer_size_force(self, bytes);
        if forced.is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(self, bytes);
        }
    }
    /// Requests `bytes` of send buffer; beyond `net.core.wmem_max` only with `CAP_NET_ADMIN`.
    pub fn set_sndbuf(&self, bytes: usize) {
        let forced = sockopt::set_socket_send_buffer_size_force(self, bytes);
        if forced.is_err() {
            let _ = sockopt::set_socket_send_buffer_size(self, bytes);
        }
    }
    /// The priority of packets sent from now on (`SO_PRIORITY`): the device's queueing discipline goes by it.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_ADMIN`, for those beyond 6.
    pub fn set_priority(&self, priority: u32) -> io::Result<()> {
        sock::set(self.as_fd(), libc::SOL_SOCKET, libc::SO_PRIORITY, &priority)
    }
    /// Forgets a pending error. A device that goes down leaves `ENETDOWN` on its sockets, which keeps them
    /// "readable" until it is read.
    pub fn clear_error(&self) {
        let _ = sockopt::socket_error(self);
    }
    /// Packets that found the receive buffer full since the last call.
    ///
    /// # Errors
    /// The errors of getsockopt(2); in practice there are none.
    pub fn take_drops(&self) -> io::Result<u64> {
        let mut st = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: `st` is writable for `len` bytes.
        cvt(unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut st).cast(),
                &raw mut len,
            )
        })?;
        Ok(u64::from(st.tp_drops))
    }
}

impl Drop for PacketSocket {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and nothing of `self` is used afterwards.
        aside::close(unsafe { ManuallyDrop::take(&mut self.fd) });
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
