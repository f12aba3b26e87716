//! The command line of `ovs-vswitchd`, as ovs-vswitchd(8) describes it.
//!
//! One harmless deviation from getopt_long(3): the message about an ambiguous abbreviation differs. As there,
//! an abbreviated long option must be the beginning of one option only.

mod metrics_address;
mod names;
mod text;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use heddle_daemon::dirs;
use heddle_daemon::vlog::SyslogMethod;
use heddle_stream::Settings;

pub(crate) use metrics_address::MetricsAddress;
pub use names::{COMPATIBLE_VERSION, Names};

/// The port and datapath types that type `dummy` replaces (`--enable-dummy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dummy {
    /// They are there, and replace nothing.
    Plain,
    /// They replace type `system`.
    System,
    /// They replace every type.
    Override,
}

/// The place of the control socket (`--unixctl`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlSocket {
    /// `RUNDIR/NAME.PID.ctl`.
    Default,
    /// A file of this name.
    Path(PathBuf),
    /// There is none.
    Disabled,
}

/// Files and settings for encrypted connections, as given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ssl {
    /// `--private-key`.
    pub private_key: Option<PathBuf>,
    /// `--certificate`.
    pub certificate: Option<PathBuf>,
    /// `--ca-cert`; `none` means that peers are not verified.
    pub ca_cert: Option<PathBuf>,
    /// `--bootstrap-ca-cert`.
    pub bootstrap_ca_cert: Option<PathBuf>,
    /// `--peer-ca-cert`.
    pub peer_ca_cert: Option<PathBuf>,
    /// `--ssl-protocols`.
    pub protocols: Option<String>,
    /// `--ssl-ciphers`.
    pub ciphers: Option<String>,
}

impl Ssl {
    /// TLS settings of clients. Ciphers are the library's choice.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            private_key: self.private_key.clone(),
            certificate: self.certificate.clone(),
            ca_cert: self.ca_cert.clone().or_else(|| self.bootstrap_ca_cert.clone()),
            bootstrap: self.bootstrap_ca_cert.is_some(),
            peer_ca_cert: self.peer_ca_cert.clone(),
            protocols: self.protocols.clone(),
        }
    }
}

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The names of this process.
    pub names: Names,
    /// The connection method of the database, such as `unix:/run/openvswitch/db.sock`.
    pub database: String,
    /// The pid file, if one is wanted.
    pub pidfile: Option<PathBuf>,
    /// Whether the pid file has its default name.
    pub pidfile_is_default: bool,
    /// `--overwrite-pidfile`.
    pub overwrite_pidfile: bool,
    /// `--detach`.
    pub detach: bool,
    /// `--monitor`.
    pub monitor: bool,
    /// Not `--no-chdir`.
    pub chdir: bool,
    /// Not `--no-self-confinement`: file names from the database are confined to the usual directories.
    pub self_confinement: bool,
    /// `--user`.
    pub user: Option<String>,
    /// The log file, if one is wanted; absolute.
    pub log_file: Option<PathBuf>,
    /// The specifications of `-v`, in order; `None` is `-v` alone.
    pub verbose: Vec<Option<String>>,
    /// `--syslog-method`.
    pub syslog_method: Option<SyslogMethod>,
    /// `--syslog-target`.
    pub syslog_target: Option<String>,
    /// `--unixctl`.
    pub control_socket: ControlSocket,
    /// `--enable-dummy`.
    pub dummy: Option<Dummy>,
    /// `--disable-system`.
    pub disable_system: bool,
    /// `--disable-system-route`.
    pub disable_system_route: bool,
    /// `--dummy-numa`: the NUMA node of each pretended processor.
    pub dummy_numa: Option<Vec<u32>>,
    /// `--mlockall`.
    pub mlockall: bool,
    /// `--metrics`: the endpoint of metrics.
    pub(crate) metrics: Option<MetricsAddress>,
    /// Keys and certificates.
    pub ssl: Ssl,
}

/// The action that a command line requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// Run the daemon.
    Run(Box<Options>),
    /// Print this and succeed.
    Print(String),
}

fn command() -> Command {
    let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let value = |name: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::Set)
            .allow_hyphen_values(true)
    };
    let optional = |name: &'static str| {
        let arg = Arg::new(name).long(name).action(ArgAction::Append);
        arg.num_args(0..=1).require_equals(true).default_missing_value("")
    };
    Command::new("heddled")
        .no_binary_name(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .infer_long_args(true)
        .args_override_self(true)
        .args([flag("help").short('h'), flag("version").short('V')])
        .args(
            [
                "detach",
                "monitor",
                "no-chdir",
                "no-self-confinement",
                "overwrite-pidfile",
                "mlockall",
            ]
            .map(flag),
        )
        .args(["disable-system", "disable-system-route", "hw-rawio-access"].map(flag))
        .args(["pidfile", "log-file", "verbose", "enable-dummy", "dpdk"].map(optional))
        .args(
            [
                "user",
                "unixctl",
                "dummy-numa",
                "syslog-method",
                "syslog-target",
                "metrics",
            ]
            .map(value),
        )
        .args(
            [
                "peer-ca-cert",
                "bootstrap-ca-cert",
                "ssl-protocols",
                "ssl-ciphers",
            ]
            .map(value),
        )
        .args([
            value("private-key").short('p'),
            value("certificate").short('c'),
            value("ca-cert").short('C'),
        ])
        .arg(Arg::new("database").num_args(0..))
}

