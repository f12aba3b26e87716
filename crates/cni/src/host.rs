//! Devices of the host's network namespace, where the switch is.

use crate::conf::Conf;
use crate::error::{Code, Failure, fail, kernel};
use crate::kind::Kind;
use heddle_sys::NetConfig;
use heddle_sys::net_config::Device;
use heddle_sys::qdisc::{Qdisc, Qdiscs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Fails if the kernel lacks the queueing discipline by which the switch limits the packets to the pod of a
/// veth or a representor. The one that is made here as a test is removed.
pub(crate) fn can_limit(host: &NetConfig, name: &str, kind: Kind) -> Result<(), Failure> {
    let Some(device) = host.device(name).map_err(|e| kernel(name, &e))? else {
        return fail(Code::Device, format!("the device {name} is gone"));
    };
    let made = Qdiscs::new().and_then(|all| {
        all.make(device.ifindex, &Qdisc::Htb)?;
        all.remove(device.ifindex)
    });
    match made {
        Ok(()) => Ok(()),
        Err(e) => fail(
            Code::NoKind,
            format!(
                "bandwidth: the kernel cannot limit kind {} ({}): use kind internal or vduse",
                kind.name(),
                heddle_sys::errno_text(&e)
            ),
        ),
    }
}

/// Removes a device of the host's namespace, if it is there.
pub(crate) fn remove_device(name: &str) {
    if let Ok(host) = NetConfig::new(None)
        && let Ok(Some(device)) = host.device(name)
    {
        let _ = host.remove(device.ifindex);
    }
}

/// The device that the switch has made for a port.
pub(crate) fn switch_device(
    host: &NetConfig,
    conf: &Conf,
    kind: Kind,
    port: &str,
) -> Result<Device, Failure> {
    // The netdev of a VDUSE device comes after its port; the kernel makes one at a time.
    let patience = match kind {
        Kind::Vduse => conf.timeout(),
        _ => Duration::from_secs(1),
    };
    let end = Instant::now() + patience;
    loop {
        let name = match kind {
            Kind::Vduse => vduse_device(port).unwrap_or_default(),
            _ => port.to_owned(),
        };
        let device = host
            .device(&name)
            .map_err(|e| kernel(&format!("device {name}"), &e))?;
        match device {
            Some(device) => return Ok(device),
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            None if kind == Kind::Vduse => {
                let hint = format!("ovs-vsctl get interface {port} status error");
                return fail(
                    Code::Device,
                    format!(
                        "no netdev of VDUSE device {port} came within {} s ({hint})",
                        patience.as_secs()
                    ),
                );
            }
            None => {
                return fail(
                    Code::Device,
                    format!("the switch's device for port {port} is not in the plug-in's network namespace"),
                );
            }
        }
    }
}

/// The netdev of a device on the vDPA bus.
fn vduse_device(port: &str) -> Option<String> {
    let children = |dir: &Path| {
        std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
    };
    let device = PathBuf::from(format!("/sys/bus/vdpa/devices/{port}"));
    let is_virtio = |p: &PathBuf| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("virtio"))
    };
    let virtio = children(&device).find(is_virtio)?;
    let netdev = children(&virtio.join("net")).next()?;
    Some(netdev.file_name()?.to_string_lossy().into_owned())
}
