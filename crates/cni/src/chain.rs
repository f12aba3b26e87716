//! ADD after another plug-in that gave the pod a veth: it is exchanged for a device of this switch.
//!
//! The device in the pod keeps its name, address, MTU, IP addresses, routes and neighbours. If the veth's
//! other end is a port of a bridge, its Interface becomes one of another type in its place, by one
//! transaction. `external_ids`, VLANs, rates, and the port's number stay, so a controller has nothing to do.
//! If it is not (a Linux bridge has it), a port is added to the bridge that the configuration names.
//!
//! A name cannot be taken by two devices, so the veth goes before its successor comes. If the successor does
//! not come, a veth with the same names and settings takes its place again.

use crate::add::marks;
use crate::args::Args;
use crate::conf::{Conf, kind_of, with};
use crate::db::{Conversion, Db, NewPort, PodInterface};
use crate::error::{Code, Failure, fail, kernel};
use crate::kind::Kind;
use crate::pod::Pod;
use crate::result::{Made, exchanged, previous};
use crate::{delegate, host};
use heddle_sys::NetConfig;
use heddle_sys::net_config::{Change, Device, Settings};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

/// Exchanges the veth; returns the earlier result, with the new device in it.
pub(crate) fn add(args: &Args, conf: &Conf) -> Result<(Option<Value>, String), Failure> {
    if matches!(conf.kind, Kind::VhostUser | Kind::Device) {
        return fail(
            Code::Conf,
            format!("kind {} cannot replace a veth", conf.kind.name()),
        );
    }
    conf.kind.is_possible()?;
    let Some(inner) = conf.wrapped() else {
        return after(args, conf, previous(&conf.raw)?);
    };
    let Some(first) = kind_of(&inner).map(str::to_owned) else {
        return fail(Code::Conf, "delegate.type is missing");
    };
    let passed_on = with(inner, "prevResult", conf.raw.get("prevResult").cloned());
    let done = match delegate::run(args, conf, &first, "ADD", &passed_on)? {
        Value::Object(result) => after(args, conf, result),
        _ => fail(Code::Delegate, format!("plug-in {first} has no result")),
    };
    if done.is_err() {
        // Remove everything that the other plug-in made. A failure of its DEL does not matter now.
        let _ = delegate::run(args, conf, &first, "DEL", &passed_on);
    }
    done
}

fn after(args: &Args, conf: &Conf, result: Map<String, Value>) -> Result<(Option<Value>, String), Failure> {
    let pod = Pod::open(&args.netns)?;
    let Some(device) = pod.device(&args.ifname)? else {
        return fail(
            Code::Device,
            format!("the container has no device {} to be exchanged", args.ifname),
        );
    };
    // The database is not needed for a kind that leaves everything as it is.
    if conf.kind == Kind::Veth {
        return Ok((Some(Value::Object(result)), "kind veth, as it was".to_owned()));
    }
    let mut db = Db::open(conf)?;
    let host = NetConfig::new(None).map_err(|e| kernel("netlink", &e))?;
    let other = match device.kind.as_str() {
        "veth" => Some(other_end(&host, &device)?),
        _ => None,
    };
    let row = match &other {
        Some(other) => db.named(&other.name)?,
        None => None,
    };
    // The switch does not forward a veth that is none of its ports.
    let choice = conf.kind.choose(|| match &row {
        Some(row) => db.offloads_interface(row),
        None => Ok(false),
    })?;
    let kind = choice.kind;
    let mut made = Made {
        port: "",
        ifname: &args.ifname,
        netns: &args.netns,
        mac: device.mac,
        mtu_bytes: Some(device.mtu_bytes),
        socket: None,
        pci: None,
        choice: choice.clone(),
    };
    let Some(other) = other else {
        // A repetition after an attempt that succeeded.
        return match db.of(args)?.first() {
            Some(own) => {
                made.port = &own.name;
                Ok((
                    Some(exchanged(result, "", &made)),
                    "was exchanged before".to_owned(),
                ))
            }
            None => fail(
                Code::Device,
                format!("device {} of the container is no veth", args.ifname),
            ),
        };
    };
    if kind == Kind::Veth {
        made.port = row.as_ref().map_or("", |_| &other.name);
        let text = format!("{choice}; the veth {} stays", other.name);
        return Ok((Some(exchanged(result, "", &made)), text));
    }
    if row.is_none() && !db.has_bridge(conf.bridge()?)? {
        return crate::db::no_bridge(conf.bridge()?);
    }
    let settings = pod
        .net
        .settings(device.ifindex)
        .map_err(|e| kernel(&args.ifname, &e))?;
    let port = if row.is_some() {
        other.name.clone()
    } else {
        args.port_name()
    };
    let mut exchange = Exchange {
        args,
        conf,
        kind,
        inode: pod.id()?,
        pod,
        host,
        db,
        device: &device,
        other,
        row,
        settings,
        port: &port,
    };
    if let Err(e) = exchange.run() {
        exchange.put_back();
        return Err(e);
    }
    made.port = &port;
    let result = exchanged(result, &exchange.other.name, &made);
    Ok((
        Some(result),
        format!("{choice}, in place of the veth {}", exchange.other.name),
    ))
}

