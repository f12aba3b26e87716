//! Operating-system interfaces: tun/tap, packet sockets, eventfd, epoll, links, netlink, vDPA devices,
//! affinity, NUMA, clocks.
//!
//! Problem: a userspace switch lives on a handful of Linux system calls that have no safe binding. Each
//! module wraps one of them so that every caller stays in safe Rust.
//!
//! Invariants: descriptors are owned ([`std::os::fd::OwnedFd`]) and close-on-exec. Buffers given to the
//! kernel are borrowed for the length of the call. No function panics on data from the kernel or another
//! process.
//!
//! Costs: modules used by the forwarding path ([`tap`], [`packet_socket`], [`batch`], [`event`], [`clock`])
//! neither allocate nor lock per call; all others may.

#![allow(clippy::cast_possible_truncation)] // the kernel fixes widths, the compiler sizes

pub mod aside;
pub mod awake;
pub mod batch;
mod cbpf;
pub mod clock;
pub mod cpu;
pub mod cpu_group;
pub mod device_counters;
pub mod device_programs;
pub mod event;
pub mod files;
pub mod foreign;
pub mod host_net;
pub mod ingress;
pub mod iov;
pub mod left_sockets;
pub mod link;
pub mod link_events;
mod link_features;
pub mod locked;
pub mod memory;
pub mod mmap;
pub mod names;
pub mod net_config;
pub mod netfilter;
pub mod netlink;
pub mod netns;
pub mod outer_filter;
pub mod packet_ring;
pub mod packet_socket;
mod patience;
pub mod priority;
pub mod process;
pub mod psample;
pub mod qdisc;
pub mod route_batch;
pub mod seqpacket;
pub mod shared_words;
pub mod sigbus;
pub mod signal;
mod sock;
pub mod steering;
pub mod tap;
pub mod tap_links;
pub mod tcp;
pub mod terminal;
pub mod too_big_socket;
pub mod tunnel_links;
pub mod users;
pub mod vdpa;
pub mod vduse;
pub mod veth;
pub mod wake;
mod zeroed;

pub use batch::{RecvBatch, SendBatch};
pub use clock::{Tsc, monotonic_ms, monotonic_ns};
pub use device_counters::{DeviceCounters, QueueCounts, device_counters};
pub use event::{Epoll, EventFd};
pub use foreign::Foreign;
pub use host_net::{HostEvents, HostNet};
pub use ingress::Ingress;
pub use iov::Iov;
pub use link::LinkCtl;
pub use link_events::LinkEvents;
pub use mmap::Mapping;
pub use net_config::NetConfig;
pub use netfilter::NetfilterSocket;
pub use outer_filter::{OuterFilter, OuterGroup};
pub use packet_ring::RxRing;
pub use packet_socket::PacketSocket;
pub use tap::{TapOpen, TapQueue};
pub use tap_links::TapLinks;
pub use too_big_socket::TooBigSocket;
pub use wake::WakeSet;
pub use zeroed::{SharedZeroed, Zeroed};

/// The system's text for an error, without Rust's ` (os error N)` behind it, for people.
pub fn errno_text(error: &std::io::Error) -> String {
    let mut text = error.to_string();
    if let Some(at) = text.rfind(" (os error ").filter(|_| text.ends_with(')')) {
        text.truncate(at);
    }
    text
}

/// The C convention as a `Result`: -1 means "see errno".
fn cvt(ret: libc::c_int) -> std::io::Result<libc::c_int> {
    if ret < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

/// [`cvt`] for calls that return a length.
fn cvt_len(ret: libc::ssize_t) -> std::io::Result<usize> {
    usize::try_from(ret).map_err(|_| std::io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::errno_text;
    use std::io::{Error, ErrorKind};

    #[test]
    fn numbers_are_not_for_people() {
        let text = |e: Error| errno_text(&e);
        assert_eq!(
            text(Error::from_raw_os_error(libc::ENOENT)),
            "No such file or directory"
        );
        assert_eq!(
            text(Error::other("a: Broken pipe (os error 32)")),
            "a: Broken pipe"
        );
        assert_eq!(
            text(Error::other("it is (os error 1) here")),
            "it is (os error 1) here"
        );
        assert_eq!(text(Error::from(ErrorKind::TimedOut)), "timed out");
    }
}
