//! `heddle top`: the work of the switch's workers and ports, refreshed.
//!
//! Everything is read from the daemon's control socket (`heddle/stats`). So it works from any terminal that
//! reaches the socket, and costs the switch one reply per frame. Rates are differences of two replies. If the
//! switch goes away, the program waits for it. An output that is no terminal gets plain text, frame after
//! frame; scripts request JSON.

mod cells;
mod frame;
mod help;
mod history;
mod keys;
mod page;
mod rates;
mod sample;
mod screen;

use crate::console;
use crate::request::Target;
use anyhow::Result;
use history::History;
use rates::Frame;
use sample::Sample;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Seconds between frames
    #[arg(short, long, default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Print one frame, and end
    #[arg(long)]
    once: bool,
    /// Print frames as JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Parses a number of seconds; one that is too large for a clock is refused.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if !n.is_nan() => Ok(n.clamp(0.1, 3600.0)),
        _ => Err("not a number of seconds".into()),
    }
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let target = self.target.clone();
        let look = move || -> Result<Sample> { Sample::read(&target.request("heddle/stats", &[])?) };
        let dumb = std::env::var_os("TERM").is_none_or(|t| t.is_empty() || t == "dumb");
        if !self.once && !self.json && io::stdout().is_terminal() && !dumb {
            return screen::run(self.interval, look);
        }
        self.print(look)
    }

    /// Frames as plain text, or as JSON.
    fn print(&self, look: impl Fn() -> Result<Sample>) -> Result<()> {
        let (mut before, mut history) = (None::<Sample>, History::default());
        loop {
            let now = look();
            match (&before, &now) {
                (Some(before), Ok(now)) => {
                    let frame = Frame::between(before, now);
                    if self.json {
                        console::out(&(serde_json::to_string(&frame)? + "\n"))?;
                    } else {
                        history.add(&frame);
                        console::out(&(plain(&frame, &history, columns()) + "\n\n"))?;
                    }
                    if self.once {
                        return Ok(());
                    }
                }
                (_, Err(_)) if self.once => return now.map(drop),
                // With --json, standard output has objects alone.
                (_, Err(why)) if self.json => console::waiting(&waiting(why)),
                (_, Err(why)) => console::out(&(waiting(why) + "\n\n"))?,
                (None, Ok(_)) => {}
            }
            before = now.ok();
            std::thread::sleep(Duration::from_secs_f64(self.interval));
        }
    }
}

fn waiting(why: &anyhow::Error) -> String {
    format!("waiting for the switch: {}", cells::clean(&format!("{why:#}")))
}

/// Columns of plain text: COLUMNS if it is set, else those of the terminal, else unlimited.
fn columns() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|n| n.parse().ok());
    let shown = || heddle_sys::terminal::size(io::stdout().as_fd()).map(|(columns, _)| usize::from(columns));
    said.or_else(shown).filter(|n| *n > 0).unwrap_or(usize::MAX)
}

fn plain(frame: &Frame, history: &History, columns: usize) -> String {
    let mut text = frame::head(frame) + "\n";
    for line in frame::lines(frame, history, columns) {
        text.push('\n');
        text.push_str(line.to_string().trim_end());
    }
    text
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
