//! Each rule with text that breaks it and text that does not.

use super::super::prose::{blocks, sentences};
use super::*;

fn first(text: &str) -> Sentence {
    sentences(&blocks(&[(1, text)])).remove(0)
}

#[test]
fn openings_are_found() {
    for text in [
        "Who waits.",
        "What it has.",
        "That of the last.",
        "Of many.",
        "Nobody.",
        "what is left",
        "Where it is.",
        "None left.",
        "As above.",
    ] {
        assert!(opening(&first(text), false).is_some(), "{text}");
    }
    for text in [
        "Office hours.",
        "That is so.",
        "What is missing?",
        "`Who` is a name.",
        "Itself.",
        "Asks.",
    ] {
        assert!(opening(&first(text), false).is_none(), "{text}");
    }
    let later = &sentences(&blocks(&[(1, "A packet. Who waits. Where it is.")]))[1..];
    assert_eq!(later.iter().filter_map(|s| opening(s, false)).count(), 1);
}

#[test]
fn words_of_ours_are_found() {
    let one = [
        "It is dear.",
        "Nobody waits.",
        "There are so many.",
        "The packet goes on.",
        "It lies there.",
        "The worker tells it.",
        "The daemon says so.",
        "A train of segments.",
        "The way out.",
        "It stands in a row.",
        "In vain.",
    ];
    for text in one {
        assert_eq!(banned("flow", &first(text).words).len(), 1, "{text}");
    }
    let none = [
        "RFC 9293 says so.",
        "The specification says so.",
        "Section 3.2 says so.",
        "A bit stands for a port.",
        "They cannot be told apart.",
        "One address is told from another.",
        "A header may lie.",
        "A stand-in.",
        "Twice as many packets as there are.",
        "A task's doorbell.",
        "The way in which it does.",
        "A lie.",
        "A training.",
        "At most 3.",
        "It `goes on`.",
        "Set told_all.",
    ];
    for text in none {
        assert_eq!(banned("flow", &first(text).words), [""; 0], "{text}");
    }
    assert_eq!(banned("flow", &first("The verdict.").words).len(), 1);
    assert!(banned("conntrack", &first("The verdict.").words).is_empty());
}

#[test]
fn names_are_judged() {
    for bad in [
        "told",
        "is_told",
        "goes_on",
        "AnswerKind",
        "most",
        "l1_most",
        "way_in",
        "on_train",
    ] {
        assert!(name("flow", bad).is_some(), "{bad}");
    }
    for good in [
        "toldest",
        "at_most",
        "most_verbose",
        "go_next",
        "stands_for",
        "always_in",
        "Doorbell",
        "tells_a_from_b",
        "as_the_specification_says",
        "headers_that_lie",
    ] {
        assert_eq!(name("flow", good), None, "{good}");
    }
    assert!(
        constant("MOST").is_some() && constant("MOST_BYTES").is_some() && constant("WAIT_AT_MOST").is_some()
    );
    assert!(
        constant("MAX_BYTES").is_none() && constant("TOO_MANY").is_none() && constant("ALMOST").is_none()
    );
    assert!(vague("State").is_some() && vague("ConnState").is_none());
    assert!(type_name("conntrack", "Short").is_some() && type_name("flow", "Short").is_none());
    assert!(type_name("flow", "Way").is_some() && type_name("flow", "Turn").is_none());
}

#[test]
fn long_sentences_are_found() {
    let words = |n: usize| format!("{}.", vec!["word"; n].join(" "));
    assert!(long(&first(&words(25))).is_empty());
    assert_eq!(long(&first(&words(26))).len(), 1);
    assert_eq!(long(&first("One: two: three.")).len(), 1);
    assert!(long(&first("SAFETY: one: two.")).is_empty());
    assert!(long(&first("`a`: one; `b`: two.")).is_empty());
    assert!(long(&first("See a::b::c: one.")).is_empty());
}
