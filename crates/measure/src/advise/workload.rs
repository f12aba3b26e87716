//! Recommends an attachment for a workload from results: its gain, the measurements behind it, its drawbacks,
//! and open questions.
//!
//! Only measured attachments are recommended. For a workload that was not measured itself, similar cases are
//! used and named.

use crate::attach::{ATTACHMENTS, Attachment};
use crate::load::{Pattern, Transport};
use crate::report::{Metric, bounds, compare, figure};
use crate::results::{Case, Results};
use crate::runner::NOISY_SHARE;
use crate::stats::{interval, mean};
use std::fmt::Write as _;

/// Properties of an attachment besides its speed.
pub struct Traits {
    /// The attachment.
    pub attachment: Attachment,
    /// Whether NetworkPolicy holds for its packets.
    pub policy: bool,
    /// Whether a virtual machine on it can be moved to another host while it runs.
    pub migration: bool,
    /// Whether many pods can share one device of the node.
    pub many: bool,
    /// Drawbacks of the attachment.
    pub lost: &'static str,
    /// The document that the drawbacks are from.
    pub source: &'static str,
}

impl std::fmt::Debug for Traits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Traits({})", self.attachment.name())
    }
}

/// All attachments.
#[rustfmt::skip]
pub const TRAITS: [Traits; 9] = [
    Traits { attachment: Attachment::HostDevice, policy: false, migration: false, many: false,
        lost: "no NetworkPolicy: packets pass the node by; one pod per device; the device is gone from the node",
        source: "manual: CNI plug-in host-device" },
    Traits { attachment: Attachment::Veth, policy: true, migration: false, many: true,
        lost: "nothing: it is what a primary network does", source: "manual: CNI plug-in ptp" },
    Traits { attachment: Attachment::Bridge, policy: true, migration: false, many: true,
        lost: "policy only by netfilter on the bridge (br_netfilter)", source: "manual: CNI plug-in bridge" },
    Traits { attachment: Attachment::Macvlan, policy: false, migration: false, many: true,
        lost: "no NetworkPolicy: packets pass the node's netfilter by; pods and their node do not reach each other; an address of its own per pod on the wire",
        source: "manual: CNI plug-in macvlan" },
    Traits { attachment: Attachment::IpvlanL2, policy: false, migration: false, many: true,
        lost: "no NetworkPolicy; all pods have the node's MAC address: no DHCP by MAC", source: "manual: kernel, ipvlan.rst" },
    Traits { attachment: Attachment::IpvlanL3, policy: false, migration: false, many: true,
        lost: "no NetworkPolicy; no broadcast or multicast; routes on all nodes", source: "manual: kernel, ipvlan.rst" },
    Traits { attachment: Attachment::Internal, policy: true, migration: false, many: true,
        lost: "a part of a processor per node for the switch's workers", source: "docs/internal-ports.md, docs/workers.md" },
    Traits { attachment: Attachment::VhostUser, policy: true, migration: true, many: true,
        lost: "memory of the guest is shared with the switch; for virtual machines, or programs that drive rings themselves",
        source: "docs/vhost-user.md" },
    Traits { attachment: Attachment::Vduse, policy: true, migration: false, many: true,
        lost: "one queue pair; the node's kernel needs VDUSE, and the plug-in CAP_SYS_ADMIN in the first namespace",
        source: "kernel: Documentation/userspace-api/vduse.rst" },
];

/// A workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Pattern, sizes and number of connections.
    pub case: Case,
    /// Whether the workload's pods are on two nodes.
    pub across: bool,
    /// Whether NetworkPolicy has to hold.
    pub policy: bool,
    /// Whether the workload's virtual machines are migrated while they run.
    pub migration: bool,
    /// Number of pods on a node.
    pub pods: usize,
    /// The metric to optimize.
    pub metric: Metric,
}

/// The attachment in a contender's name: `veth across rfs=on`.
fn attachment(contender: &str) -> Option<Attachment> {
    contender.split(' ').next()?.parse().ok()
}

fn traits(a: Attachment) -> &'static Traits {
    TRAITS.iter().find(|t| t.attachment == a).unwrap_or(&TRAITS[1])
}

/// The reason why a workload cannot use an attachment.
fn refused(t: &Traits, w: &Workload) -> Option<&'static str> {
    if w.policy && !t.policy {
        return Some("NetworkPolicy does not hold for it");
    }
    if w.migration && !t.migration {
        return Some("a guest on it cannot be migrated while it runs");
    }
    (w.pods > 1 && !t.many).then_some("each pod needs a device of its own")
}

