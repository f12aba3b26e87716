//! `heddle`: measure switches, with load that it generates itself.

mod bench;

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
    /// Generate load and measure
    #[command(subcommand)]
    Bench(bench::Command),
}

fn main() -> ExitCode {
    let Command::Bench(command) = Cli::parse().command;
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("heddle: {e:#}");
            ExitCode::FAILURE
        }
    }
}
