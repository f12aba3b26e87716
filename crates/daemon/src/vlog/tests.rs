//! Specifications, line formats and module names; then the whole log, into a file.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::pattern::{Line, Pattern};
use super::spec::parse;
use super::*;

fn known(word: &str) -> bool {
    word.eq_ignore_ascii_case("bridge") || word.eq_ignore_ascii_case("vconn")
}

fn levels(module: Option<&str>, dest: Option<Destination>, level: Level) -> Result<Spec, String> {
    Ok(Spec::Levels {
        module: module.map(str::to_owned),
        dest,
        level,
    })
}

#[test]
fn specifications() {
    assert_eq!(parse("", known), levels(None, None, Level::Dbg));
    assert_eq!(parse("vconn", known), levels(Some("vconn"), None, Level::Dbg));
    assert_eq!(
        parse("console:emer", known),
        levels(None, Some(Destination::Console), Level::Emer)
    );
    assert_eq!(
        parse("Bridge, FILE ,,warn", known),
        levels(Some("Bridge"), Some(Destination::File), Level::Warn)
    );
    assert_eq!(
        parse("any:syslog:off", known),
        levels(None, Some(Destination::Syslog), Level::Off)
    );
    assert_eq!(parse("FACILITY:daemon", known), Ok(Spec::Facility(24)));
    let pattern = |dest, text: &str| {
        Ok(Spec::Pattern {
            dest,
            pattern: text.to_owned(),
        })
    };
    assert_eq!(
        parse("PATTERN:file:%D{%H:%M}: %m", known),
        pattern(Some(Destination::File), "%D{%H:%M}: %m")
    );
    assert_eq!(parse("pattern:any::%m", known), pattern(None, ":%m"));
}

/// The messages are those of ovs-vswitchd 3.1, as captured from it.
#[test]
fn refused_specifications() {
    for (text, why) in [
        ("foo:bar", "no destination, level, or module \"foo\""),
        ("dbg:info", "cannot specify multiple levels"),
        ("file:console", "cannot specify multiple destinations"),
        ("bridge:vconn", "cannot specify multiple modules"),
        ("PATTERN", "missing destination"),
        ("PATTERN:foo:bar", "unknown destination \"foo\""),
        ("FACILITY:xx", "invalid facility"),
        ("FACILITY", "invalid facility"),
    ] {
        assert_eq!(parse(text, known), Err(why.to_owned()), "{text}");
    }
}

fn format(pattern: &str, thread: &str) -> String {
    let line = Line {
        when: SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_225_600_042),
        since_start: Duration::from_millis(1500),
        level: Level::Info,
        module: "bridge",
        thread,
        sequence: 7,
        text: "hello\n",
        program: "heddled",
        facility: 0,
    };
    let mut out = String::new();
    Pattern::new(pattern).format(&line, &mut out);
    out
}

#[test]
fn line_formats() {
    let file = "%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m";
    assert_eq!(
        format(file, ""),
        "2026-01-01T00:00:00.042Z|00007|bridge|INFO|hello"
    );
    assert_eq!(
        format(file, "pmd-c01/id:8"),
        "2026-01-01T00:00:00.042Z|00007|bridge(pmd-c01/id:8)|INFO|hello"
    );
    assert_eq!(format("%D", ""), "2026-01-01 00:00:00.042");
    assert_eq!(format("%A %t %B %r%%%n", ""), "heddled main 134 1500%\n");
    assert_eq!(
        format("[%8p][%-8p][%08N][%2c]", ""),
        "[    INFO][INFO    ][00000007][bridge]"
    );
    assert_eq!(format("%D{%###", ""), "%###");
    assert_eq!(format("%z%", ""), "z");
}

#[test]
fn module_names() {
    assert_eq!(module_name("ofproto_dpif"), "ofproto_dpif");
    assert_eq!(module_name("heddle_ofproto::xlate::actions"), "actions");
    assert_eq!(module_name("heddle_port"), "port");
    assert_eq!(module_name("mio::poll"), "mio");
}

proptest! {
    /// Operators type these: nothing may panic, and a pattern keeps its source.
    #[test]
    fn any_text_is_taken_or_refused(text in ".{0,80}") {
        let _ = parse(&text, known);
        let pattern = Pattern::new(&text);
        prop_assert_eq!(pattern.source(), text.as_str());
        format(&text, "t");
    }
}

/// One test, since the log is one per process.
#[test]
fn the_log_into_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.log");
    init("prog", &["bridge"]);
    set_syslog_method(SyslogMethod::Null);
    set_all_levels(Some(Destination::Console), Level::Off);
    set_log_file(Some(&path)).expect("can be opened");
    let lines = |path: &Path| -> Vec<String> {
        flush();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let cut = |line: &str| line.splitn(3, '|').last().unwrap_or("").to_owned();
        text.lines().map(cut).collect()
    };
    set_thread_name("pmd-c01/id:8");

    // In place first, through the writer thread later.
    log::warn!(target: "bridge", "one");
    log::debug!(target: "bridge", "not wanted");
    start_writer().expect("a thread");
    set_levels_from_string("bridge:file:dbg").expect("valid");
    log::debug!(target: "bridge", "two");
    log::debug!(target: "vconn", "not wanted");
    emer("util", "three");
    // Other tests of the process may log something meanwhile, but not as this thread.
    let got = lines(&path);
    let of_this_thread: Vec<&str> = got
        .iter()
        .map(String::as_str)
        .filter(|line| line.contains("(pmd-c01/id:8)|"))
        .collect();
    assert_eq!(
        of_this_thread,
        [
            "bridge(pmd-c01/id:8)|WARN|one",
            "bridge(pmd-c01/id:8)|DBG|two",
            "util(pmd-c01/id:8)|EMER|three"
        ]
    );
    let opened = format!("|INFO|opened log file {}", path.display());
    assert!(got.iter().any(|line| line.ends_with(&opened)), "{got:?}");

    // A place in the code has its own limit, which an operator can lift.
    for i in 0..5 {
        log::info!(target: "rl_test", per_min = 1, burst = 2; "limited {i}");
    }
    assert_eq!(
        lines(&path)
            .iter()
            .filter(|line| line.contains("limited"))
            .count(),
        2
    );
    VLOG.modules.set_honor_rate_limits(false);
    for _ in 0..200 {
        log::warn!(target: "rl_test", "free");
    }
    assert_eq!(
        lines(&path).iter().filter(|line| line.contains("free")).count(),
        200
    );

    // Rotation: what is logged after reopening is in the new file.
    let moved = dir.path().join("a.log.1");
    std::fs::rename(&path, &moved).expect("can be renamed");
    log::info!(target: "bridge", "to the old file");
    reopen_log_file().expect("can be opened again");
    log::info!(target: "bridge", "to the new file");
    assert!(lines(&moved).iter().any(|line| line.ends_with("to the old file")));
    assert!(lines(&path).iter().any(|line| line.ends_with("to the new file")));

    close_log_file();
    log::info!(target: "bridge", "to nobody");
    assert!(!lines(&path).iter().any(|line| line.ends_with("to nobody")));
    assert_eq!(log_file(), Some(path));
    assert!(
        levels_text()
            .contains("\nbridge             OFF       INFO        DBG    (rate limiting disabled)\n")
    );
}

#[test]
fn long_messages_are_shortened() {
    let long = "é".repeat(1 << 20);
    let text = shortened(long.clone());
    assert!(
        text.len() < MAX_MESSAGE_BYTES + 40 && text.ends_with("bytes more)"),
        "{}",
        text.len()
    );
    assert_eq!(shortened("short".to_owned()), "short");
}
