//! The daemon's life around [`run`](crate::run::run), from the command line to the exit status.
//!
//! The order matters. Options set up the log. Forks come before threads. The pid file belongs to the last
//! process forked, and the control socket has that process's id in its name.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::cli::{self, ControlSocket, Options, Parsed};
use crate::context::Context;
use crate::log_modules::LOG_MODULES;
use crate::run::run;
use crate::user::Identity;
use heddle_daemon::exit::{self, Exit};
use heddle_daemon::pidfile::Pidfile;
use heddle_daemon::unixctl::{Registry, Server};
use heddle_daemon::vlog::{self, Destination, Level, SyslogMethod};
use heddle_daemon::{coverage, daemonize, dirs, memory};

/// Runs the program with these arguments, `argv[0]` first.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let names = cli::Names::from_argv0(args.first().map(OsString::as_os_str));
    vlog::init(&names.program, LOG_MODULES);
    let result = match cli::parse(args) {
        Ok(Parsed::Print(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Ok(Parsed::Run(options)) => {
            heddle_sys::files::keep_others_out();
            configure_log(&options).and_then(|()| daemon(*options))
        }
        Err(error) => Err(error),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            vlog::emer_quiet("vswitchd", &error);
            exit::remove_files();
            eprintln!("{}: {error}", names.program);
            ExitCode::FAILURE
        }
    }
}

fn configure_log(options: &Options) -> Result<(), String> {
    let from_env = || {
        std::env::var("OVS_SYSLOG_METHOD")
            .ok()
            .filter(|method| !method.is_empty())
    };
    let method = match &options.syslog_method {
        Some(method) => method.clone(),
        None => from_env().map_or(Ok(SyslogMethod::Libc), |method| SyslogMethod::parse(&method))?,
    };
    vlog::set_syslog_method(method);
    if options.detach {
        // While a daemon starts in the background, only warnings go to the console: scripts expect a quiet
        // start.
        vlog::set_all_levels(Some(Destination::Console), Level::Warn);
    }
    for spec in &options.verbose {
        match spec {
            None => vlog::set_all_levels(None, Level::Dbg),
            Some(spec) => {
                vlog::set_levels_from_string(spec)
                    .map_err(|error| format!("processing \"{spec}\": {error}"))?;
            }
        }
    }
    if let Some(path) = &options.log_file {
        // A log file that cannot be opened is not fatal; the warning about it is in the other logs.
        let _ = vlog::set_log_file(Some(path));
    }
    options
        .syslog_target
        .as_deref()
        .map_or(Ok(()), vlog::set_syslog_target)
}

