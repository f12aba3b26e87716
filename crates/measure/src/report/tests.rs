//! Reports of made-up results with known contents.

use super::*;
use crate::results::tests::{case, series};
use crate::results::{Plan, Results};

/// Fifteen cases. `fast` is twice as good as `slow` in 13 of them, equal in one, worse in one. The machine's
/// speed varies by a factor of three from round to round.
fn made_up() -> Results {
    let mut results = Results {
        name: "made-up.jsonl".into(),
        machines: vec![[("kernel".to_owned(), "<6>".to_owned())].into()],
        ..Results::default()
    };
    for c in 1..=15 {
        for (round, mood) in [(1, 1.0), (2, 3.0), (3, 1.7)] {
            let times = match c {
                14 => 1.0,
                15 => 0.5,
                _ => 2.0,
            };
            let jitter = 1.0 + 0.01 * f64::from(round % 2);
            results
                .series
                .push(series("slow", &case(c), round, 1000.0 * mood));
            results
                .series
                .push(series("fast", &case(c), round, 1000.0 * mood * times * jitter));
        }
    }
    results
}

#[test]
fn the_known_winner() {
    let results = made_up();
    let all = beats(&results, Metric::Speed, 0.1, 0.95);
    let expected = Beats {
        a: "fast".into(),
        b: "slow".into(),
        wins: 13,
        losses: 1,
        of: 15,
    };
    assert_eq!(all, [expected]);
    let text = text(&results, &[Metric::Speed, Metric::P99], 0.1);
    assert!(
        text.contains("fast beats slow in 13 of 15 cases by >= 10 %, and is beaten in 1"),
        "{text}"
    );
    // A larger margin than the difference.
    assert_eq!(beats(&results, Metric::Speed, 1.5, 0.95)[0].wins, 0);
    // Latency was made the same.
    let same = &beats(&results, Metric::P99, 0.1, 0.95)[0];
    assert_eq!((same.wins, same.losses, same.of), (0, 0, 15));
    // Pods on one node are not compared with pods on two.
    let mut apart = made_up();
    for s in apart.series.iter_mut().filter(|s| s.contender == "slow") {
        s.contender = "slow across".into();
    }
    assert!(beats(&apart, Metric::Speed, 0.1, 0.95).is_empty());
    let r = compare(&results, Metric::Speed, &case(1), "slow", "fast", 0.95).unwrap();
    assert!((r.ratio - 0.497).abs() < 0.01, "{r:?}");
}

#[test]
fn a_difference_within_the_noise_is_none() {
    let mut results = Results::default();
    for (round, v) in [(1, 150.0), (2, 80.0), (3, 140.0)] {
        results.series.push(series("a", &case(1), round, v));
        results.series.push(series("b", &case(1), round, 100.0));
    }
    let b = &beats(&results, Metric::Speed, 0.1, 0.95)[0];
    assert_eq!((b.wins, b.losses, b.of), (0, 0, 1));
}

#[test]
fn pairs_that_do_not_differ_are_one_line() {
    let mut results = Results::default();
    for contender in 0..12 {
        for (round, v) in [(1, 100.0), (2, 101.0), (3, 99.0)] {
            let name = format!("c{contender}");
            results.series.push(series(&name, &case(4), round, v));
        }
    }
    let text = text(&results, &[Metric::Speed], 0.1);
    assert!(
        text.contains("none of 66 pairs differs surely by >= 10 % in any case"),
        "{text}"
    );
    assert!(!text.contains(" in 0 of "), "{text}");
    // Each contender has its own colour, and one number of connections gives columns, not dots.
    let plots = plots(&results);
    let (_, speed) = plots.iter().find(|(name, _)| name.starts_with("speed")).unwrap();
    let fills: std::collections::BTreeSet<&str> =
        speed.split("fill=\"#").skip(1).map(|rest| &rest[..6]).collect();
    assert!(
        fills.len() == 12 && speed.contains("4 connections") && !speed.contains("<circle"),
        "{speed}"
    );
}

#[test]
fn an_interval_that_says_nothing_is_not_printed() {
    let of = |low, high| {
        super::bounds(&crate::stats::Ratio {
            ratio: 1.0,
            low,
            high,
        })
    };
    assert_eq!(of(0.9, 1.1), "0.90 to 1.10");
    assert!(of(0.0, 220_453_987.83).contains("too few or too noisy"));
}

#[test]
fn an_upgrade_is_judged() {
    let old = made_up();
    let mut new = old.clone();
    new.name = "new.jsonl".into();
    for s in &mut new.series {
        // Series that were measured at other times, without the machine's changes of speed.
        let steady = if s.round == 2 { 1.01 } else { 1.0 };
        s.transactions_per_s = if s.contender == "slow" && s.case.connections == 3 {
            100.0 * steady
        } else {
            2000.0 * steady
        };
    }
    let (text, worse, all) = against(&new, &old, Metric::Speed, 0.1);
    assert!(all > 0);
    assert_eq!(worse, 1, "{text}");
    assert!(
        text.contains("slow, rr 200x1000 c3 tcp4") && text.contains("WORSE"),
        "{text}"
    );
    let (text, worse, all) = against(&new, &Results::default(), Metric::Speed, 0.1);
    assert_eq!(all, 0);
    assert!(
        worse == 0 && text.contains("no contender and case in common"),
        "{text}"
    );
}

#[test]
fn a_page_is_whole_and_alone() {
    let mut results = made_up();
    results.unavailable.push(("vduse".into(), "<no module>".into()));
    let page = page(&results, 0.1);
    assert!(page.ends_with("</html>\n") && page.contains("&lt;no module&gt;") && page.contains("&lt;6&gt;"));
    // The page loads no other resource.
    for word in ["<script", "src=", "href=", "url("] {
        assert!(!page.contains(word), "{word}");
    }
    let plots = plots(&results);
    for kind in ["latency-p50", "speed", "efficiency-rr", "ecdf"] {
        assert!(plots.iter().any(|(name, _)| name.starts_with(kind)), "{kind}");
    }
    for (name, plot) in &plots {
        assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n"), "{name}");
        assert!(!plot.contains("NaN") && !plot.contains("inf"), "{name}");
        let (open, close) = (plot.matches("<text").count(), plot.matches("</text>").count());
        assert_eq!(open, close, "{name}");
    }
}

#[test]
fn what_is_missing_is_said() {
    let mut results = made_up();
    results.plan = Some(Plan {
        contenders: vec!["slow".into(), "fast".into(), "never".into()],
        cases: vec![case(1)],
        seconds: 1.0,
        warmup_s: 0.0,
        least_rounds: 3,
        most_rounds: 3,
        confidence: 0.95,
        precision: 0.05,
    });
    for s in &mut results.series {
        s.others_share = 0.5;
    }
    let text = text(&results, &[Metric::Speed], 0.1);
    assert!(
        text.contains("too noisy") && text.contains("30 of 30 figures"),
        "{text}"
    );
    assert!(!text.contains("never"), "{text}");
    // Reports of empty results.
    assert!(!super::text(&Results::default(), &[Metric::Speed], 0.1).contains("NaN"));
    assert!(!super::page(&Results::default(), 0.1).contains("NaN"));
}
