//! One translation as text: for `ofproto/trace`, and for the log after a failure.

use super::input::Input;
use super::report::Report;
use super::run::{Outcome, run};
use heddle_datapath_api::{PortNo, Translation, format_actions};
use heddle_flow::text::DEFAULT_PRIORITY;
use heddle_flow::{FlowKey, Match};

/// Names of datapath ports.
type PortNoNames<'a> = &'a dyn Fn(PortNo) -> Option<String>;

/// The trace of a translation that has failed just now: it is run again, without its effects.
pub(super) fn explain(input: &Input<'_>) -> String {
    let mut report = Report::default();
    let mut translation = Translation::default();
    let again = Input {
        learn: false,
        ..*input
    };
    let outcome = run(&again, Some(&mut report), &mut translation);
    let show = |m: &Match| m.text(None, DEFAULT_PRIORITY).to_string();
    text(input.key, &outcome, &report, &translation, None, &show)
}

/// The text of a translation of `key`. `show` formats keys and masks; `port_names` are for datapath ports.
pub(crate) fn text(
    key: &FlowKey,
    outcome: &Outcome,
    report: &Report,
    translation: &Translation,
    port_names: Option<PortNoNames<'_>>,
    show: &dyn Fn(&Match) -> String,
) -> String {
    let last = if outcome.initial == outcome.last {
        "unchanged".to_owned()
    } else {
        show(&outcome.last.shown())
    };
    let mut megaflow = Match {
        key: *key,
        mask: outcome.shown,
    };
    megaflow.normalize();
    let actions = match outcome.error {
        // Whatever the reason, nothing happens to the packet.
        Some(_) => "drop".to_owned(),
        None => format_actions(&translation.actions, port_names),
    };
    let mut text = format!(
        "Flow: {}\n{}\nFinal flow: {last}\nMegaflow: {}\nDatapath actions: {actions}",
        show(&outcome.initial.shown()),
        report.text(),
        show(&megaflow),
    );
    let reasons = [
        (outcome.is_bfd, "Consists of BFD packets"),
        (outcome.is_lacp, "Consists of LACP packets"),
        (outcome.is_slow, "Uses action(s) not supported by datapath"),
    ];
    let reasons = reasons.iter().filter(|(is, _)| *is).map(|(_, why)| why);
    for (i, why) in reasons.enumerate() {
        if i == 0 {
            text.push_str("\nThis flow is handled by the userspace slow path because it:");
        }
        text.push_str(&format!("\n  - {why}."));
    }
    if let Some(error) = outcome.error {
        text.push_str(&format!(
            "\nTranslation failed ({}), packet is dropped.\n",
            error.text()
        ));
    }
    text
}