/// Distance between two cases; `None`: they cannot be compared.
fn distance(a: &Case, b: &Case) -> Option<f64> {
    let kind = |c: &Case| (c.pattern, c.transport, c.rate_per_s.is_some());
    if kind(a) != kind(b) {
        return None;
    }
    let log = |x: usize, y: usize| ((x.max(1) as f64) / (y.max(1) as f64)).ln().abs();
    let family = if a.family == b.family { 0.0 } else { 0.1 };
    let sizes = log(a.request, b.request) + log(a.response, b.response);
    Some(log(a.connections, b.connections) + sizes / 2.0 + family)
}

/// The shortest command that would measure the workload.
fn run(w: &Workload) -> String {
    let c = &w.case;
    let (pattern, sizes) = match c.pattern {
        Pattern::Rr => ("rr", format!("--sizes {}x{}", c.request, c.response)),
        Pattern::Write => ("write", format!("--stream-sizes {}", c.request)),
        Pattern::Read => ("read", format!("--stream-sizes {}", c.request)),
    };
    let names: Vec<&str> = ATTACHMENTS
        .iter()
        .filter(|(_, a)| refused(traits(*a), w).is_none())
        .map(|(n, _)| *n)
        .collect();
    let seconds = names.len() as f64 * 3.0 * 2.5;
    let transport = if c.transport == Transport::Udp {
        " --transport udp"
    } else {
        ""
    };
    let rate = c.rate_per_s.map_or(String::new(), |r| format!(" --rate {r}"));
    format!(
        "  heddle measure --between new --attachments {} --deployments {} --pattern {pattern} --connections {} {sizes}\
         {transport}{rate} --family {} --out workload.jsonl\n  (about {seconds:.0} s; then: heddle advise --results \
         workload.jsonl with the same workload)\n",
        names.join(","),
        if w.across { "across" } else { "same" },
        c.connections,
        c.family
    )
}

