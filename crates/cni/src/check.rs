//! CHECK: compares the pod with the result of its ADD.

use crate::args::Args;
use crate::conf::{Conf, mac_text};
use crate::db::{Db, KIND};
use crate::device::is_passed;
use crate::error::{Code, Failure, fail, kernel};
use crate::kind::Kind;
use crate::pod::Pod;
use crate::result::{Addresses, previous};
use crate::{db, delegate};
use serde_json::Value;

/// Compares the pod, the database and the switch with the result of its ADD.
pub(crate) fn check(args: &Args, conf: &Conf) -> Result<(), Failure> {
    let result = previous(&conf.raw)?;
    let pod = Pod::open(&args.netns)?;
    if conf.is_chained() && stays(args, conf, &pod)? {
        // The port is the other plug-in's.
        return device(args, conf, &pod, &Value::Object(result));
    }
    let mut db = Db::open(conf)?;
    let found = db.of(args)?;
    let Some(interface) = found.first() else {
        return fail(
            Code::Differs,
            format!("the database has no port for {} of this container", args.ifname),
        );
    };
    let name = &interface.name;
    if let Some(error) = &interface.error {
        return fail(
            Code::Differs,
            format!("the switch reports for port {name}: {error}"),
        );
    }
    if interface.ofport.is_none_or(|n| n <= 0) {
        return fail(Code::Differs, format!("the switch has no port {name}"));
    }
    if let Some(bridge) = &conf.own.bridge
        && !db.has_bridge(bridge)?
    {
        return db::no_bridge(bridge);
    }
    if interface.id(KIND) != "vhost-user" && !is_passed(interface) {
        device(args, conf, &pod, &Value::Object(result))?;
    }
    if let Some(ipam) = conf.ipam()? {
        delegate::run(args, conf, ipam, "CHECK", &Value::Object(conf.raw.clone()))?;
    }
    // A wrapped plug-in would look for the device that has been exchanged.
    Ok(())
}

/// Whether ADD left another plug-in's veth in its place. Runtimes do not keep this plug-in's own part of the
/// result, but a device that took a veth's place is none.
fn stays(args: &Args, conf: &Conf, pod: &Pod) -> Result<bool, Failure> {
    Ok(match conf.kind {
        Kind::Veth => true,
        Kind::Auto => pod
            .device(&args.ifname)?
            .is_some_and(|device| device.kind == "veth"),
        _ => false,
    })
}

/// Checks that the device has the MAC and IP addresses of the result.
fn device(args: &Args, conf: &Conf, pod: &Pod, result: &Value) -> Result<(), Failure> {
    let ifname = &args.ifname;
    let Some(device) = pod.device(ifname)? else {
        return fail(Code::Differs, format!("the container has no device {ifname}"));
    };
    if !device.up {
        return fail(Code::Differs, format!("device {ifname} is down"));
    }
    let interfaces = result.get("interfaces").and_then(Value::as_array);
    let is_it = |i: &&Value| {
        let text = |key: &str| i.get(key).and_then(Value::as_str).unwrap_or_default();
        text("name") == ifname && !text("sandbox").is_empty()
    };
    let wanted = interfaces.into_iter().flatten().find(is_it);
    let mac = device.mac.map(mac_text).unwrap_or_default();
    if let Some(wanted) = wanted.and_then(|i| i.get("mac")).and_then(Value::as_str)
        && !wanted.eq_ignore_ascii_case(&mac)
    {
        return fail(
            Code::Differs,
            format!("device {ifname} has the MAC address {mac}, not {wanted}"),
        );
    }
    if let Some(mtu) = conf.own.mtu.filter(|mtu| *mtu != device.mtu_bytes) {
        return fail(
            Code::Differs,
            format!("device {ifname} has the MTU {}, not {mtu}", device.mtu_bytes),
        );
    }
    let has = pod
        .net
        .settings(device.ifindex)
        .map_err(|e| kernel(ifname, &e))?
        .addresses();
    for ip in Addresses::read(result)?.ips {
        if !has.contains(&(ip.address, ip.prefix_len)) {
            return fail(
                Code::Differs,
                format!(
                    "device {ifname} has lost the address {}/{}",
                    ip.address, ip.prefix_len
                ),
            );
        }
    }
    Ok(())
}
