//! The command line, compared with the options and messages of ovs-vswitchd 3.1.

use std::ffi::OsString;
use std::path::Path;

use super::*;

fn parse_words(words: &[&str]) -> Result<Parsed, String> {
    parse(words.iter().map(OsString::from))
}

fn run(words: &[&str]) -> Options {
    match parse_words(words) {
        Ok(Parsed::Run(options)) => *options,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn defaults() {
    let options = run(&["/usr/sbin/ovs-vswitchd"]);
    let rundir = dirs::rundir();
    assert_eq!(options.database, format!("unix:{}/db.sock", rundir.display()));
    assert_eq!(options.control_socket, ControlSocket::Default);
    assert_eq!(
        (options.pidfile, options.log_file, options.dummy),
        (None, None, None)
    );
    assert!(!options.detach && !options.monitor && options.chdir && options.self_confinement);
}

/// The line that Open vSwitch's own test suite starts the daemon with.
#[test]
fn the_test_suites_line() {
    let line = "ovs-vswitchd --enable-dummy=override --disable-system --disable-system-route --dummy-numa 0,0,1,1 \
                --detach --no-chdir --pidfile --log-file -vvconn -vofproto_dpif -vunixctl";
    let options = run(&line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(options.dummy, Some(Dummy::Override));
    assert!(options.disable_system && options.disable_system_route && options.detach && !options.chdir);
    assert_eq!(options.dummy_numa, Some(vec![0, 0, 1, 1]));
    assert_eq!(options.pidfile, Some(dirs::rundir().join("ovs-vswitchd.pid")));
    assert_eq!(options.log_file, Some(dirs::logdir().join("ovs-vswitchd.log")));
    let verbose: Vec<_> = options.verbose.iter().map(Option::as_deref).collect();
    assert_eq!(verbose, [Some("vconn"), Some("ofproto_dpif"), Some("unixctl")]);
}

/// The line that ovs-ctl starts the daemon with on Debian.
#[test]
fn ovs_ctls_line() {
    let options = run(&[
        "ovs-vswitchd",
        "unix:/var/run/openvswitch/db.sock",
        "-vconsole:emer",
        "-vsyslog:err",
        "-vfile:info",
        "--mlockall",
        "--no-chdir",
        "--log-file=/var/log/openvswitch/ovs-vswitchd.log",
        "--pidfile=/var/run/openvswitch/ovs-vswitchd.pid",
        "--detach",
        "--monitor",
    ]);
    assert_eq!(options.database, "unix:/var/run/openvswitch/db.sock");
    assert!(options.mlockall && options.monitor);
    assert!(!options.pidfile_is_default);
    assert_eq!(
        options.log_file.as_deref(),
        Some(Path::new("/var/log/openvswitch/ovs-vswitchd.log"))
    );
}

#[test]
fn optional_values_need_an_equals_sign() {
    let options = run(&["x", "--pidfile", "tcp:127.0.0.1:6640", "-v", "--log-file=rel.log"]);
    assert_eq!(options.database, "tcp:127.0.0.1:6640");
    assert_eq!(options.pidfile, Some(dirs::rundir().join("x.pid")));
    assert_eq!(options.verbose, [None]);
    assert!(options.log_file.expect("given").is_absolute());
    let options = run(&[
        "x",
        "--pidfile=a.pid",
        "--unixctl",
        "b.ctl",
        "--log-file",
        "--log-file=/c",
    ]);
    assert_eq!(options.pidfile, Some(dirs::rundir().join("a.pid")));
    assert_eq!(
        options.control_socket,
        ControlSocket::Path(dirs::rundir().join("b.ctl"))
    );
    assert_eq!(options.log_file.as_deref(), Some(Path::new("/c")));
    assert_eq!(
        run(&["x", "--unixctl=none"]).control_socket,
        ControlSocket::Disabled
    );
}

#[test]
fn ssl_and_syslog() {
    let options = run(&[
        "x",
        "-p",
        "key.pem",
        "-c=cert.pem",
        "-Cca.pem",
        "--peer-ca-cert=peer.pem",
        "--syslog-method=udp:127.0.0.1:1514",
        "--syslog-target=127.0.0.1:514",
    ]);
    assert_eq!(options.ssl.private_key.as_deref(), Some(Path::new("key.pem")));
    assert_eq!(options.ssl.ca_cert.as_deref(), Some(Path::new("ca.pem")));
    assert_eq!(options.ssl.peer_ca_cert.as_deref(), Some(Path::new("peer.pem")));
    let address = "127.0.0.1:1514".parse().expect("an address");
    assert_eq!(options.syslog_method, Some(SyslogMethod::Udp(address)));
}

/// The messages are those of ovs-vswitchd 3.1, as captured from it.
#[test]
fn refusals() {
    let cases = [
        ("--foo", "unrecognized option '--foo'"),
        ("-x", "invalid option -- 'x'"),
        ("--unixctl", "option '--unixctl' requires an argument"),
        ("--detach=3", "option '--detach' doesn't allow an argument"),
        ("--enable-dummy=foo", "foo: unknown dummy level"),
        ("--syslog-method=foo", "unsupported syslog method 'foo'"),
        ("--dpdk", "Using --dpdk to configure DPDK is not supported."),
    ];
    for (word, message) in cases {
        assert_eq!(parse_words(&["x", word]), Err(message.to_owned()));
    }
    let two = "at most one non-option argument accepted; use --help for usage";
    assert_eq!(parse_words(&["x", "a", "b"]), Err(two.to_owned()));
}

#[test]
fn names_and_version() {
    let link = Names::from_argv0(Some("/a/ovs-vswitchd".as_ref()));
    assert_eq!(
        (link.program.as_str(), link.service.as_str(), link.alias),
        ("ovs-vswitchd", "ovs-vswitchd", None)
    );
    let own = Names::from_argv0(Some("heddled".as_ref()));
    assert_eq!(
        (own.program.as_str(), own.service.as_str()),
        ("heddled", "ovs-vswitchd")
    );
    assert_eq!(own.alias.as_deref(), Some("heddled"));

    let Ok(Parsed::Print(version)) = parse_words(&["/a/ovs-vswitchd", "--version"]) else {
        panic!("no version")
    };
    let first = version.lines().next().expect("a line");
    assert_eq!(first, format!("ovs-vswitchd (Open vSwitch) {COMPATIBLE_VERSION}"));
    let for_awk: Vec<_> = version
        .lines()
        .filter(|line| line.contains("Open vSwitch"))
        .collect();
    assert_eq!(for_awk, [first]);
}

#[test]
fn metrics_addresses() {
    let at = |text: &str| MetricsAddress::parse(text).map(|p| p.to_string());
    assert_eq!(at("tcp:9310"), Ok("tcp:127.0.0.1:9310".into()));
    assert_eq!(at("tcp:0.0.0.0:9310"), Ok("tcp:0.0.0.0:9310".into()));
    assert_eq!(at("tcp:[::1]:9310"), Ok("tcp:[::1]:9310".into()));
    assert_eq!(
        MetricsAddress::parse("unix:/run/x"),
        Ok(MetricsAddress::Unix(PathBuf::from("/run/x")))
    );
    for wrong in [
        "",
        "unix:",
        "tcp:",
        "tcp:host:1",
        "tcp:1.2.3.4",
        "tcp:99999",
        "udp:1",
        "9310",
    ] {
        assert!(MetricsAddress::parse(wrong).is_err(), "{wrong}");
    }
}
