//! `heddle manual`: man pages and completions, for packages. Those of `heddle` come from its own command
//! line; those of the daemon from what it says of itself with `--help`, which is the one place where its
//! options are explained.

use anyhow::{Context as _, Result, bail};
use clap::{Arg, ArgAction, Command, CommandFactory as _};
use clap_complete::Shell;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of the daemon's help that explain what the line before says begin in this column or behind it.
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
        clap_mangen::generate_to(crate::Cli::command(), dir("man1")?)?;
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

fn page(command: &Command, path: &Path) -> Result<()> {
    let mut text = Vec::new();
    let man = clap_mangen::Man::new(command.clone()).section("8");
    man.render(&mut text)?;
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// One option of the daemon's help: as it is written, under which heading, and what it does.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    heading: String,
    written: String,
    text: String,
}

/// The options of a help text such as the daemon's.
fn read(help: &str) -> Vec<Told> {
    let mut all: Vec<Told> = Vec::new();
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
            all.push(Told {
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

/// The daemon's command line. What its options are is said once a process, so texts may live for ever.
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
            "OVS_RUNDIR, OVS_LOGDIR, OVS_DBDIR and OVS_SYSCONFDIR say where files are. \
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
                if !rest.is_empty() {
                    value = Some((
                        rest.trim_matches(['[', ']', '=']).to_owned(),
                        rest.starts_with('['),
                    ));
                }
            } else if let Some(short) = word.strip_prefix('-') {
                // -vSPEC is said of --verbose too.
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
        // The second line of one option, which is explained in two.
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
