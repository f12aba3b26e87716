//! `heddle manual`: man pages and completions, for packages. Those of `heddle` come from its own command
//! line. Those of the daemon come from its `--help`, the one place where its options are explained.

use anyhow::{Context as _, Result, bail};
use clap::{Arg, ArgAction, Command, CommandFactory as _};
use clap_complete::Shell;
use std::fs;
use std::path::{Path, PathBuf};

/// Column from which on a line of the daemon's help continues the explanation of the line before.
const TEXT_COLUMN: usize = 10;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory to write to: man1, man8, bash, zsh and fish are made in it
    dir: PathBuf,
    /// The daemon, whose pages are written too
    #[arg(long, value_name = "FILE")]
    heddled: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let dir = |name: &str| -> Result<PathBuf> {
            let dir = self.dir.join(name);
            fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
            Ok(dir)
        };
        let man1 = dir("man1")?;
        clap_mangen::generate_to(crate::Cli::command(), &man1)?;
        for (name, _) in EXAMPLES.iter().filter(|(name, _)| !OF_MAN8.contains(name)) {
            let path = man1.join(format!("{name}.1"));
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            fs::write(&path, text + &examples(name))?;
        }
        page(&cni(), &dir("man8")?.join("heddle-cni.8"))?;
        let shells = [
            (Shell::Bash, dir("bash")?),
            (Shell::Zsh, dir("zsh")?),
            (Shell::Fish, dir("fish")?),
        ];
        for (shell, to) in &shells {
            clap_complete::generate_to(*shell, &mut crate::Cli::command(), "heddle", to)?;
        }
        if let Some(path) = &self.heddled {
            let said = std::process::Command::new(path).arg("--help").output();
            let said = said.with_context(|| path.display().to_string())?;
            if !said.status.success() {
                bail!("{} --help fails", path.display());
            }
            let daemon = daemon(&String::from_utf8_lossy(&said.stdout));
            page(&daemon, &dir("man8")?.join("heddled.8"))?;
            for (shell, to) in &shells {
                clap_complete::generate_to(*shell, &mut daemon.clone(), "heddled", to)?;
            }
        }
        Ok(())
    }
}

/// Pages of section 8; all others are of section 1.
const OF_MAN8: [&str; 2] = ["heddled", "heddle-cni"];

/// Examples by page: a purpose and a command.
#[rustfmt::skip]
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    ("heddle", &[
        ("The work of the switch now:", "heddle top"),
        ("Why packets are dropped:", "heddle drops"),
        ("Faults of the switch:", "heddle advise --live"),
    ]),
    ("heddle-advise", &[
        ("Faults of the running switch; the status is 1 if there is one:", "heddle advise --live"),
        ("An attachment for a workload, from measurements of this machine:",
            "heddle advise --results results.jsonl --pattern rr --connections 50 --sizes 200x1000 --policy"),
    ]),
    ("heddle-capture", &[
        ("Packets of a port, into a file for Wireshark:", "heddle capture --port eth1 --write eth1.pcapng"),
    ]),
    ("heddle-drops", &[
        ("Dropped packets, each with the rule behind it:", "heddle drops"),
        ("Each new example, as it comes:", "heddle drops --follow"),
        ("Begin to count anew:", "heddle drops --reset"),
    ]),
    ("heddle-measure", &[
        ("Pods that are made for it, on three attachments:",
            "heddle measure --between new --attachments veth,bridge,internal --out results.jsonl"),
    ]),
    ("heddle-report", &[("Tables of a file of measurements:", "heddle report results.jsonl")]),
    ("heddle-samples", &[
        ("Packets that rules sample, as they come:", "heddle samples"),
        ("Those of one group, with their bytes:", "heddle samples --group 10 --hex"),
    ]),
    ("heddle-top", &[("One look, as text:", "heddle top --once")]),
    ("heddled", &[
        ("In the place of ovs-vswitchd, in the background:", "heddled --pidfile --detach --log-file"),
        ("Query the daemon:", "ovs-appctl -t heddled version"),
    ]),
    ("heddle-cni", &[
        ("Which versions it speaks:", "CNI_COMMAND=VERSION /opt/cni/bin/heddle-cni </dev/null"),
        ("After a reboot, remove the ports of pods that are gone:", "heddle-cni sweep"),
    ]),
];

