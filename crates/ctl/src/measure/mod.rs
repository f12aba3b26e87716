//! `heddle measure`: load over sockets between end points of any kind, contenders in turns.

mod options;
mod pairs;

use crate::bench::interrupt;
use crate::console;
use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use heddle_measure::agent::{self, AgentOptions};
use heddle_measure::factors::{Device, Settings};
use heddle_measure::keeper::{self, Keeper};
use heddle_measure::results::{FORMAT, Record, Results, Sink};
use heddle_measure::runner::{self, Contender, End, Outside};
use heddle_measure::{machine, stats};
use options::{Between, Options};
use pairs::Pairs;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    options: Options,
}

/// Processes that `heddle measure` starts by itself, or that are started by hand in a guest.
#[derive(Subcommand)]
enum Part {
    /// Be an end point: read requests from standard input, write replies to standard output
    Agent {
        /// Enter this network namespace first
        #[arg(long, value_name = "FILE")]
        netns: Option<PathBuf>,
        /// Stay on these processors
        #[arg(long, value_name = "LIST")]
        processors: Option<String>,
        /// Serve one peer after the other over TCP at this address and port instead. Any host that can
        /// connect can make load: choose an address that only you reach
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: Option<SocketAddr>,
    },
    /// Undo the changes when the measurement is over
    #[command(hide = true)]
    Keeper,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        match &self.part {
            None => measure(&self.options),
            Some(Part::Keeper) => keeper::serve(),
            Some(Part::Agent {
                netns,
                processors,
                listen,
            }) => {
                let processors = processors.as_deref();
                let options = AgentOptions {
                    netns: netns.clone(),
                    processors: processors.map_or(Ok(Vec::new()), |t| options::list(t, "a processor"))?,
                };
                options.settle()?;
                match listen {
                    Some(at) => serve_tcp(*at),
                    None => Ok(agent::serve(io::stdin(), io::stdout())?),
                }
            }
        }
    }
}

fn serve_tcp(at: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(at).with_context(|| format!("{at}"))?;
    console::waiting(&format!("an end point at tcp:{}", listener.local_addr()?));
    loop {
        let (stream, from) = listener.accept()?;
        stream.set_nodelay(true)?;
        if let Err(e) = stream.try_clone().and_then(|input| agent::serve(input, stream)) {
            console::waiting(&format!("{from}: {}", heddle_sys::errno_text(&e)));
        }
    }
}

/// Settings that a run changes, and its progress on standard error. On a terminal one line is rewritten;
/// elsewhere each series has a line.
struct Progress<'a> {
    keeper: &'a mut Keeper,
    settings: Settings,
    /// Devices of each pair.
    devices: Vec<Vec<Device>>,
    total: usize,
    done: usize,
}

impl Outside for Progress<'_> {
    fn set(&mut self, contender: &Contender) -> Result<()> {
        let devices = self.devices.get(contender.ends).map_or(&[][..], Vec::as_slice);
        self.settings.apply(self.keeper, devices, &contender.settings)
    }
    fn progress(&mut self, text: &str, left: usize, each: Duration) {
        self.done += 1;
        let seconds = each.as_secs_f64() * left as f64;
        let left = match left {
            0 => "more for narrower intervals".to_owned(),
            left => format!(
                "{left} left, {:.0}:{:02.0}",
                (seconds / 60.0).floor(),
                (seconds % 60.0).floor()
            ),
        };
        let text = format!("[{} of {}; {left}] {text}", self.done, self.total.max(self.done));
        let mut err = io::stderr().lock();
        let _ = if err.is_terminal() {
            let columns = heddle_sys::terminal::size(stderr()).map_or(80, |(c, _)| usize::from(c));
            let short: String = text.chars().take(columns.saturating_sub(1)).collect();
            write!(err, "\r\x1b[K{short}")
        } else {
            writeln!(err, "{text}")
        };
    }
}

fn stderr() -> std::os::fd::BorrowedFd<'static> {
    use std::os::fd::AsFd as _;
    static STDERR: std::sync::OnceLock<io::Stderr> = std::sync::OnceLock::new();
    STDERR.get_or_init(io::stderr).as_fd()
}

/// The results so far, and the file to which new ones are appended.
fn open(options: &Options, plan: &heddle_measure::results::Plan) -> Result<(Results, Sink)> {
    let path = &options.out;
    if options.resume && path.exists() {
        let results = Results::read_to_go_on(path)?;
        if let Some(before) = &results.plan {
            if before.contenders != plan.contenders {
                bail!(
                    "{}: was measured with {}, not {}: give the same contenders to continue",
                    path.display(),
                    before.contenders.join(", "),
                    plan.contenders.join(", ")
                );
            }
            if before.cases != plan.cases || before.seconds != plan.seconds {
                bail!(
                    "{}: has other cases, or series of other lengths: give the same options to continue",
                    path.display()
                );
            }
        }
        let kernel = |m: &std::collections::BTreeMap<String, String>| m.get("kernel").cloned();
        let before = results.machines.last();
        if before.is_some_and(|m| kernel(m) != kernel(&machine::facts())) {
            console::waiting(
                "the file was begun on another kernel: its series do not compare with those to come",
            );
        }
        let sink = Sink::resume(path, &results)?;
        return Ok((results, sink));
    }
    let results = Results {
        name: path.display().to_string(),
        ..Results::default()
    };
    Ok((results, Sink::create(path)?))
}

