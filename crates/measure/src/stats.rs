//! Statistics of few, noisy series: means with confidence intervals, ratios of series that were measured in
//! turns.
//!
//! Series are few (3 to 30), so intervals are Student's. Two contenders that alternate share the machine's
//! changes of speed. So the ratio of each pair of neighbours is taken, as logarithms, so that "twice" and
//! "half" weigh the same. An interval is the precision of the mean on *this* machine on *this* day, nothing
//! more.

use serde::{Deserialize, Serialize};

/// A mean with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Mean of all series.
    pub mean: f64,
    /// Half the width; infinite with fewer than two series.
    pub half: f64,
}

impl Interval {
    /// Half the width as a share of the mean.
    pub fn relative(&self) -> f64 {
        if self.half == 0.0 {
            0.0
        } else {
            self.half / self.mean.abs()
        }
    }
}

/// A ratio of two contenders, with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Geometric mean.
    pub ratio: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// The arithmetic mean; 0 for no values.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.iter().sum::<f64>() / values.len() as f64
}

/// The sample's standard deviation; 0 for fewer than two values.
pub fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let m = mean(values);
    let squares: f64 = values.iter().map(|v| (v - m) * (v - m)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// The middle value, or the mean of the two in the middle; 0 for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (n, m) if n % 2 == 1 => sorted[m],
        (_, m) => f64::midpoint(sorted[m - 1], sorted[m]),
    }
}

/// The mean of `values`, with a confidence of `confidence` (0.95).
pub fn interval(values: &[f64], confidence: f64) -> Interval {
    let n = values.len();
    let half = if n < 2 {
        f64::INFINITY
    } else {
        t_quantile(f64::midpoint(1.0, confidence), (n - 1) as f64) * deviation(values) / (n as f64).sqrt()
    };
    Interval {
        mean: mean(values),
        half,
    }
}

/// Ratio of the first to the second value of each pair. Pairs with values that are not above zero are left
/// out. `None`: fewer than two pairs are left.
pub fn ratio(pairs: &[(f64, f64)], confidence: f64) -> Option<Ratio> {
    let logs: Vec<f64> = pairs
        .iter()
        .filter(|(a, b)| *a > 0.0 && *b > 0.0 && a.is_finite() && b.is_finite())
        .map(|(a, b)| (a / b).ln())
        .collect();
    if logs.len() < 2 {
        return None;
    }
    let i = interval(&logs, confidence);
    Some(Ratio {
        ratio: i.mean.exp(),
        low: (i.mean - i.half).exp(),
        high: (i.mean + i.half).exp(),
    })
}

/// Ratio of the values of `a` to those of `b`, measured at different times: Welch's interval of the
/// difference of logarithms. `None`: either has fewer than two above zero.
pub fn ratio_apart(a: &[f64], b: &[f64], confidence: f64) -> Option<Ratio> {
    let logs = |values: &[f64]| -> Vec<f64> {
        let above = values.iter().filter(|v| **v > 0.0 && v.is_finite());
        above.map(|v| v.ln()).collect()
    };
    let (a, b) = (logs(a), logs(b));
    if a.len() < 2 || b.len() < 2 {
        return None;
    }
    let of = |v: &[f64]| deviation(v).powi(2) / v.len() as f64;
    let (va, vb) = (of(&a), of(&b));
    let difference = mean(&a) - mean(&b);
    let freedom = (va + vb).powi(2)
        / (va * va / (a.len() - 1) as f64 + vb * vb / (b.len() - 1) as f64).max(f64::MIN_POSITIVE);
    let half = if va + vb == 0.0 {
        0.0
    } else {
        t_quantile(f64::midpoint(1.0, confidence), freedom.max(1.0)) * (va + vb).sqrt()
    };
    Some(Ratio {
        ratio: difference.exp(),
        low: (difference - half).exp(),
        high: (difference + half).exp(),
    })
}

/// The value below which Student's t with `freedom` degrees lies with probability `p`, 0.5 ≤ p < 1.
pub fn t_quantile(p: f64, freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 2.0);
    while t_distribution(high, freedom) < p && high < 1e9 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if t_distribution(middle, freedom) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// P(T < t) for t ≥ 0, by the incomplete beta function.
fn t_distribution(t: f64, freedom: f64) -> f64 {
    let x = freedom / (freedom + t * t);
    1.0 - 0.5 * incomplete_beta(freedom / 2.0, 0.5, x)
}

/// The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast below the mean; above it the other side is taken.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    const TINY: f64 = 1e-300;
    let (mut c, mut d) = (1.0, 1.0 - (a + b) * x / (a + 1.0));
    d = 1.0 / if d.abs() < TINY { TINY } else { d };
    let mut f = d;
    for m in 1..300 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        for term in [even, odd] {
            d = 1.0 + term * d;
            d = 1.0 / if d.abs() < TINY { TINY } else { d };
            c = 1.0 + term / c;
            c = if c.abs() < TINY { TINY } else { c };
            f *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-14 {
            break;
        }
    }
    front * f
}

