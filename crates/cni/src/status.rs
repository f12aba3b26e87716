//! STATUS: whether an ADD would work now. GC and `sweep`: remove rows and devices of pods that are gone.

use crate::args::Args;
use crate::conf::{Conf, kind_of, with};
use crate::db::{CONTAINER, Db, IFNAME, NETNS, NETNS_INODE, PodInterface};
use crate::del::remains;
use crate::delegate;
use crate::error::{Code, Failure, fail};
use crate::pod::Pod;
use serde_json::Value;
use std::time::Duration;

/// Fails if an ADD could not succeed now.
pub(crate) fn status(args: &Args, conf: &Conf) -> Result<(), Failure> {
    let unavailable = |e: Failure| Failure::new(Code::Unavailable, e.msg);
    conf.kind.is_possible().map_err(unavailable)?;
    let mut db = Db::open(conf).map_err(unavailable)?;
    if let Some(bridge) = &conf.own.bridge
        && !db.has_bridge(bridge).map_err(unavailable)?
    {
        return fail(Code::Unavailable, format!("there is no bridge {bridge}"));
    }
    if !db.round_trip().map_err(unavailable)? {
        return fail(
            Code::Unavailable,
            "the switch does not follow the database; is heddled running?",
        );
    }
    for kind in others(conf)? {
        delegate::run(args, conf, &kind.0, "STATUS", &kind.1)?;
    }
    Ok(())
}

/// Removes ports of the network's containers that are not listed.
pub(crate) fn gc(args: &Args, conf: &Conf) -> Result<String, Failure> {
    let listed = match conf.raw.get("cni.dev/valid-attachments") {
        Some(Value::Array(list)) => list,
        _ => return fail(Code::Conf, "cni.dev/valid-attachments is not a list"),
    };
    let is_listed = |i: &PodInterface| {
        listed.iter().any(|a| {
            let is = |key: &str, id: &str| a.get(key).and_then(Value::as_str) == Some(i.id(id));
            is("containerID", CONTAINER) && is("ifname", IFNAME)
        })
    };
    let mut db = Db::open(conf)?;
    let gone: Vec<PodInterface> = db
        .of_network(&conf.name)?
        .into_iter()
        .filter(|i| !is_listed(i))
        .collect();
    let names = remove(&mut db, &gone, conf.socket_dir())?;
    if let Some(ipam) = conf.ipam()? {
        // Not all address plug-ins know GC.
        for interface in &gone {
            let of = Args {
                container: interface.id(CONTAINER).to_owned(),
                ifname: interface.id(IFNAME).to_owned(),
                ..args.clone()
            };
            delegate::run(
                &of,
                conf,
                ipam,
                "DEL",
                &with(conf.raw.clone(), "prevResult", None),
            )?;
        }
    }
    for kind in others(conf)? {
        delegate::run(args, conf, &kind.0, "GC", &kind.1)?;
    }
    Ok(format!("removed {} ports {}", names.len(), names.join(" ")))
}

/// Removes the ports of pods whose namespaces are gone; returns their names.
pub(crate) fn sweep(database: &str) -> Result<Vec<String>, Failure> {
    let mut db = Db::at(database, Duration::from_secs(30))?;
    let is_gone = |i: &PodInterface| {
        let (path, inode) = (i.id(NETNS), i.id(NETNS_INODE).parse().ok());
        !path.is_empty() && !Pod::exists(path, inode)
    };
    let gone: Vec<PodInterface> = db.all()?.into_iter().filter(is_gone).collect();
    remove(&mut db, &gone, "/var/run/heddle/vhost")
}

fn remove(db: &mut Db, gone: &[PodInterface], socket_dir: &str) -> Result<Vec<String>, Failure> {
    db.remove(gone)?;
    for interface in gone {
        remains(interface, socket_dir);
    }
    Ok(gone.iter().map(|i| i.name.clone()).collect())
}

/// The plug-ins that this one runs, with the configuration of each. Only the newest version knows these
/// commands.
fn others(conf: &Conf) -> Result<Vec<(String, Value)>, Failure> {
    let mut all = Vec::new();
    if conf.version != "1.1.0" {
        return Ok(all);
    }
    if let Some(ipam) = conf.ipam()? {
        all.push((ipam.to_owned(), with(conf.raw.clone(), "prevResult", None)));
    }
    if let Some(inner) = conf.wrapped() {
        let kind = kind_of(&inner).unwrap_or_default().to_owned();
        all.push((kind, Value::Object(inner)));
    }
    Ok(all)
}
