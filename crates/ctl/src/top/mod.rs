//! `heddle top`: what the switch's workers do, refreshed.
//!
//! Everything is read from the daemon's control socket (`heddle/stats`), so that it works from any terminal that reaches the socket and
//! costs the switch one answer per frame. Rates are differences of two answers. A switch that goes away is waited for.

mod ask;
mod frame;
mod sample;

use anyhow::Result;
use sample::Sample;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Clears a terminal and puts the cursor to its upper left.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The daemon's control socket; without it that of the daemon whose pidfile is in $OVS_RUNDIR or /var/run/openvswitch
    #[arg(short, long, value_name = "SOCKET")]
    target: Option<PathBuf>,
    /// Seconds between frames
    #[arg(short, long, default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Print one frame as plain text, and end
    #[arg(long)]
    once: bool,
}

/// A number of seconds, none that is too much for a clock.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if !n.is_nan() => Ok(n.clamp(0.1, 3600.0)),
        _ => Err("not a number of seconds".into()),
    }
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let interval = Duration::from_secs_f64(self.interval);
        let look = || -> Result<Sample> {
            let socket = ask::socket(self.target.as_deref())?;
            Sample::read(&ask::stats(&socket)?)
        };
        if self.once {
            let before = look()?;
            std::thread::sleep(interval);
            print!("{}", frame::text(&before, &look()?));
            return Ok(());
        }
        let mut before: Option<Sample> = None;
        loop {
            let now = look();
            let mut out = std::io::stdout().lock();
            match (&before, &now) {
                (Some(before), Ok(now)) => write!(out, "{CLEAR}{}", frame::text(before, now))?,
                (None, Ok(_)) => write!(out, "{CLEAR}measuring ...")?,
                (_, Err(why)) => write!(out, "{CLEAR}waiting for the switch: {why:#}")?,
            }
            out.flush()?;
            drop(out);
            before = now.ok();
            std::thread::sleep(interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn intervals() {
        assert_eq!(seconds("2.5"), Ok(2.5));
        assert_eq!((seconds("-1"), seconds("1e300")), (Ok(0.1), Ok(3600.0)));
        assert!(seconds("NaN").is_err() && seconds("x").is_err());
    }
}