/// Logarithm of the gamma function for x > 0: Stirling's series, after steps up to where it is exact.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut down) = (x, 0.0);
    while x < 12.0 {
        down += x.ln();
        x += 1.0;
    }
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - down
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(a: f64, b: f64, by: f64) {
        assert!((a - b).abs() <= by, "{a} is not {b} ± {by}");
    }

    /// Printed tables of Student's t, two-sided 95 and 99 %.
    #[test]
    fn quantiles_are_those_of_tables() {
        for (freedom, t95, t99) in [
            (1.0, 12.706, 63.657),
            (2.0, 4.303, 9.925),
            (4.0, 2.776, 4.604),
            (9.0, 2.262, 3.250),
            (29.0, 2.045, 2.756),
            (1000.0, 1.962, 2.581),
        ] {
            near(t_quantile(0.975, freedom), t95, 0.001);
            near(t_quantile(0.995, freedom), t99, 0.001);
        }
        near(t_quantile(0.5, 5.0), 0.0, 1e-9);
    }

    #[test]
    fn known_samples() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        near(mean(&values), 5.0, 1e-12);
        near(deviation(&values), 2.138_089_935, 1e-8);
        near(median(&values), 4.5, 1e-12);
        near(median(&[3.0, 1.0, 2.0]), 2.0, 1e-12);
        // 2.3646 * 2.13809 / sqrt(8)
        near(interval(&values, 0.95).half, 1.787_5, 1e-3);
        assert_eq!(interval(&[1.0], 0.95).half, f64::INFINITY);
        assert_eq!(interval(&[7.0, 7.0, 7.0], 0.95).relative(), 0.0);
        assert_eq!((mean(&[]), median(&[]), deviation(&[])), (0.0, 0.0, 0.0));
    }

    #[test]
    fn known_ratios() {
        // Twice as much, while the machine's speed falls to a fifth.
        let pairs = [(20.0, 10.0), (10.0, 5.0), (4.0, 2.0)];
        let r = ratio(&pairs, 0.95).unwrap();
        near(r.ratio, 2.0, 1e-12);
        near(r.high - r.low, 0.0, 1e-9);
        // Twice and half make one.
        let r = ratio(&[(2.0, 1.0), (1.0, 2.0)], 0.95).unwrap();
        near(r.ratio, 1.0, 1e-12);
        assert!(r.low < 0.01 && r.high > 100.0);
        assert_eq!(ratio(&[(1.0, 0.0), (2.0, 1.0)], 0.95), None);
    }

    /// Welch (1947) for [3, 4, 5] and [1, 2, 3], as logarithms: t is 2.449, 4 degrees of freedom.
    #[test]
    fn known_ratio_of_samples_apart() {
        let (a, b) = (
            [3.0_f64, 4.0, 5.0].map(f64::exp),
            [1.0_f64, 2.0, 3.0].map(f64::exp),
        );
        let r = ratio_apart(&a, &b, 0.95).unwrap();
        near(r.ratio.ln(), 2.0, 1e-12);
        near(r.high.ln() - r.ratio.ln(), 2.776 * (2.0_f64 / 3.0).sqrt(), 1e-3);
        assert_eq!(ratio_apart(&[1.0], &a, 0.95), None);
        let same = ratio_apart(&[2.0, 2.0], &[1.0, 1.0], 0.95).unwrap();
        near(same.ratio, 2.0, 1e-12);
        near(same.low, same.high, 1e-12);
    }

    /// Numbers from 0 to 1 that look random.
    fn noise(seed: &mut u64) -> f64 {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// For samples with a known mean, the share of intervals that contain it is the confidence.
    #[test]
    fn intervals_hold_what_they_claim() {
        let mut seed = 1;
        for (confidence, n) in [(0.95, 5), (0.8, 5), (0.95, 20)] {
            let holds = (0..4000)
                .filter(|_| {
                    let sample: Vec<f64> = (0..n)
                        .map(|_| (0..12).map(|_| noise(&mut seed)).sum::<f64>() + 94.0)
                        .collect();
                    let i = interval(&sample, confidence);
                    (i.mean - 100.0).abs() <= i.half
                })
                .count();
            near(holds as f64 / 4000.0, confidence, 0.02);
        }
    }

    proptest! {
        #[test]
        fn a_ratio_turned_round(pairs in proptest::collection::vec((0.1..1e6_f64, 0.1..1e6_f64), 2..20)) {
            let there = ratio(&pairs, 0.95).unwrap();
            let turned: Vec<_> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
            let back = ratio(&turned, 0.95).unwrap();
            prop_assert!((there.ratio * back.ratio - 1.0).abs() < 1e-9);
            prop_assert!(there.low <= there.ratio && there.ratio <= there.high);
        }
    }
}
