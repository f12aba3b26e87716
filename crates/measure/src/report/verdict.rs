//! Comparison of contenders: cases in which one is better by a margin, with confidence.
//!
//! For two contenders of one file, series of the same round are compared, since they were measured one right
//! after the other. For two files, all series are compared with all. A case is won when the ratio reaches the
//! requested margin *and* its interval leaves out 1. With many cases some intervals err: of 20 at 95 %, one.

use crate::load::Pattern;
use crate::results::{Case, Results, Series};
use crate::stats::{Ratio, ratio, ratio_apart};
use std::str::FromStr;

/// The value that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Transactions or MiB a second; at a fixed rate the 99th percentile of latency.
    Speed,
    /// Median latency.
    P50,
    /// The 99th percentile of latency.
    P99,
    /// Work done per second of processor time: transactions of request and response, MiB of streams.
    Efficiency,
}

impl FromStr for Metric {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "speed" => Ok(Self::Speed),
            "p50" => Ok(Self::P50),
            "p99" => Ok(Self::P99),
            "efficiency" => Ok(Self::Efficiency),
            _ => Err("speed, p50, p99 or efficiency".into()),
        }
    }
}

impl Metric {
    /// For headings.
    pub fn title(self) -> &'static str {
        match self {
            Self::Speed => "Speed (transactions/s, MiB/s of streams; us p99 at a fixed rate)",
            Self::P50 => "Median latency, us",
            Self::P99 => "99th percentile of latency, us",
            Self::Efficiency => "Efficiency (transactions, or MiB of streams, per second of processor time)",
        }
    }
    /// The metric's value of a series; `None`: the series has none.
    pub fn of(self, s: &Series) -> Option<f64> {
        match (self, s.case.pattern) {
            (Self::Speed, _) => Some(s.headline()),
            (Self::P50, _) => s.latency.as_ref().map(|l| l.p50_us),
            (Self::P99, _) => s.latency.as_ref().map(|l| l.p99_us),
            (Self::Efficiency, Pattern::Rr) => Some(s.transactions_per_cpu_s),
            (Self::Efficiency, _) => Some(s.mib_per_cpu_s),
        }
    }
    /// Whether more is better.
    pub fn more_is_better(self, case: &Case) -> bool {
        match self {
            Self::Speed => case.more_is_better(),
            Self::Efficiency => true,
            Self::P50 | Self::P99 => false,
        }
    }
    /// The values of all series of a contender in a case.
    pub fn values(self, results: &Results, contender: &str, case: &Case) -> Vec<f64> {
        let all = results.of(contender, case);
        all.into_iter().filter_map(|s| self.of(s)).collect()
    }
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Better by the margin at least, and the interval leaves out 1.
    Better,
    /// Worse by the margin at least, and the interval leaves out 1.
    Worse,
    /// Neither: the difference is small, or the interval contains 1.
    Neither,
}

/// Judges a ratio where more is better.
pub(super) fn verdict(r: &Ratio, margin: f64) -> Verdict {
    if r.ratio >= 1.0 + margin && r.low > 1.0 {
        Verdict::Better
    } else if r.ratio <= 1.0 / (1.0 + margin) && r.high < 1.0 {
        Verdict::Worse
    } else {
        Verdict::Neither
    }
}

fn turned(r: Ratio, more_is_better: bool) -> Ratio {
    if more_is_better {
        return r;
    }
    Ratio {
        ratio: 1.0 / r.ratio,
        low: 1.0 / r.high,
        high: 1.0 / r.low,
    }
}

/// Ratio of `a` to `b` in a case of one file, above 1 if `a` is better.
pub fn compare(
    results: &Results,
    metric: Metric,
    case: &Case,
    a: &str,
    b: &str,
    confidence: f64,
) -> Option<Ratio> {
    let others = results.of(b, case);
    let pairs: Vec<(f64, f64)> = results
        .of(a, case)
        .into_iter()
        .filter_map(|x| {
            let y = others.iter().find(|y| y.round == x.round)?;
            Some((metric.of(x)?, metric.of(y)?))
        })
        .collect();
    ratio(&pairs, confidence).map(|r| turned(r, metric.more_is_better(case)))
}

/// Ratio of `new` to `old` in a case, with the same contender, above 1 if `new` is better.
pub(super) fn compare_files(
    new: &Results,
    old: &Results,
    metric: Metric,
    case: &Case,
    contender: &str,
    confidence: f64,
) -> Option<Ratio> {
    let (a, b) = (
        metric.values(new, contender, case),
        metric.values(old, contender, case),
    );
    ratio_apart(&a, &b, confidence).map(|r| turned(r, metric.more_is_better(case)))
}

/// One contender beside another, over all cases that both were measured in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beats {
    /// The contender that is judged.
    pub a: String,
    /// The contender that `a` is compared with.
    pub b: String,
    /// Cases in which `a` is better.
    pub wins: usize,
    /// Cases in which it is worse.
    pub losses: usize,
    /// Cases that can be compared.
    pub of: usize,
}

/// Whether the pods of a contender were made on two nodes. Contenders are compared within a deployment.
fn is_across(contender: &str) -> bool {
    contender.split(' ').any(|word| word == "across")
}

/// All pairs of contenders of one deployment, those with most wins first; `margin` 0.1: by 10 % and more.
pub fn beats(results: &Results, metric: Metric, margin: f64, confidence: f64) -> Vec<Beats> {
    let (contenders, cases) = (results.contenders(), results.cases());
    let mut all = Vec::new();
    for (i, a) in contenders.iter().enumerate() {
        for b in contenders[i + 1..]
            .iter()
            .filter(|b| is_across(b) == is_across(a))
        {
            let verdicts: Vec<Verdict> = cases
                .iter()
                .filter_map(|c| compare(results, metric, c, a, b, confidence))
                .map(|r| verdict(&r, margin))
                .collect();
            let count = |v| verdicts.iter().filter(|x| **x == v).count();
            let (wins, losses) = (count(Verdict::Better), count(Verdict::Worse));
            let (a, b, wins, losses) = if wins >= losses {
                (a, b, wins, losses)
            } else {
                (b, a, losses, wins)
            };
            if !verdicts.is_empty() {
                all.push(Beats {
                    a: a.clone(),
                    b: b.clone(),
                    wins,
                    losses,
                    of: verdicts.len(),
                });
            }
        }
    }
    all.sort_by(|x, y| y.wins.cmp(&x.wins).then(x.losses.cmp(&y.losses)));
    all
}
