//! `heddle-cni`: gives pods a port of a Heddle or Open vSwitch bridge (Container Network Interface 0.3.1 to
//! 1.1.0).
//!
//! **Problem.** A container runtime calls a program for each pod that comes or goes, many at once. It kills a
//! program that takes long, and calls it again for pods that it has seen before.
//!
//! **How.** All state is in the configuration database, in the rows of the pod's own interface
//! (`external_ids`, keys `heddle-cni/...`). Each step is one transaction that checks its preconditions, or
//! one request to the kernel. The plug-in does not talk to the switch: the switch follows the database, and
//! the plug-in waits for its results there.
//!
//! **Invariants.** An ADD that fails leaves no row, no device and no address. A DEL can be repeated, and
//! succeeds for unknown pods. Ports of another container are never removed.

mod add;
mod args;
mod chain;
mod check;
mod conf;
mod db;
mod del;
mod delegate;
mod device;
mod error;
mod host;
mod kind;
mod log;
mod names;
mod pod;
mod result;
mod status;
mod sysfs;

use args::{Args, Command};
use conf::Conf;
use error::{Code, Failure, fail};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::process::ExitCode;

/// The supported versions of the specification.
const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The newest version, for errors if the configuration names no version.
const NEWEST: &str = "1.1.0";
/// Maximum length of a configuration, bytes.
const MAX_CONF_BYTES: u64 = 4 << 20;

const HELP: &str = "heddle-cni: a CNI plug-in. A container runtime runs it, with the variables CNI_COMMAND,
CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_ARGS and CNI_PATH, and a network's configuration at standard input.

    heddle-cni sweep [DATABASE]   remove the ports of pods whose network namespaces are gone, as after a reboot
                                  (DATABASE: unix:/var/run/openvswitch/db.sock)
    heddle-cni --version

docs/cni-settings.md tells what a configuration may hold.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] if std::env::var_os("CNI_COMMAND").is_some() => plug_in(),
        ["sweep"] => sweep(conf::DATABASE),
        ["sweep", database] => sweep(database),
        ["--version" | "-V"] => print_line(
            &format!("heddle-cni {}", env!("CARGO_PKG_VERSION")),
            ExitCode::SUCCESS,
        ),
        ["--help" | "-h"] => print_line(HELP, ExitCode::SUCCESS),
        _ => print_line(HELP, ExitCode::FAILURE),
    }
}

/// Writes a line. A closed output is ignored.
fn print_line(text: &str, code: ExitCode) -> ExitCode {
    let _ = writeln!(std::io::stdout(), "{text}");
    code
}

fn sweep(database: &str) -> ExitCode {
    match status::sweep(database) {
        Ok(names) => {
            let names = if names.is_empty() {
                "nothing".to_owned()
            } else {
                names.join(" ")
            };
            print_line(&format!("removed: {names}"), ExitCode::SUCCESS)
        }
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "heddle-cni: {}", e.msg);
            ExitCode::FAILURE
        }
    }
}

fn plug_in() -> ExitCode {
    let mut version = NEWEST.to_owned();
    match reply(&mut version) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(value)) => print_line(&value.to_string(), ExitCode::SUCCESS),
        Err(e) => print_line(&e.to_json(&version).to_string(), ExitCode::FAILURE),
    }
}

/// Carries out the runtime's command; `version` becomes that of the configuration as soon as it is known.
fn reply(version: &mut String) -> Result<Option<Value>, Failure> {
    let args = Args::from_env()?;
    if args.command == Command::Version {
        // Runtimes send their own version along; an empty input is fine too.
        if let Ok(Value::Object(input)) = serde_json::from_slice(&input()?)
            && let Some(Value::String(theirs)) = input.get("cniVersion")
        {
            version.clone_from(theirs);
        }
        return Ok(Some(
            json!({"cniVersion": version, "supportedVersions": VERSIONS}),
        ));
    }
    let raw = conf::parse(&input()?)?;
    version.clone_from(&conf::version(&raw)?);
    let conf = Conf::new(raw, version)?;
    delegate::refuse_itself(&args, &conf)?;
    let done = run(&args, &conf);
    log::write(&args, &conf, &done);
    done.map(|(value, _)| value)
}

/// The reply to the runtime, and the text for the log.
type Done = Result<(Option<Value>, String), Failure>;

fn run(args: &Args, conf: &Conf) -> Done {
    match args.command {
        Command::Add if conf.is_chained() => chain::add(args, conf),
        Command::Add => add::add(args, conf),
        Command::Del => del::del(args, conf).map(|what| (None, what)),
        Command::Check => check::check(args, conf).map(|()| (None, "as it should be".to_owned())),
        Command::Status => status::status(args, conf).map(|()| (None, "ready".to_owned())),
        Command::Gc => status::gc(args, conf).map(|what| (None, what)),
        Command::Version => fail(Code::Environment, "CNI_COMMAND VERSION takes no configuration"),
    }
}

fn input() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    match std::io::stdin().take(MAX_CONF_BYTES + 1).read_to_end(&mut bytes) {
        Ok(n) if n as u64 > MAX_CONF_BYTES => fail(Code::Decode, "the configuration is longer than 4 MiB"),
        Ok(_) => Ok(bytes),
        Err(e) => fail(Code::Io, format!("standard input: {e}")),
    }
}