fn measure(options: &Options) -> Result<()> {
    if options.between.is_empty() {
        bail!(
            "between what? --between A,B names two end points, written as {}",
            heddle_measure::place::FORMS
        );
    }
    let cases = options.cases()?;
    let variations = options.variations()?;
    let wants_new = options.between.contains(&Between::New);
    let pairs = options.pairs()?;
    let given = pairs::given(&options.between)?;
    if options.out.exists() && !options.resume {
        // Fail before anything is made. `Sink` checks again.
        bail!(
            "{}: exists already: use --resume to continue it, or another --out",
            options.out.display()
        );
    }
    if wants_new {
        heddle_measure::attach::allowed()?;
    }
    let enough = interrupt::enough()?;
    // The machine is changed from here on. Agents end before their namespaces are removed.
    let mut keeper = Keeper::start()?;
    let mut made = Pairs::default();
    for (name, client, server) in given {
        made.add(options, &name, client, server, None)?;
    }
    if wants_new {
        made.make(options, &mut keeper, &pairs, &enough)?;
    }
    let Pairs {
        mut ends,
        names,
        devices,
        unavailable,
    } = made;
    for (name, why) in &unavailable {
        console::waiting(&format!("{name} cannot be had here: {why}"));
    }
    if enough.load(Relaxed) {
        return Ok(());
    }
    if names.is_empty() {
        bail!("none of the given attachments can be made here");
    }
    let contenders = pairs::contenders(&names, &variations);
    let plan = options.plan(contenders.iter().map(|c| c.name.clone()).collect(), cases)?;
    let (mut results, mut sink) = open(options, &plan)?;
    sink.write(&Record::Machine {
        format: FORMAT,
        facts: machine::facts(),
    })?;
    sink.write(&Record::Plan(plan.clone()))?;
    for (contender, why) in unavailable {
        results.unavailable.push((contender.clone(), why.clone()));
        sink.write(&Record::Unavailable { contender, why })?;
    }
    let mut progress = Progress {
        keeper: &mut keeper,
        settings: Settings::default(),
        devices,
        total: plan.cases.len() * contenders.len() * plan.least_rounds as usize,
        done: results.series.len(),
    };
    let began = Instant::now();
    let end = runner::run(
        &plan,
        &contenders,
        &mut ends,
        &mut results,
        &mut sink,
        options.threads,
        options.time,
        &enough,
        &mut progress,
    );
    if io::stderr().is_terminal() {
        eprintln!();
    }
    let kept = format!("{} series in {}", results.series.len(), options.out.display());
    let end = end.with_context(|| format!("ended after {kept}"))?;
    let seconds = began.elapsed().as_secs_f64();
    console::waiting(&match end {
        End::Precise => format!(
            "{kept}, all within ±{:.0} %, {seconds:.0} s",
            plan.precision * 100.0
        ),
        End::Rounds => format!("{kept}, {seconds:.0} s; {}", noisy(&results, &plan)),
        End::Time => format!(
            "{kept}, time is over ({seconds:.0} s); {}",
            noisy(&results, &plan)
        ),
        End::Interrupted => format!("{kept}, interrupted; --resume continues"),
    });
    Ok(())
}

/// The number of figures that are not precise enough, and the cause.
fn noisy(results: &Results, plan: &heddle_measure::results::Plan) -> String {
    let (mut wide, mut all, mut worst) = (0, 0, 0.0_f64);
    for case in results.cases() {
        for contender in results.contenders() {
            let i = stats::interval(&results.headlines(&contender, &case), plan.confidence);
            all += 1;
            wide += usize::from(i.relative() > plan.precision);
            if i.relative().is_finite() {
                worst = worst.max(i.relative());
            }
        }
    }
    let share = |f: fn(&heddle_measure::results::Series) -> f64| {
        stats::mean(&results.series.iter().map(f).collect::<Vec<_>>()) * 100.0
    };
    if worst == 0.0 {
        return "each case was measured once, so no interval is known".to_owned();
    }
    format!(
        "{wide} of {all} figures are not within ±{:.0} % (widest ±{:.0} %): other programs took {:.0} % of the \
         processors, the hypervisor {:.0} %",
        plan.precision * 100.0,
        worst * 100.0,
        share(|s| s.others_share),
        share(|s| s.steal_share)
    )
}