/// Parses a command line, `argv[0]` first.
///
/// # Errors
/// The message for standard error, without the program's name.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, String> {
    let mut args = args.into_iter();
    let names = Names::from_argv0(args.next().as_deref());
    let matches = command()
        .try_get_matches_from(expand_verbose(args))
        .map_err(|error| explain(&error))?;
    if matches.get_flag("help") {
        return Ok(Parsed::Print(text::help(&names)));
    }
    if matches.get_flag("version") {
        return Ok(Parsed::Print(names.version_text()));
    }
    options(names, &matches).map(|options| Parsed::Run(Box::new(options)))
}

/// Rewrites `-v` and `-vSPEC` to the long form: clap has no short option whose optional value is attached
/// without an equals sign.
fn expand_verbose(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut only_operands = false;
    args.map(|arg| {
        only_operands |= arg == "--";
        match arg.to_str().and_then(|arg| arg.strip_prefix("-v")) {
            Some(_) if only_operands => arg,
            Some("") => OsString::from("--verbose"),
            Some(spec) => OsString::from(format!("--verbose={spec}")),
            None => arg,
        }
    })
    .collect()
}

/// The message in getopt_long(3)'s words, which scripts and people know.
fn explain(error: &clap::Error) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.split([' ', '=']).next().unwrap_or(text).to_owned(),
        _ => String::new(),
    };
    let option = context(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument => match option.strip_prefix('-') {
            Some(short) if !short.starts_with('-') => format!("invalid option -- '{short}'"),
            _ => format!("unrecognized option '{option}'"),
        },
        ErrorKind::InvalidValue | ErrorKind::WrongNumberOfValues => {
            format!("option '{option}' requires an argument")
        }
        ErrorKind::TooManyValues => format!("option '{option}' doesn't allow an argument"),
        _ => error
            .to_string()
            .lines()
            .next()
            .unwrap_or("bad command line")
            .trim_start_matches("error: ")
            .to_owned(),
    }
}

fn options(names: Names, matches: &ArgMatches) -> Result<Options, String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    // An optional value: None if the option is absent, Some("") if it has no value; the last one counts.
    let optional = |name: &str| {
        matches
            .get_many::<String>(name)
            .and_then(|mut values| values.next_back().cloned())
    };
    let path = |name: &str| text(name).map(PathBuf::from);

    if optional("dpdk").is_some() {
        return Err("Using --dpdk to configure DPDK is not supported.".into());
    }
    let mut operands = matches.get_many::<String>("database").unwrap_or_default();
    let database = operands.next().cloned();
    if operands.next().is_some() {
        return Err("at most one non-option argument accepted; use --help for usage".into());
    }

    let rundir = dirs::rundir();
    let pidfile = optional("pidfile");
    let log_file = match optional("log-file") {
        Some(name) if name.is_empty() => Some(dirs::logdir().join(format!("{}.log", names.service))),
        // The daemon leaves this directory when it detaches, and reopens the file later.
        Some(name) => Some(std::path::absolute(&name).map_err(|error| format!("{name}: {error}"))?),
        None => None,
    };
    Ok(Options {
        database: database.unwrap_or_else(|| format!("unix:{}/db.sock", rundir.display())),
        pidfile_is_default: pidfile.as_ref().is_some_and(String::is_empty),
        pidfile: pidfile.map(|name| match name.as_str() {
            "" => rundir.join(format!("{}.pid", names.service)),
            name => dirs::inside(&rundir, name),
        }),
        overwrite_pidfile: matches.get_flag("overwrite-pidfile"),
        detach: matches.get_flag("detach"),
        monitor: matches.get_flag("monitor"),
        chdir: !matches.get_flag("no-chdir"),
        self_confinement: !matches.get_flag("no-self-confinement"),
        user: text("user"),
        log_file,
        verbose: matches
            .get_many::<String>("verbose")
            .unwrap_or_default()
            .map(|spec| Some(spec.clone()).filter(|spec| !spec.is_empty()))
            .collect(),
        syslog_method: text("syslog-method")
            .map(|method| SyslogMethod::parse(&method))
            .transpose()?,
        syslog_target: text("syslog-target"),
        control_socket: match text("unixctl").as_deref() {
            None => ControlSocket::Default,
            Some("none") => ControlSocket::Disabled,
            Some(name) => ControlSocket::Path(dirs::inside(&rundir, name)),
        },
        dummy: match optional("enable-dummy").as_deref() {
            None => None,
            Some("") => Some(Dummy::Plain),
            Some("system") => Some(Dummy::System),
            Some("override") => Some(Dummy::Override),
            Some(other) => return Err(format!("{other}: unknown dummy level")),
        },
        disable_system: matches.get_flag("disable-system"),
        disable_system_route: matches.get_flag("disable-system-route"),
        dummy_numa: text("dummy-numa").map(|list| numa_nodes(&list)).transpose()?,
        mlockall: matches.get_flag("mlockall"),
        metrics: text("metrics")
            .map(|address| MetricsAddress::parse(&address))
            .transpose()
            .map_err(|why| format!("--metrics={why}"))?,
        ssl: Ssl {
            private_key: path("private-key"),
            certificate: path("certificate"),
            ca_cert: path("ca-cert"),
            bootstrap_ca_cert: path("bootstrap-ca-cert"),
            peer_ca_cert: path("peer-ca-cert"),
            protocols: text("ssl-protocols"),
            ciphers: text("ssl-ciphers"),
        },
        names,
    })
}

fn numa_nodes(list: &str) -> Result<Vec<u32>, String> {
    let nodes = list.split(',').filter(|node| !node.is_empty());
    nodes
        .map(|node| {
            node.trim()
                .parse()
                .map_err(|_| format!("{node}: invalid NUMA node"))
        })
        .collect()
}