/// The veth's end in this namespace.
fn other_end(host: &NetConfig, device: &Device) -> Result<Device, Failure> {
    let all = host.devices().map_err(|e| kernel("netlink", &e))?;
    // Device numbers are unique in a namespace only, so both ends must name each other.
    let is_it =
        |d: &Device| Some(d.ifindex) == device.peer && d.peer == Some(device.ifindex) && d.kind == "veth";
    match all.into_iter().find(is_it) {
        Some(other) => Ok(other),
        None => fail(
            Code::Device,
            format!(
                "the other end of the veth {} is not in the host's namespace",
                device.name
            ),
        ),
    }
}

struct Exchange<'a> {
    args: &'a Args,
    conf: &'a Conf,
    kind: Kind,
    pod: Pod,
    host: NetConfig,
    db: Db,
    /// The number of the pod's namespace.
    inode: u64,
    /// The veth's end in the pod.
    device: &'a Device,
    /// The veth's end on the host.
    other: Device,
    /// The Interface of `other`, if it is a port.
    row: Option<PodInterface>,
    settings: Settings,
    /// Name of the new port.
    port: &'a str,
}

impl Exchange<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let gone = self.pod.net.remove(self.device.ifindex);
        gone.map_err(|e| kernel(&format!("removing the veth {}", self.device.name), &e))?;
        let mac = self.device.mac.unwrap_or_default();
        match &self.row {
            Some(row) => {
                let to = Conversion {
                    kind: self.kind.interface_type(),
                    mac: Some(mac),
                    mtu_bytes: Some(self.device.mtu_bytes),
                    ofport: row.ofport_request.or(row.ofport.filter(|n| *n > 0)),
                    ids: self.marks(),
                    forget: false,
                };
                self.db.convert(row, &to)?;
            }
            None => self.db.add(&NewPort {
                name: self.port,
                bridge: self.conf.bridge()?,
                kind: self.kind,
                mac,
                mtu_bytes: Some(self.device.mtu_bytes),
                vlan: &self.conf.vlan,
                bandwidth: self.conf.bandwidth,
                socket: None,
                options: &self.conf.own.options,
                ids: self.marks(),
                birthplace: None,
            })?,
        }
        self.wait_for_port()?;
        let new = host::switch_device(&self.host, self.conf, self.kind, self.port)?;
        let new = self.pod.take(&self.host, &new, &self.like_the_old())?;
        self.give_settings(&new)
    }

    fn marks(&self) -> std::collections::BTreeMap<String, String> {
        marks(self.args, self.conf, self.kind, self.inode)
    }

    /// Waits for the switch. It may still report the veth's disappearance as the error of the converted row,
    /// so a refusal counts only if it stays.
    fn wait_for_port(&mut self) -> Result<(), Failure> {
        let end = Instant::now() + Duration::from_secs(3);
        loop {
            let asked = self.db.request_port(self.port)?;
            match self.db.wait_for_port(self.port, asked) {
                Ok(_) => return Ok(()),
                Err(e) if e.code == Code::Refused as u64 && self.row.is_some() && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Name, address and MTU of the device that is exchanged.
    fn like_the_old(&self) -> Change<'_> {
        Change {
            name: Some(&self.device.name),
            mac: self.device.mac,
            mtu_bytes: Some(self.device.mtu_bytes),
            ..Change::default()
        }
    }

    fn give_settings(&self, new: &Device) -> Result<(), Failure> {
        if self.device.up {
            self.pod.up(new)?;
        }
        let given = self
            .pod
            .net
            .restore(new.ifindex, self.device.ifindex, &self.settings);
        given.map_err(|e| kernel(&format!("addresses and routes of {}", new.name), &e))
    }

    /// Restores the veth and its row as far as possible.
    fn put_back(&mut self) {
        // Open a new connection: one that failed once is of no use.
        if let Ok(mut db) = Db::open(self.conf) {
            let _ = match (&self.row, db.named(self.port)) {
                (Some(old), Ok(Some(now))) if now.kind != old.kind => db.convert(
                    &now,
                    &Conversion {
                        kind: &old.kind,
                        mac: None,
                        mtu_bytes: None,
                        ofport: old.ofport_request.or(old.ofport.filter(|n| *n > 0)),
                        ids: self.marks(),
                        forget: true,
                    },
                ),
                (None, Ok(Some(now))) => db.remove(&[now]),
                _ => Ok(()),
            };
        }
        if self.kind == Kind::Internal {
            // The switch removes its device when it sees the row; the name is needed now.
            host::remove_device(&self.other.name);
        }
        if let Ok(Some(half)) = self.pod.device(&self.device.name) {
            let _ = self.pod.net.remove(half.ifindex);
        }
        let peer = Change {
            namespace: Some(&self.pod.ns),
            ..self.like_the_old()
        };
        let made = self
            .host
            .add_veth(&self.other.name, Some(self.other.mtu_bytes), &peer);
        if let (Ok(()), Ok(Some(other))) = (made, self.host.device(&self.other.name)) {
            let as_it_was = Change {
                mac: self.other.mac,
                up: Some(self.other.up),
                master: self.other.master,
                ..Change::default()
            };
            let _ = self.host.change(other.ifindex, &as_it_was);
        }
        if let Ok(Some(again)) = self.pod.device(&self.device.name) {
            let _ = self.give_settings(&again);
        }
    }
}