/// The section with a page's examples, in roff.
fn examples(page: &str) -> String {
    let mut text = String::from(".SH EXAMPLES\n");
    let of = EXAMPLES.iter().find(|(name, _)| *name == page);
    for (what, command) in of.iter().flat_map(|(_, all)| all.iter()) {
        let command = command.replace('\\', "\\\\").replace('-', "\\-");
        text += &format!(".PP\n{what}\n.PP\n.nf\n.RS 4\n{command}\n.RE\n.fi\n");
    }
    text
}

/// The plug-in's command line. Its parameters are environment variables.
fn cni() -> Command {
    Command::new("heddle-cni")
        .version(env!("CARGO_PKG_VERSION"))
        .about("gives pods a port of a bridge, as a plug-in of the Container Network Interface")
        .long_about(
            "A container runtime runs heddle-cni for each pod that comes or goes, with the variables \
             CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_ARGS and CNI_PATH, and a network's \
             configuration at standard input. It is a client of the Open_vSwitch database alone.",
        )
        .after_long_help(
            "HEDDLE_CNI_DIRS names further directories, separated by colons. Sockets and the database's socket \
             of a configuration may be below them. HEDDLE_CNI_LOG_DIRS names further directories of log files.",
        )
        .disable_help_subcommand(true)
        .subcommand(
            Command::new("sweep")
                .about("Remove the ports of pods whose network namespaces are gone, as after a reboot")
                .arg(Arg::new("DATABASE").help("Where the database is [default: unix:/var/run/openvswitch/db.sock]")),
        )
}