/// The advice as text.
pub fn advise(results: Option<&Results>, w: &Workload) -> String {
    let mut out = format!(
        "Workload: {}, {}{}{}, {} pods of a node\n",
        w.case.name(),
        if w.across { "across nodes" } else { "on one node" },
        if w.policy { ", with NetworkPolicy" } else { "" },
        if w.migration { ", moved while it runs" } else { "" },
        w.pods
    );
    let Some(results) = results else {
        return out
            + "Nothing was measured here, so nothing is advised. The shortest run that decides:\n"
            + &run(w);
    };
    let confidence = results.plan.as_ref().map_or(0.95, |p| p.confidence);
    // The nearest case.
    let mut near: Vec<(f64, Case)> = results
        .cases()
        .into_iter()
        .filter_map(|c| Some((distance(&w.case, &c)?, c)))
        .collect();
    near.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some((far, case)) = near.first() else {
        return out
            + "Nothing of the kind was measured, so nothing is advised. The shortest run that decides:\n"
            + &run(w);
    };
    let mut candidates = Vec::new();
    for contender in results.contenders() {
        let Some(a) = attachment(&contender) else { continue };
        if contender.split(' ').any(|word| word == "across") != w.across {
            continue;
        }
        if let Some(why) = refused(traits(a), w) {
            let _ = writeln!(out, "  left out: {contender}: {why} ({})", traits(a).source);
            continue;
        }
        let values = w.metric.values(results, &contender, case);
        if !values.is_empty() {
            candidates.push((contender, a, values));
        }
    }
    let more = w.metric.more_is_better(case);
    candidates.sort_by(|x, y| {
        let (x, y) = (mean(&x.2), mean(&y.2));
        if more { y.total_cmp(&x) } else { x.total_cmp(&y) }
    });
    let Some((best, a, values)) = candidates.first() else {
        return out
            + "No attachment that may be used was measured for it. The shortest run that decides:\n"
            + &run(w);
    };
    let _ = writeln!(
        out,
        "Advice: {best}\n  measured: {} in {}: {} ({} series{})",
        w.metric.title(),
        case.name(),
        figure(interval(values, confidence).mean),
        values.len(),
        if *far > 0.0 {
            "; the nearest case to the workload, not the workload itself"
        } else {
            ""
        }
    );
    for (other, ..) in candidates.iter().skip(1) {
        let line = match compare(results, w.metric, case, best, other, confidence) {
            Some(r) if r.low > 1.0 => {
                format!("{:.2} times as good as {other} ({})", r.ratio, bounds(&r))
            }
            Some(r) => format!(
                "not surely better than {other}: {:.2} times ({})",
                r.ratio,
                bounds(&r)
            ),
            None => format!("{other} was measured too seldom to compare"),
        };
        let _ = writeln!(out, "  {line}");
    }
    let settings: Vec<&str> = best.split(' ').filter(|word| word.contains('=')).collect();
    if !settings.is_empty() {
        let _ = writeln!(
            out,
            "  settings: {} on the devices of both pods",
            settings.join(", ")
        );
    }
    let t = traits(*a);
    let _ = writeln!(out, "Lost with it: {} ({})", t.lost, t.source);
    out += "Not known:\n";
    for (name, a) in ATTACHMENTS {
        let measured = results
            .contenders()
            .iter()
            .any(|c| attachment(c) == Some(a) && c.split(' ').any(|word| word == "across") == w.across);
        if !measured && refused(traits(a), w).is_none() {
            let wanted = if w.across {
                format!("{name} across")
            } else {
                name.to_owned()
            };
            let why = results.unavailable.iter().find(|(c, _)| *c == wanted);
            let why = why.map_or("it was not selected", |(_, why)| why.as_str());
            let _ = writeln!(out, "  {wanted}: not measured ({why})");
        }
    }
    if w.pods > 2 {
        let _ = writeln!(out, "  how {} pods get on at once: two were measured", w.pods);
    }
    if w.across {
        out += "  the effect of network cards: nodes were joined by a veth pair, unless end points on hosts were named\n";
    }
    let others = mean(&results.series.iter().map(|s| s.others_share).collect::<Vec<_>>());
    if others > NOISY_SHARE {
        let _ = writeln!(
            out,
            "  small differences: other programs took {:.0} % of the processors",
            others * 100.0
        );
    }
    if *far > 0.0 {
        let _ = writeln!(
            out,
            "  the workload itself; the shortest run that decides:\n{}",
            run(w).trim_end()
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{case, series};

    fn workload(connections: usize) -> Workload {
        Workload {
            case: case(connections),
            across: false,
            policy: false,
            migration: false,
            pods: 10,
            metric: Metric::Speed,
        }
    }

    /// host-device is fastest, then macvlan, then internal, veth last; across it is the other way round.
    fn results() -> Results {
        let mut results = Results::default();
        for round in 1..=4 {
            let mood = 1.0 + f64::from(round);
            for (name, speed) in [
                ("host-device", 50.0),
                ("macvlan", 40.0),
                ("internal", 30.0),
                ("veth", 10.0),
                ("veth across", 99.0),
                ("my own pair", 1000.0),
            ] {
                results.series.push(series(name, &case(50), round, speed * mood));
            }
        }
        results.unavailable.push(("vduse".into(), "no module".into()));
        results
    }

    fn advice(w: &Workload) -> String {
        let text = advise(Some(&results()), w);
        text.lines()
            .find_map(|l| l.strip_prefix("Advice: "))
            .unwrap_or(&text)
            .to_owned()
    }

    #[test]
    fn what_is_needed_decides() {
        let w = workload(50);
        assert_eq!(advice(&w), "macvlan");
        assert_eq!(advice(&Workload { pods: 1, ..w.clone() }), "host-device");
        assert_eq!(
            advice(&Workload {
                policy: true,
                ..w.clone()
            }),
            "internal"
        );
        assert_eq!(
            advice(&Workload {
                across: true,
                ..w.clone()
            }),
            "veth across"
        );
        let none = advise(
            Some(&results()),
            &Workload {
                migration: true,
                ..w.clone()
            },
        );
        assert!(
            none.contains("shortest run") && none.contains("--attachments vhost-user "),
            "{none}"
        );
    }

    #[test]
    fn what_is_known_and_what_is_not() {
        let text = advise(Some(&results()), &workload(50));
        for part in [
            "1.33 times as good as internal (1.33 to 1.33)",
            "4.00 times as good as veth",
            "vduse: not measured (no module)",
            "ipvlan-l2: not measured (it was not selected)",
            "how 10 pods get on at once",
            "left out: host-device: each pod needs a device of its own",
            "no NetworkPolicy",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("nearest case"), "{text}");
        let text = advise(Some(&results()), &workload(60));
        assert!(
            text.contains("the nearest case to the workload") && text.contains("--connections 60"),
            "{text}"
        );
    }

    #[test]
    fn without_measurements_nothing_is_advised() {
        for text in [
            advise(None, &workload(50)),
            advise(Some(&Results::default()), &workload(50)),
        ] {
            assert!(
                text.contains("nothing is advised") && text.contains("heddle measure --between new"),
                "{text}"
            );
            assert!(!text.contains("Advice"), "{text}");
        }
    }
}
