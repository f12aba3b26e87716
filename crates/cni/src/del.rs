//! DEL: removes everything that a pod had. A pod without rows has nothing to remove.

use crate::args::Args;
use crate::conf::{Conf, kind_of, with};
use crate::db::{Db, KIND, PodInterface};
use crate::error::Failure;
use crate::names;
use crate::{delegate, device, host};
use heddle_sys::names::is_device;
use serde_json::Value;

/// Removes the pod's port and releases its addresses. Returns a text for the log.
pub(crate) fn del(args: &Args, conf: &Conf) -> Result<String, Failure> {
    let mut db = Db::open(conf)?;
    let found = db.of(args)?;
    take_away(args, conf, &mut db, &found)?;
    if let Some(inner) = conf.wrapped() {
        let kind = kind_of(&inner).unwrap_or_default().to_owned();
        delegate::run(
            args,
            conf,
            &kind,
            "DEL",
            &with(inner, "prevResult", conf.raw.get("prevResult").cloned()),
        )?;
    }
    let names: Vec<&str> = found.iter().map(|i| i.name.as_str()).collect();
    Ok(if names.is_empty() {
        "nothing was there".to_owned()
    } else {
        format!("removed {}", names.join(" "))
    })
}

/// Removes Interfaces of a container's device, and releases its addresses. The port goes first, or another
/// pod could get the address while this one still uses it.
pub(crate) fn take_away(
    args: &Args,
    conf: &Conf,
    db: &mut Db,
    found: &[PodInterface],
) -> Result<(), Failure> {
    db.remove(found)?;
    for interface in found {
        remains(interface, conf.socket_dir());
    }
    // The address plug-in is called in any case: a failed ADD may have left addresses only.
    if let Some(ipam) = conf.ipam()? {
        delegate::run(args, conf, ipam, "DEL", &Value::Object(conf.raw.clone()))?;
    }
    // Devices and directories without a row, as after a failed ADD.
    if found.is_empty() {
        host::remove_device(&args.port_name());
        names::remove_socket_dir(conf.socket_dir(), &args.port_name());
    }
    Ok(())
}

/// Removes the things of a port that the switch does not remove.
pub(crate) fn remains(interface: &PodInterface, socket_dir: &str) {
    if !is_device(&interface.name) {
        return;
    }
    match interface.id(KIND) {
        "veth" => host::remove_device(&interface.name),
        "device" => device::give_back(interface),
        "vhost-user" => names::remove_socket_dir(socket_dir, &interface.name),
        _ => {}
    }
}
