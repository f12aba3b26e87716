//! `heddle migrate`: moves the connections of a port to another node, with its guest.
//!
//! The source switch copies connections, and the target switch adds the copies, in parts. This command makes
//! a file of the parts, and checks the whole file before it sends any part to the target.

mod file;
mod replies;

use crate::console::{self, out};
use crate::request::Target;
use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use heddle_migration::connection::Connections;
use heddle_migration::{File, Header, Writer};
use replies::{Begun, Ended, Imported, Part, Prepared, Status};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// At the target: show which connections of the port this node would take
    Prepare(Prepare),
    /// At the source: write the port's connections to a file
    Export(Export),
    /// At the target: add the connections of a file
    Import(Import),
    /// End the move: the source forgets the connections, the target checks TCP windows as usual again
    Finish(FinishArgs),
    /// Give the move up: the source keeps the connections, the target forgets the imported ones
    Abort(FinishArgs),
    /// List moves that are not finished
    Status(List),
}

/// A port, and additions of the operator.
#[derive(Clone, clap::Args)]
struct Port {
    #[command(flatten)]
    target: Target,
    /// Interface, or its external_ids:iface-id
    port: String,
    /// Also a zone that ports share: connections with the port's addresses. NAME as in
    /// external_ids:ct-zone-NAME of the bridge, or NAME=NUMBER
    #[arg(long = "zone", value_name = "NAME[=NUMBER]")]
    zones: Vec<String>,
    /// An address of the guest, for shared zones
    #[arg(long = "address", value_name = "IP")]
    addresses: Vec<IpAddr>,
}

#[derive(clap::Args)]
pub(crate) struct Prepare {
    #[command(flatten)]
    port: Port,
    /// Count the connections of this file that would not be taken; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    key: file::KeyOption,
    #[command(flatten)]
    age: file::AgeOption,
}

#[derive(clap::Args)]
pub(crate) struct Export {
    #[command(flatten)]
    port: Port,
    /// File to write; - is standard output
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// The guest can still send packets: the target learns TCP windows from the next segment
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    key: file::KeyOption,
}

#[derive(clap::Args)]
pub(crate) struct Import {
    #[command(flatten)]
    port: Port,
    /// File to read; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    key: file::KeyOption,
    #[command(flatten)]
    age: file::AgeOption,
}

#[derive(clap::Args)]
pub(crate) struct FinishArgs {
    #[command(flatten)]
    target: Target,
    /// Interface, or its external_ids:iface-id
    port: String,
}

#[derive(clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,
}

impl Command {
    pub(crate) fn run(&self) -> Result<()> {
        match self {
            Self::Prepare(p) => p.run(),
            Self::Export(e) => e.run(),
            Self::Import(i) => i.run(),
            Self::Finish(e) => e.run("heddle/migrate-finish"),
            Self::Abort(e) => e.run("heddle/migrate-abort"),
            Self::Status(s) => s.run(),
        }
    }
}

fn send<T: DeserializeOwned>(target: &Target, command: &str, params: &[&str]) -> Result<T> {
    let text = target.request(command, params)?;
    serde_json::from_str(&text).with_context(|| format!("the reply to {command} is not valid"))
}

impl Port {
    /// Sends a command about this port: the port, further parameters, and options.
    fn send<T: DeserializeOwned>(&self, command: &str, params: &[&str], live: bool) -> Result<T> {
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        let mut all = vec![self.port.as_str()];
        all.extend(params);
        self.zones
            .iter()
            .for_each(|zone| all.extend(["--zone", zone.as_str()]));
        addresses
            .iter()
            .for_each(|address| all.extend(["--address", address.as_str()]));
        if live {
            all.push("--live");
        }
        send(&self.target, command, &all)
    }
}

/// Appends a line for each zone that was left out.
fn append_left_out(text: &mut String, notes: &[String]) {
    for note in notes {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  left out: {note}");
    }
}

