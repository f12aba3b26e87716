//! The programs at the ingress of the kernel's tunnel devices (`bpf/tunnels.bpf.c`).
//!
//! The first one drops packets that no filter of this switch has passed to the host's stack. The last one
//! gets packets without a filter. It restores their outer headers, and hands them to a miss device. So
//! workers see them as they came in by the underlay's device.
//!
//! **Origin.** A filter that passes outer packets writes an origin to `skb->priority`. The origin names the
//! process's era and the flow of the outer packets. The map has what the program cannot read from the packet.

use super::cookie::Cookie;
use crate::filter::{self, Hook, why};
use crate::{Handle, Why};
use aya::Ebpf;
use aya::maps::{HashMap, MapData};
use aya::programs::SchedClassifier;
use std::fmt;
use std::io;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tunnels.bpf.o"));

/// Priorities of the first and the last program. Filters of flows are between them.
const FIRST_PRIORITY: u16 = 0x0fff;
const LAST_PRIORITY: u16 = super::miss_filter::MISS_PRIORITY;
const PROGRAMS: [(&str, u16); 2] = [
    ("hd_tunnel_in", FIRST_PRIORITY),
    ("hd_tunnel_miss", LAST_PRIORITY),
];
/// Minimum Linux: `bpf_skb_get_tunnel_key` has the local address and the flags of a tunnel.
const KERNEL: (u32, u32) = (6, 1);

/// Bits of an origin: four that mark one, eight of the era, and the handle of the flow.
const ORIGIN: u32 = 0xd << 28;
const ERA_SHIFT: u32 = 20;
const HANDLES: u32 = 1 << ERA_SHIFT;

/// The origin of the outer packets of a flow; `None`: the handle is too large.
pub(super) fn origin_of(cookie: Cookie, at: Handle) -> Option<u32> {
    (at < HANDLES).then_some(ORIGIN | (cookie.era & 0xff) << ERA_SHIFT | at)
}

/// The fields of outer packets that are lost when the kernel decapsulates them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Source {
    /// Interface index of the miss device of the underlay's device.
    pub(super) miss: u32,
    pub(super) eth_dst: [u8; 6],
    pub(super) eth_src: [u8; 6],
    /// UDP destination port.
    pub(super) port: u16,
    /// Geneve; VXLAN else.
    pub(super) is_geneve: bool,
}

/// `struct source` of the program.
type SourceBytes = [u8; 20];

impl Source {
    fn bytes(self) -> SourceBytes {
        let mut bytes = [0; size_of::<SourceBytes>()];
        bytes[..4].copy_from_slice(&self.miss.to_ne_bytes());
        bytes[4..10].copy_from_slice(&self.eth_dst);
        bytes[10..16].copy_from_slice(&self.eth_src);
        bytes[16..18].copy_from_slice(&self.port.to_be_bytes());
        bytes[18..].copy_from_slice(&u16::from(self.is_geneve).to_ne_bytes());
        bytes
    }
}

/// The programs of this process, loaded.
pub(super) struct TunnelPrograms {
    ebpf: Ebpf,
    sources: HashMap<MapData, u32, SourceBytes>,
}

impl fmt::Debug for TunnelPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TunnelPrograms").finish_non_exhaustive()
    }
}

impl TunnelPrograms {
    /// Loads the programs.
    ///
    /// # Errors
    /// The reason why packets out of tunnels stay with workers.
    pub(super) fn load() -> Result<Self, Why> {
        if crate::kernel::version() < KERNEL {
            return Err(Why::Tunnel(
                "ends here, and filters out of tunnels need Linux 6.1",
            ));
        }
        let loaded = load();
        loaded.map_err(|text| {
            // The verifier's log is long.
            let line = text.lines().next().unwrap_or_default();
            log::info!(target: "netdev_offload", "tc: workers take packets out of tunnels, since eBPF programs cannot be loaded: {line}");
            Why::Tunnel("ends here, and the eBPF programs that filters out of tunnels need cannot be loaded")
        })
    }
    fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, String> {
        let program = ebpf.program_mut(name).ok_or("a program is missing")?;
        program
            .try_into()
            .map_err(|e: aya::programs::ProgramError| why(&e))
    }
    /// Attaches the first program to a device, in the place of an earlier process's program.
    pub(super) fn attach_first(&mut self, device: &str) -> io::Result<()> {
        self.attach(device, PROGRAMS[0])
    }
    /// The same for the last program.
    pub(super) fn attach_last(&mut self, device: &str) -> io::Result<()> {
        self.attach(device, PROGRAMS[1])
    }
    fn attach(&mut self, device: &str, (name, priority): (&str, u16)) -> io::Result<()> {
        let program = Self::program(&mut self.ebpf, name).map_err(io::Error::other)?;
        filter::attach(program, device, Hook::Ingress, priority)
    }
    /// Sets the fields of packets of an origin.
    pub(super) fn set(&mut self, origin: u32, source: Source) -> Result<(), Why> {
        self.sources
            .insert(origin, source.bytes(), 0)
            .map_err(|_| Why::Full)
    }
    /// Forgets an origin: packets of it that no filter takes are dropped from now on.
    pub(super) fn forget(&mut self, origin: u32) {
        let _ = self.sources.remove(&origin);
    }
}

fn load() -> Result<TunnelPrograms, String> {
    if OBJECT.is_empty() {
        return Err("this program was built without clang, which compiles the kernel's part".into());
    }
    let mut ebpf = aya::EbpfLoader::new().load(OBJECT).map_err(|e| why(&e))?;
    for (name, _) in PROGRAMS {
        TunnelPrograms::program(&mut ebpf, name)?
            .load()
            .map_err(|e| why(&e))?;
    }
    let map = ebpf.take_map("hd_sources").ok_or("the map is missing")?;
    let sources = HashMap::try_from(map).map_err(|e| why(&e))?;
    Ok(TunnelPrograms { ebpf, sources })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_marked_and_differ() {
        let cookie = |era| Cookie { owner: 7, era };
        let one = origin_of(cookie(1), 5).unwrap();
        assert_eq!(one >> 28, 0xd);
        assert_ne!(Some(one), origin_of(cookie(2), 5));
        assert_ne!(Some(one), origin_of(cookie(1), 6));
        // Only the low bits of the era have room.
        assert_eq!(origin_of(cookie(0x0fff_ff01), 5), Some(one));
        assert_eq!(origin_of(cookie(1), 1 << 20), None);
    }

    #[test]
    fn a_source_has_the_programs_layout() {
        let source = Source {
            miss: 0x0102_0304,
            eth_dst: [2, 0, 0, 0, 0, 1],
            eth_src: [2, 0, 0, 0, 0, 2],
            port: 4789,
            is_geneve: true,
        };
        let bytes = source.bytes();
        assert_eq!(bytes[..4], 0x0102_0304_u32.to_ne_bytes());
        assert_eq!(bytes[4..16], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        assert_eq!(
            (&bytes[16..18], bytes[18..].iter().sum::<u8>()),
            (&[0x12, 0xb5][..], 1)
        );
    }
}