fn page(command: &Command, path: &Path) -> Result<()> {
    let mut text = Vec::new();
    let man = clap_mangen::Man::new(command.clone()).section("8");
    man.render(&mut text)?;
    text.extend(examples(command.get_name()).into_bytes());
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// One option of the daemon's help: its forms, its heading, and its explanation.
#[derive(Debug, PartialEq, Eq)]
struct OptionHelp {
    heading: String,
    written: String,
    text: String,
}

/// Parses the options of a help text like the daemon's.
fn read(help: &str) -> Vec<OptionHelp> {
    let mut all: Vec<OptionHelp> = Vec::new();
    let mut heading = String::new();
    for line in help.lines() {
        let text = line.trim();
        let column = line.len() - line.trim_start().len();
        if column == 0 {
            heading = text
                .trim_end_matches(':')
                .split(" (")
                .next()
                .unwrap_or_default()
                .to_owned();
        } else if text.starts_with('-') && column < TEXT_COLUMN {
            let (written, text) = text.split_once("  ").unwrap_or((text, ""));
            all.push(OptionHelp {
                heading: heading.clone(),
                written: written.to_owned(),
                text: text.trim().to_owned(),
            });
        } else if let Some(last) = all
            .last_mut()
            .filter(|l| l.heading == heading && column >= TEXT_COLUMN)
        {
            last.text = format!("{} {text}", last.text).trim().to_owned();
        }
    }
    all
}

/// The daemon's command line. It is built once a process, so texts may be leaked.
fn daemon(help: &str) -> Command {
    let keep = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let mut command = Command::new("heddled")
        .version(env!("CARGO_PKG_VERSION"))
        .about("virtual switch in userspace, in the place of ovs-vswitchd")
        .long_about(
            "heddled forwards packets between the ports that the Open_vSwitch database names, by the rules that \
             OpenFlow controllers give. It takes the command line of ovs-vswitchd(8), reads the same database, and \
             answers the same tools: ovs-vsctl(8), ovs-ofctl(8), ovs-appctl(8). It needs the database server \
             ovsdb-server(1). heddle(1) shows what it does.",
        )
        .after_long_help(
            "OVS_RUNDIR and OVS_LOGDIR are the directories of sockets, pid files and log files. \
             Settings in the database are those of ovs-vswitchd.conf.db(5).",
        )
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(Arg::new("DATABASE").help("Where the database is, such as unix:/run/openvswitch/db.sock"));
    for told in read(help) {
        let mut arg = Arg::new(keep(told.written.clone()))
            .help(told.text)
            .help_heading(keep(told.heading));
        let mut value = None;
        for word in told.written.split(", ") {
            if let Some(long) = word.strip_prefix("--") {
                let end = long.find(['[', '=']).unwrap_or(long.len());
                let (name, rest) = long.split_at(end);
                arg = arg.long(keep(name.to_owned()));
                let optional = rest.strip_prefix("[=").and_then(|r| r.strip_suffix(']'));
                if let Some(name) = optional.or(rest.strip_prefix('=')) {
                    value = Some((name.to_owned(), optional.is_some()));
                }
            } else if let Some(short) = word.strip_prefix('-') {
                // The short form of --verbose takes its value without a space: -vSPEC.
                arg = arg.short(short.chars().next().unwrap_or('?'));
            }
        }
        arg = match value {
            None => arg.action(ArgAction::SetTrue),
            Some((name, optional)) => {
                let arg = arg.value_name(keep(name)).action(ArgAction::Append);
                if optional {
                    arg.num_args(0..=1).require_equals(true)
                } else {
                    arg
                }
            }
        };
        // The second line of an option that is explained in two lines.
        let known = |a: &Arg| arg.get_long().is_some() && a.get_long() == arg.get_long();
        if !command.get_arguments().any(known) {
            command = command.arg(arg);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "\
heddled: a switch
usage: heddled [OPTIONS] [DATABASE]

Keys (needed for ssl):
  -p, --private-key=FILE  private key
  --bootstrap-ca-cert=FILE  the same
Daemon options:
  --detach                run in the background
  --pidfile[=FILE]        write a pid file
Logging options:
  -vSPEC, --verbose=SPEC  set logging levels
  -v, --verbose           log everything
  --log-file[=FILE]       log to FILE
                          (default: x.log)
";

    #[test]
    fn values_are_whole() {
        let command = daemon(
            "Daemon options:\n  --user=USER[:GROUP]     run as them\n  --pidfile[=FILE]        a file\n",
        );
        let value = |long: &str| {
            let arg = command
                .get_arguments()
                .find(|a| a.get_long() == Some(long))
                .unwrap();
            arg.get_value_names().unwrap()[0].to_string()
        };
        assert_eq!(
            (value("user"), value("pidfile")),
            ("USER[:GROUP]".into(), "FILE".into())
        );
    }

    #[test]
    fn each_example_has_a_page_and_is_understood() {
        use clap::Parser as _;
        for (name, all) in EXAMPLES.iter().filter(|(name, _)| !OF_MAN8.contains(name)) {
            let command = crate::Cli::command();
            let sub = name.strip_prefix("heddle-");
            assert!(sub.is_none_or(|s| command.find_subcommand(s).is_some()), "{name}");
            for (_, example) in *all {
                let read = crate::Cli::try_parse_from(example.split(' '));
                assert!(read.is_ok(), "{example}: {}", read.err().unwrap());
            }
        }
        cni().debug_assert();
        assert!(examples("heddle-cni").contains("heddle\\-cni sweep"));
    }

    #[test]
    fn options_of_a_help_text() {
        let all = read(HELP);
        assert_eq!(all.len(), 7);
        assert_eq!(
            (all[0].heading.as_str(), all[0].text.as_str()),
            ("Keys", "private key")
        );
        assert_eq!(all[6].text, "log to FILE (default: x.log)");
        let command = daemon(HELP);
        command.clone().debug_assert();
        let longs: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
        assert_eq!(
            longs,
            [
                "private-key",
                "bootstrap-ca-cert",
                "detach",
                "pidfile",
                "verbose",
                "log-file"
            ]
        );
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(
            page.contains("private\\-key") && page.contains("run in the background"),
            "{page}"
        );
    }
}
