//! Measures the time to put a number of flows into the kernel, and to change and remove them, and the memory
//! that they have there. In a network namespace of its own, as root:
//!
//! ```sh
//! cargo build --release -p heddle-offload --example install
//! ip netns add flows
//! ip netns exec flows sh -c 'ip link add p0 type veth peer name q0; ip link set p0 up; ip link set q0 up
//!     exec target/release/examples/install p0 100000'
//! ip netns del flows
//! ```

use heddle_datapath_api::{Action, FlowId, FlowObserver, ObservedFlow, PortNo};
use heddle_flow::{FlowKey, FlowMask};
use heddle_offload::{Ebpf, Offload, Policy, PortLink};
use heddle_port::Divert;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the BPF maps that this process has open.
fn map_bytes() -> u64 {
    let fds = std::fs::read_dir("/proc/self/fdinfo")
        .into_iter()
        .flatten()
        .flatten();
    let texts = fds.filter_map(|fd| std::fs::read_to_string(fd.path()).ok());
    let of = |text: String| {
        let lines: Vec<&str> = text.lines().collect();
        let value = |name: &str| {
            lines
                .iter()
                .find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        Some((value("map_id:")?, value("memlock:")?))
    };
    let mut maps: Vec<(u64, u64)> = texts.filter_map(of).collect();
    maps.sort_unstable();
    maps.dedup();
    maps.iter().map(|(_, bytes)| bytes).sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, n] = args.as_slice() else {
        return Err("usage: install DEVICE FLOWS".into());
    };
    let n: u32 = n.parse()?;
    let ifindex: u32 = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))?
        .trim()
        .parse()?;
    // A number that no switch has.
    let ebpf = Ebpf::start(0x1257_a110_0000_0000 | u64::from(std::process::id()))?;
    ebpf.divert(name, ifindex)?;
    let mut offload = Offload::new(Box::new(ebpf), None, Policy::default(), || 1);
    offload.set_ports(&[PortLink {
        no: PortNo(1),
        name: name.clone(),
        ifindex,
        mtu: 1500,
        internal: false,
    }]);
    let (mut key, mut mask) = (FlowKey::default(), FlowMask::default());
    (key.in_port, mask.0.in_port, mask.0.recirc_id) = (1, u32::MAX, u32::MAX);
    (key.dl_type, mask.0.dl_type) = (0x0800, u16::MAX);
    (key.nw_proto, mask.0.nw_proto) = (17, u8::MAX);
    (mask.0.nw_src, mask.0.nw_dst, mask.0.tp_src, mask.0.tp_dst) = (u32::MAX, u32::MAX, u16::MAX, u16::MAX);
    let before = map_bytes();
    let mut each = |what: &str, offload: &mut Offload, f: fn(&mut Offload, &ObservedFlow<'_>)| {
        let began = Instant::now();
        for i in 0..n {
            key.nw_src = 0x0a00_0000 | i;
            let actions = Arc::from([Action::Output(PortNo(1))]);
            f(
                offload,
                &ObservedFlow {
                    id: FlowId(i.into()),
                    key: &key,
                    mask: &mask,
                    actions: &actions,
                    credits: &[],
                },
            );
        }
        let took: Duration = began.elapsed();
        println!("{what:9} {n} flows: {:8.1} ms", took.as_secs_f64() * 1e3);
    };
    each("install", &mut offload, |o, f| o.added(f));
    println!(
        "{} flows are there; {:.1} MB of maps, {:.1} MB before",
        offload.stats().1.offloaded,
        map_bytes() as f64 / 1e6,
        before as f64 / 1e6
    );
    each("change", &mut offload, |o, f| {
        o.changed(f);
    });
    let began = Instant::now();
    offload.counters(&mut |_, _| {});
    println!(
        "counters  {n} flows: {:8.1} ms",
        began.elapsed().as_secs_f64() * 1e3
    );
    each("remove", &mut offload, |o, f| {
        o.gone(f.id);
    });
    offload.shutdown();
    Ok(())
}