fn daemon(options: Options) -> Result<ExitCode, String> {
    if let Some(user) = &options.user {
        Identity::parse(user)?.assume()?;
    }
    let daemon = daemonize::start(&daemonize::Settings {
        detach: options.detach,
        monitor: options.monitor,
        chdir: options.chdir,
        slow_start: format!(
            "still waiting for the database at {}: is ovsdb-server running, and is this its socket? See the log.",
            options.database
        ),
    })?;

    // From here on this is the daemon itself.
    let pidfile = match &options.pidfile {
        Some(path) => Some(make_pidfile(path, &options)?),
        None => None,
    };
    if let Err(error) = heddle_sys::process::die_of_faults() {
        log::warn!(target: "vswitchd", "faults are not reported to the parent ({})", vlog::errno_text(&error));
    }
    // Each ring of a virtual machine takes some descriptors; shells and service managers give 1024 by
    // default.
    if let Err(error) = heddle_sys::process::raise_descriptor_limit() {
        log::warn!(target: "vswitchd", "the limit of file descriptors is not raised ({})", vlog::errno_text(&error));
    }
    let exit = Exit::default();
    exit::watch_signals(&exit)
        .map_err(|error| format!("cannot watch signals ({})", vlog::errno_text(&error)))?;
    vlog::start_writer()
        .map_err(|error| format!("cannot start the log writer ({})", vlog::errno_text(&error)))?;
    log_panics();
    if options.mlockall
        && let Err(error) = heddle_sys::locked::lock()
    {
        log::error!(
            target: "vswitchd",
            "mlockall failed: {}; no memory is locked: grant CAP_IPC_LOCK, or set the limit of locked memory \
             (RLIMIT_MEMLOCK) to unlimited",
            vlog::errno_text(&error)
        );
    }

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(&options.names.program)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime ({})", vlog::errno_text(&error)))?;
    let options = Arc::new(options);
    let serve = serve(options, exit.clone(), daemon);
    let served = catch_unwind(AssertUnwindSafe(|| runtime.block_on(serve)));
    let Ok(result) = served else {
        // The hook has logged the panic. The daemon aborts, so that a monitor starts a new one.
        vlog::flush();
        std::process::abort();
    };
    // Remaining tasks must not delay the end.
    runtime.shutdown_background();
    exit::remove_files();
    drop(pidfile);
    result?;
    vlog::flush();
    if let Some(exit::Request {
        signal: Some(signal), ..
    }) = exit.get()
    {
        exit::die_of(signal);
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(options: Arc<Options>, exit: Exit, daemon: daemonize::Daemon) -> Result<(), String> {
    let commands = Registry::new();
    let memory = memory::Reporters::default();
    let version = options.names.version_text();
    commands.register("version", "", 0, 0, move |_| Ok(version.clone()));
    heddle_daemon::commands::register(&commands, exit.clone(), memory.clone());
    tokio::spawn(coverage::sampler());
    tokio::spawn(memory::watch(memory.clone()));
    if options.mlockall {
        tokio::spawn(memory::keep_locked());
    }

    remove_left_sockets();
    let server = match control_socket(&options) {
        None => None,
        Some(path) => {
            if options.control_socket == ControlSocket::Default {
                remove_stale_sockets(&options);
            }
            let server = Server::start(&path, commands.clone()).map_err(|error| {
                let why = vlog::errno_text(&error);
                format!("{}: could not initialize control socket ({why})", path.display())
            })?;
            exit::remove_at_exit(&path);
            if options.control_socket == ControlSocket::Default {
                add_alias(&dirs::rundir(), &path, &options, &format!(".{}.ctl", id()));
            }
            Some(server)
        }
    };
    let result = run(Context {
        options,
        commands,
        exit,
        daemon: Arc::new(daemon),
        memory,
    })
    .await;
    if let Some(server) = server {
        server.stop().await;
    }
    // `{:#}` shows the causes too.
    result.map_err(|error| format!("{error:#}"))
}

fn control_socket(options: &Options) -> Option<PathBuf> {
    match &options.control_socket {
        ControlSocket::Disabled => None,
        ControlSocket::Path(path) => Some(path.clone()),
        ControlSocket::Default => {
            Some(dirs::rundir().join(format!("{}.{}.ctl", options.names.service, id())))
        }
    }
}

fn make_pidfile(path: &Path, options: &Options) -> Result<Pidfile, String> {
    let pidfile = Pidfile::create(path, options.overwrite_pidfile)?;
    exit::remove_at_exit(path);
    // `ovs-appctl -t heddled` looks in the run directory, wherever the file is.
    let rundir = dirs::rundir();
    if options.pidfile_is_default || rundir.is_dir() {
        add_alias(&rundir, path, options, ".pid");
    }
    Ok(pidfile)
}

/// The file of the run directory that lists the sockets that the daemon made.
const SOCKETS_FILE: &str = "heddled.sockets";

/// Removes sockets of ports and bridges that an earlier daemon made. Ports and bridges that still exist make
/// theirs anew.
fn remove_left_sockets() {
    let notes = dirs::rundir().join(SOCKETS_FILE);
    match heddle_sys::left_sockets::start(&notes) {
        Ok(gone) => {
            // A daemon that ends in order leaves no socket.
            exit::remove_at_exit(&notes);
            for path in gone {
                log::info!(target: "vswitchd", "{}: removed an earlier daemon's socket", path.display());
            }
        }
        Err(error) => {
            log::debug!(target: "vswitchd", "{SOCKETS_FILE}: {}", vlog::errno_text(&error));
        }
    }
}

/// Removes control sockets without a listener, and their second names: daemons of this name that were killed
/// left them.
fn remove_stale_sockets(options: &Options) {
    let names = [Some(&options.names.service), options.names.alias.as_ref()];
    let is_ours = |file: &str| {
        let pid = file.strip_suffix(".ctl").and_then(|f| f.rsplit_once('.'));
        pid.is_some_and(|(name, pid)| {
            pid.bytes().all(|b| b.is_ascii_digit()) && names.iter().flatten().any(|n| *n == name)
        })
    };
    for entry in fs::read_dir(dirs::rundir()).into_iter().flatten().flatten() {
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        if !is_ours(&name) || !entry.file_type().is_ok_and(|t| t.is_symlink() || t.is_socket()) {
            continue;
        }
        // A datagram socket cannot connect to a stream socket, so this never waits; the error shows whether
        // there is a listener.
        let called = UnixDatagram::unbound().and_then(|socket| socket.connect(entry.path()));
        let nobody =
            called.is_err_and(|e| matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound));
        if nobody && fs::remove_file(entry.path()).is_ok() {
            log::info!(target: "unixctl", "{name}: removed, its daemon is gone");
        }
    }
}

/// Gives a file its second name in the run directory, as a symbolic link. Only a link that is in the way is
/// replaced.
fn add_alias(rundir: &Path, path: &Path, options: &Options, suffix: &str) {
    let Some(alias) = &options.names.alias else {
        return;
    };
    let link = rundir.join(format!("{alias}{suffix}"));
    let target = path.strip_prefix(rundir).unwrap_or(path);
    if link == path {
        return;
    }
    if fs::symlink_metadata(&link).is_ok_and(|meta| meta.is_symlink()) {
        // If this fails, so does making the link, which is reported.
        let _ = fs::remove_file(&link);
    }
    match std::os::unix::fs::symlink(target, &link) {
        Ok(()) => exit::remove_at_exit(&link),
        Err(error) => {
            let why = vlog::errno_text(&error);
            log::warn!(target: "vswitchd", "{}: cannot make this link ({why})", link.display());
        }
    }
}

/// Has panics logged, with their place, before their thread unwinds.
fn log_panics() {
    /// A panic that repeats does not fill the log.
    const MAX_LOGGED: u64 = 100;
    static LOGGED: AtomicU64 = AtomicU64::new(0);
    std::panic::set_hook(Box::new(|panic| {
        let n = LOGGED.fetch_add(1, Relaxed);
        if n >= MAX_LOGGED && !n.is_multiple_of(MAX_LOGGED * MAX_LOGGED) {
            return;
        }
        let payload = panic.payload();
        let what = payload.downcast_ref::<&str>().copied();
        let what = what
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no text");
        let place = panic
            .location()
            .map_or_else(|| "unknown place".to_owned(), ToString::to_string);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        vlog::emer("util", &format!("thread {name} panicked at {place}: {what}"));
    }));
}