/// The time, seconds since 1970.
fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

fn ms(began: Instant) -> u128 {
    began.elapsed().as_millis()
}

impl Prepare {
    fn run(&self) -> Result<()> {
        let here: Prepared = self.port.send("heddle/migrate-prepare", &[], false)?;
        let mut text = format!(
            "port {}: interface {} of bridge {}",
            here.port, here.interface, here.bridge
        );
        let _ = match here.ofport {
            Some(no) => writeln!(text, ", OpenFlow port {no}"),
            None => writeln!(text, ", which has no device yet"),
        };
        for zone in &here.zones {
            let which = if zone.whole {
                "all connections"
            } else {
                "connections with the port's addresses"
            };
            let _ = write!(text, "  zone {} is {}: {which}", zone.name, zone.zone);
            let _ = match zone.limit {
                0 => writeln!(text),
                limit => writeln!(text, "; {} of {limit} in use", zone.count),
            };
        }
        append_left_out(&mut text, &here.notes);
        if !here.addresses.is_empty() {
            let _ = writeln!(text, "  addresses: {}", here.addresses.join(", "));
        }
        let _ = writeln!(
            text,
            "  {} of {} connections in use; files of format {}",
            here.connections, here.max_connections, here.format
        );
        if let Some(path) = &self.file {
            let bytes = file::read(path, &self.key)?;
            let key = self.key.load()?;
            let file = File::open(&bytes, key.as_ref())?;
            file.check()?;
            self.age.check(file.header.made_s, now_s())?;
            same_port(&file, &here.port)?;
            text += &refusals(&file, &here)?;
        }
        out(&text)?;
        if here.zones.is_empty() {
            bail!("port {}: nothing can move: no zone is the port's", here.port);
        }
        Ok(())
    }
}

fn same_port(file: &File<'_>, here: &str) -> Result<()> {
    if file.header.port != here {
        bail!(
            "the file has the connections of port {}, not of {here}",
            file.header.port
        );
    }
    Ok(())
}

/// Number and reasons of the connections of a file that the switch would not take.
fn refusals(file: &File<'_>, here: &Prepared) -> Result<String> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for chunk in &file.chunks {
        for one in Connections::new(chunk)? {
            let position = usize::from(one?.0);
            let name = file.header.zones.get(position).map_or("", String::as_str);
            if !here.zones.iter().any(|zone| zone.name == name) {
                *counts.entry(name).or_default() += 1;
            }
        }
    }
    let mut text = format!(
        "  file: {} connections of {}\n",
        file.connections, file.header.writer
    );
    for (name, n) in counts {
        let why = match here.other_zones.iter().any(|zone| zone == name) {
            true => "is not the port's here",
            false => "is not known here",
        };
        let _ = writeln!(text, "  not taken: {n} connections, zone {name} {why}");
    }
    Ok(text)
}

impl Export {
    fn run(&self) -> Result<()> {
        let began = Instant::now();
        let key = self.key.load()?;
        // Before the move begins: a file that is refused leaves no move behind.
        let mut output = file::Output::new(&self.file)?;
        let begun: Begun = self.port.send("heddle/migrate-export", &[], self.live)?;
        let header = Header {
            live: self.live,
            made_s: now_s(),
            port: begun.port.clone(),
            writer: concat!("heddle ", env!("CARGO_PKG_VERSION")).to_owned(),
            zones: begun.zones.iter().map(|zone| zone.name.clone()).collect(),
        };
        let (mut writer, first) = Writer::new(&header, key.as_ref())?;
        output.write(&first)?;
        let (id, mut next, mut left_out) = (begun.id.to_string(), Some(0), 0);
        while let Some(at) = next {
            let at = at.to_string();
            let part: Part = send(&self.port.target, "heddle/migrate-export-next", &[&id, &at])?;
            if part.connections > 0 {
                let content = BASE64.decode(&part.content).context("the reply of the switch")?;
                output.write(&writer.connections(&content)?)?;
            }
            left_out += part.left_out;
            next = part.next;
        }
        let n = writer.len();
        output.write(&writer.end())?;
        let bytes = output.end()?;
        let mut text = format!(
            "port {}: {n} connections of {} zones, {bytes} bytes, in {} ms\n",
            begun.port,
            begun.zones.len(),
            ms(began)
        );
        append_left_out(&mut text, &begun.notes);
        if left_out > 0 {
            let _ = writeln!(
                text,
                "  left out: {left_out} connections that have no form in a file"
            );
        }
        // Standard output may be the file.
        eprint!("{text}");
        Ok(())
    }
}

