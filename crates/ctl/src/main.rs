//! `heddle`: measures switches with load that it generates, plays a guest, and observes the switch.

mod advise;
mod bench;
mod capture;
mod console;
mod drops;
mod guest;
mod manual;
mod measure;
mod migrate;
mod node;
mod offload;
mod report;
mod request;
mod samples;
mod top;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "heddle", version, about = "Tools around the virtual switch Heddle")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Recommend an attachment for a workload, from measurements; find faults of a running switch
    Advise(Box<advise::Args>),
    /// Generate load and measure
    #[command(subcommand)]
    Bench(bench::Command),
    /// Be a guest: a tap device behind a vhost-user socket
    Guest(guest::Args),
    /// Measure between end points: namespaces, pods, containers, hosts
    Measure(Box<measure::Args>),
    /// Move the connections of a port to another node, with its guest
    #[command(subcommand)]
    Migrate(migrate::Command),
    /// Report a file of measurements: tables, a page with plots, comparisons, changes
    Report(report::Args),
    /// List dropped packets, with the rules that drop them, and examples
    Drops(drops::Args),
    /// Write packets of a port, or dropped ones, to a file for Wireshark or tcpdump
    Capture(capture::Args),
    /// Set this machine up for the switch, from one file, and undo that
    #[command(subcommand)]
    Node(node::Command),
    /// Write man pages and completions
    #[command(hide = true)]
    Manual(manual::Args),
    /// Show which cached flows hardware or the kernel forwards, and why not the others
    Offload(offload::Args),
    /// Print packets that rules sample for a local group
    Samples(samples::Args),
    /// Show what the switch's workers and ports do, as it happens
    Top(top::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Advise(args) => args.run(),
        Command::Bench(command) => command.run(),
        Command::Guest(args) => args.run(),
        Command::Measure(args) => args.run(),
        Command::Migrate(command) => command.run(),
        Command::Report(args) => args.run(),
        Command::Drops(args) => args.run(),
        Command::Capture(args) => args.run(),
        Command::Node(command) => command.run(),
        Command::Manual(args) => args.run(),
        Command::Offload(args) => args.run(),
        Command::Samples(args) => args.run(),
        Command::Top(args) => args.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if e.is::<console::Enough>() => ExitCode::SUCCESS,
        Err(e) if e.is::<console::Faults>() => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("heddle: {}", console::error(&e));
            ExitCode::FAILURE
        }
    }
}
