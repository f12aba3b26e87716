//! `heddle report`: reports of a file of results.

use crate::console;
use anyhow::{Context as _, Result, bail};
use heddle_measure::report::{Metric, against, page, plots, text};
use heddle_measure::results::Results;
use std::path::{Path, PathBuf};

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(n) if (0.0..1000.0).contains(&n) => Ok(n / 100.0),
        _ => Err("not a percentage".into()),
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file of `heddle measure`
    file: PathBuf,
    /// An older file, to report changes since then
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// With --against: exit with status 1 if a case is worse by the margin
    #[arg(long, requires = "against")]
    judge: bool,
    /// Differences below this many per cent do not count
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = percent)]
    margin: f64,
    /// Tables to print: speed, p50, p99, efficiency
    #[arg(
        long,
        value_name = "LIST",
        default_value = "speed,p99,efficiency",
        value_delimiter = ','
    )]
    metric: Vec<Metric>,
    /// Write a page with tables and plots, which needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each plot into this directory
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<PathBuf>,
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let results = Results::read(&self.file)?;
        if let Some(path) = &self.html {
            write(path, &page(&results, self.margin))?;
        }
        if let Some(dir) = &self.svg {
            std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
            for (name, plot) in plots(&results) {
                write(&dir.join(format!("{name}.svg")), &plot)?;
            }
        }
        let (mut worse, mut compared) = (0, 0);
        let said = match &self.against {
            None => text(&results, &self.metric, self.margin),
            Some(old) => {
                let old = Results::read(old)?;
                let mut all = String::new();
                for metric in &self.metric {
                    let (text, n, cases) = against(&results, &old, *metric, self.margin);
                    all = all + &text + "\n";
                    worse += n;
                    compared += cases;
                }
                all
            }
        };
        let read = console::out(&said);
        if self.judge && worse > 0 {
            bail!(
                "{worse} figures are worse by {:.0} % or more",
                self.margin * 100.0
            );
        }
        if self.judge && compared == 0 {
            bail!("nothing was compared, so nothing can be judged");
        }
        read
    }
}