impl Import {
    fn run(&self) -> Result<()> {
        let began = Instant::now();
        let bytes = file::read(&self.file, &self.key)?;
        let key = self.key.load()?;
        let file = File::open(&bytes, key.as_ref())?;
        file.check()?;
        self.age.check(file.header.made_s, now_s())?;
        let here: Prepared = self.port.send("heddle/migrate-prepare", &[], false)?;
        same_port(&file, &here.port)?;
        let zones = serde_json::to_string(&file.header.zones)?;
        let begun: Begun = self
            .port
            .send("heddle/migrate-import", &[&zones], file.header.live)?;
        let id = begun.id.to_string();
        let mut sum = Imported::default();
        for chunk in &file.chunks {
            let content = BASE64.encode(chunk);
            let done: Imported = send(&self.port.target, "heddle/migrate-import-next", &[&id, &content])?;
            sum.add(done);
        }
        let mut text = format!(
            "port {}: {} of {} connections are here now{}, in {} ms\n",
            here.port,
            sum.taken.values().sum::<u64>(),
            file.connections,
            list(&sum.taken),
            ms(began)
        );
        append_left_out(&mut text, &begun.notes);
        for (why, n) in &sum.refused {
            let _ = writeln!(text, "  not taken: {n} connections, {why}");
        }
        for example in &sum.examples {
            let _ = writeln!(text, "    {example}");
        }
        out(&text)?;
        if sum.taken.is_empty() && file.connections > 0 {
            bail!("port {}: no connection of the file was taken", here.port);
        }
        Ok(())
    }
}

/// Counts in parentheses; empty without any.
fn list(counts: &BTreeMap<String, u64>) -> String {
    let each: Vec<String> = counts.iter().map(|(name, n)| format!("{n} {name}")).collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(" ({})", each.join(", ")),
    }
}

impl FinishArgs {
    fn run(&self, command: &str) -> Result<()> {
        let began = Instant::now();
        let done: Ended = send(&self.target, command, &[&self.port])?;
        let port = done.port.as_deref().unwrap_or(&self.port);
        let n = done.connections;
        let abort = command.ends_with("abort");
        let text = match (done.role.as_deref(), abort) {
            (None, _) => format!("port {port}: no move has begun here, nothing is done"),
            (Some("source"), false) => format!("port {port}: {n} connections have ended here"),
            (Some("source"), true) => format!("port {port}: all connections stay here"),
            (_, false) => format!("port {port}: {n} imported connections are like all others now"),
            (_, true) => format!("port {port}: {n} imported connections have ended here"),
        };
        out(&format!("{text}, in {} ms\n", ms(began)))
    }
}

impl List {
    fn run(&self) -> Result<()> {
        let all: Vec<Status> = send(&self.target, "heddle/migrate-status", &[])?;
        if all.is_empty() {
            return out("no move has begun here\n");
        }
        let mut text = String::new();
        for s in all {
            let live = if s.live { ", while the guest ran" } else { "" };
            let _ = writeln!(
                text,
                "port {}: {} since {} s{live}, interface {}{}",
                s.port,
                s.role,
                s.seconds,
                s.interface,
                list(&s.counts)
            );
        }
        console::out(&text)
    }
}
