//! The rules: openings that no sentence has, and words of ours with the field's words for them.

use super::prose::Sentence;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The longest sentence, in words.
const MAX_SENTENCE_WORDS: usize = 25;

/// Openings that no sentence has.
const NO_SENTENCE: &[&str] = &["who", "what", "that+of", "of", "nobody", "somebody"];

/// Further openings, which no line of a comment has.
const NO_COMMENT: &[&str] = &[
    "where",
    "which",
    "how",
    "its",
    "it",
    "by",
    "as",
    "so",
    "none",
    "nothing",
    "something",
    "those",
];

/// Words and phrases, with what to write.
const PHRASES: &[(&str, &str)] = &[
    ("dear/dearer/dearest", "expensive"),
    ("barren", "empty poll"),
    ("lively/livelier", "busy"),
    ("vain", "wasted"),
    ("courtesy", "yield"),
    ("doomed", "evicted, expired"),
    ("young+again", "refreshed"),
    ("nobody/somebody/whoever", "name the thread, peer or caller"),
    ("so+many/as+many", "the number of, the maximum number of"),
    ("stand/stands/stood/standing", "is stored in, is at"),
    ("lie/lies/lay/lain/lying", "is stored in, is at"),
    (
        "go+on/goes+on/went+on/gone+on/going+on",
        "continue, be forwarded, recirculate",
    ),
    ("tell/tells/told/telling/say/says/said/saying", "notify, report"),
    ("ask/asks/asked/asking", "request, query"),
    ("answer/answers/answered/answering", "reply"),
    ("circle/circles", "import cycle"),
    ("door/doors", "target"),
    ("train/trains", "GSO packet"),
    ("way+out/ways+out", "egress, output port"),
    ("way+in/ways+in", "ingress, input port"),
    ("unsteady", "flaky"),
    ("patience", "timeout"),
    ("sweeper/sweepers", "connection expiry thread"),
    ("verdict/verdicts", "cached translation"),
    ("doubts", "config warnings"),
];

/// Words of places: `lies` before one of them is about a place, otherwise about the truth.
const PLACES: &[&str] = &[
    "in",
    "at",
    "on",
    "there",
    "where",
    "between",
    "behind",
    "before",
    "below",
    "above",
    "within",
    "outside",
    "elsewhere",
    "inside",
    "under",
    "beside",
    "near",
    "next",
    "side",
    "one",
    "together",
    "here",
    "across",
    "apart",
    "directly",
];

/// Neighbours that make a phrase right: phrases, words before, words after.
const RIGHT: &[(&str, &[&str], &[&str])] = &[
    // "The bit stands for a port": common English, and no place.
    ("stand/stands/stood/standing", &[], &["for", "alone", "still"]),
    ("tell/tells/told/telling", &[], &["from"]),
    // A document says something; programs do not.
    ("say/says/said", DOCUMENTS, &[]),
    ("say/says/said", &["is to"], &[]),
    ("way+in/ways+in", &[], &["which", "that"]),
];

const DOCUMENTS: &[&str] = &[
    "rfc",
    "specification",
    "specifications",
    "standard",
    "standards",
    "section",
    "page",
    "pages",
    "manual",
    "documentation",
    "document",
    "readme",
    "comment",
    "guide",
    "vswitch",
    "architecture",
    "license",
    "you",
    "we",
];

/// Words that are the field's in a group or file: word, group, reason.
const FIELD: &[(&str, &str, &str)] = &[
    ("verdict", "conntrack", "word of `ct`"),
    ("verdict", "offload", "word of eBPF"),
    ("verdict", "measure", "word of statistics"),
    ("verdict", "tests", "word of tests"),
];

/// Parts of names of code, with what to write.
const PARTS: &[(&str, &str)] = &[
    ("dear/dearer/dearest", "expensive"),
    ("barren", "empty"),
    ("lively", "busy"),
    ("vain", "wasted"),
    ("courtesy", "yield"),
    ("young", "refreshed"),
    ("doomed", "evicted, expired"),
    ("nobody/somebody/whoever", "name the thread, peer or caller"),
    ("so+many/as+many", "count, max"),
    ("stand/stands", "at, index"),
    ("go+on/goes+on/going+on", "continue, recirculate"),
    ("tell/tells/told/say/says/said", "notify, report"),
    ("ask/asks/asked", "request, query"),
    ("answer/answers/answered", "reply"),
    ("door/doors", "target"),
    ("train/trains", "gso"),
    ("way+out", "egress"),
    ("way+in", "ingress"),
    ("unsteady", "flaky"),
    ("patience", "timeout"),
    ("sweeper", "expiry"),
    ("verdict/verdicts", "cached translation"),
    ("doubts", "warnings"),
    ("owed", "pending"),
    ("world", "snapshot"),
];

/// Names that fit any type.
const VAGUE: &[&str] = &["State", "Entry", "Place", "Known", "Held", "Found", "Told"];

/// Names of types with the field's names. An empty list of crates: all.
const TYPES: &[(&str, &[&str], &str)] = &[
    ("Turn", &["datapath"], "QueueScheduler"),
    ("Peers", &["datapath"], "MissPolicer"),
    ("Look", &["datapath"], "PollBackoff"),
    ("Watch", &["flow-cache", "datapath"], "ValidityGroup"),
    (
        "Note",
        &["flow-cache", "datapath"],
        "RuleChange, RevalidatorEvent",
    ),
    ("Findings", &["datapath"], "RevalidatorFindings"),
    ("Kept", &[], "retained, of what"),
    ("Spare", &[], "free list"),
    ("Seen", &["flow-cache", "datapath", "tunnel"], "OuterHeaderCache"),
    ("Again", &["flow-cache", "datapath"], "same-key shortcut"),
    ("Only", &["flow-cache", "datapath"], "single-entry shortcut"),
    ("Common", &["flow-cache", "datapath"], "common entry"),
    ("Short", &["conntrack"], "FastPacket"),
    ("Brief", &["conntrack"], "ConnSummary"),
    ("End", &[], "endpoint, close reason"),
    ("Ends", &[], "endpoints"),
    ("Way", &[], "direction, route"),
    ("Goes", &[], "next hop of a program"),
    ("Going", &[], "in flight"),
    ("Where", &[], "index, slot, location"),
    ("Moment", &["datapath", "flow-cache"], "LookupContext"),
    ("Now", &["datapath", "flow-cache"], "burst timestamp"),
];

/// Parts of names of constants that `MAX_` or `MIN_` replace.
const LIMITS: &[&str] = &[
    "MOST", "LEAST", "FEW", "MANY", "LONGEST", "SHORTEST", "LARGEST", "SMALLEST", "GREATEST", "BIGGEST",
    "FEWEST",
];

/// The name of a protocol's or Open vSwitch's own constant.
const TAKEN: &[&str] = &["TOO_MANY", "TOO_FEW"];

/// Whether `words` has the phrase at `at`.
fn is_at(phrase: &str, words: &[String], at: usize) -> bool {
    let mut parts = phrase.split('+').zip(at..);
    parts.all(|(part, n)| words.get(n).is_some_and(|w| w == part))
}

/// The banned opening of a sentence. `small`: it may begin with a small letter.
pub(super) fn opening(sentence: &Sentence, small: bool) -> Option<String> {
    let words = &sentence.words;
    let question = sentence.plain.trim_end_matches([')', '*', '_']).ends_with('?');
    let begins = |list: &[&str]| {
        let found = list.iter().find(|o| is_at(o, words, 0));
        found.map(|o| o.replace('+', " "))
    };
    // Without a capital it is a part of a sentence, as cells of tables are.
    let whole = small || sentence.begins_line || sentence.plain.starts_with(|c: char| !c.is_lowercase());
    let found = begins(NO_SENTENCE).filter(|_| whole && !question);
    if let Some(found) = found {
        return Some(format!("no sentence begins with '{found}'"));
    }
    let found = begins(NO_COMMENT).filter(|_| sentence.begins_line);
    found.map(|found| format!("no line of a comment begins with '{found}'"))
}

/// A table of phrases by their first word: the row's phrases, one phrase, the field's words.
type Phrases = HashMap<&'static str, Vec<(&'static str, &'static str, &'static str)>>;

static PHRASES_BY_WORD: LazyLock<Phrases> = LazyLock::new(|| by_word(PHRASES));
static PARTS_BY_WORD: LazyLock<Phrases> = LazyLock::new(|| by_word(PARTS));

fn by_word(table: &[(&'static str, &'static str)]) -> Phrases {
    let mut all = Phrases::new();
    for &(list, right) in table {
        for phrase in list.split('/') {
            let word = phrase.split('+').next().unwrap_or_default();
            all.entry(word).or_default().push((list, phrase, right));
        }
    }
    all
}

/// Banned words of a text: one rule for each place.
pub(super) fn banned(group: &str, words: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let rows = PHRASES_BY_WORD.get(word.as_str()).into_iter().flatten();
        if let Some((list, phrase, right)) = rows.copied().find(|r| is_at(r.1, words, at))
            && !is_right(list, phrase, words, at)
            && !is_field(group, phrase)
        {
            out.push(format!("'{}', use: {right}", phrase.replace('+', " ")));
        }
    }
    out
}

/// Whether the neighbours of a phrase make it right.
fn is_right(list: &str, phrase: &str, words: &[String], at: usize) -> bool {
    let (before, after) = (&words[..at], &words[at + phrase.split('+').count()..]);
    let next = after.first().map_or("", String::as_str);
    let soon = |word: &str| after.iter().take(8).any(|w| w == word);
    match list.split('/').next() {
        Some("so+many") if soon("as") => return true,
        Some("tell") if soon("apart") || phrase.starts_with("tell") && soon("from") => return true,
        Some("lie") => {
            let where_ = before.iter().rev().take(4).any(|w| w == "where");
            return !where_ && !PLACES.contains(&next);
        }
        _ => {}
    }
    // "RFC 9293 says", "section 3.2 says".
    let is_number = |w: &&String| w.chars().all(|c| c.is_ascii_digit() || c == '.');
    let noun = before
        .iter()
        .rev()
        .find(|w| !is_number(w))
        .map_or("", String::as_str);
    let pair = before[before.len().saturating_sub(2)..].join(" ");
    RIGHT.iter().any(|(of, prior, following)| {
        let same = of.split('/').any(|p| p == phrase);
        same && (prior.contains(&noun) || prior.contains(&pair.as_str()) || following.contains(&next))
    })
}

/// Faults in the length and build of a sentence.
pub(super) fn long(sentence: &Sentence) -> Vec<String> {
    let mut out = Vec::new();
    let words = sentence.length();
    if words > MAX_SENTENCE_WORDS {
        out.push(format!(
            "{words} words in a sentence, at most {MAX_SENTENCE_WORDS}"
        ));
    }
    let label = sentence
        .plain
        .trim_start_matches(|c: char| c.is_ascii_uppercase() || c == '*');
    let text = label.strip_prefix(':').unwrap_or(&sentence.plain);
    // A list of "name: text; name: text" has one colon an item.
    if text.split("; ").any(|part| part.matches(": ").count() > 1) {
        out.push("two colons in a sentence".to_owned());
    }
    out
}

/// A name's parts in small letters.
fn parts(name: &str) -> Vec<String> {
    let (mut out, mut part, mut small) = (Vec::new(), String::new(), false);
    for c in name.chars() {
        if (c == '_' || c.is_uppercase() && small) && !part.is_empty() {
            out.push(std::mem::take(&mut part));
        }
        small = c.is_lowercase() || c.is_ascii_digit();
        if c != '_' {
            part.extend(c.to_lowercase());
        }
    }
    out.push(part);
    out
}

/// The fault in the parts of a name of code.
pub(super) fn name(group: &str, name: &str) -> Option<String> {
    let parts = parts(name);
    for (at, part) in parts.iter().enumerate() {
        let rows = PARTS_BY_WORD.get(part.as_str()).into_iter().flatten();
        if let Some((_, phrase, right)) = rows.copied().find(|r| is_at(r.1, &parts, at))
            && !is_right(phrase, phrase, &parts, at)
            && !is_field(group, phrase)
            && !is_apart(&parts, at)
        {
            return Some(format!("'{}' in a name, use: {right}", phrase.replace('+', "_")));
        }
    }
    let limit = name == "most" || name.ends_with("_most") && name != "at_most";
    limit.then(|| "'most' in a name, use: max".to_owned())
}

/// "Told apart" in a name: to distinguish.
fn is_apart(parts: &[String], at: usize) -> bool {
    let tell = matches!(parts[at].as_str(), "tell" | "tells" | "told");
    tell && parts[at..].iter().any(|p| matches!(p.as_str(), "apart" | "from"))
}

/// Whether a phrase is the field's in a group.
fn is_field(group: &str, phrase: &str) -> bool {
    FIELD.iter().any(|f| f.1 == group && phrase.starts_with(f.0))
}

/// The fault of a type's name that fits any type.
pub(super) fn vague(name: &str) -> Option<String> {
    VAGUE
        .contains(&name)
        .then(|| format!("a type named {name}: name what it is"))
}

/// The fault of a type's name for which the field has another.
pub(super) fn type_name(group: &str, name: &str) -> Option<String> {
    let found = TYPES
        .iter()
        .find(|t| t.0 == name && (t.1.is_empty() || t.1.contains(&group)));
    found.map(|t| format!("a type named {name}, use: {}", t.2))
}

/// The fault of a constant's name.
pub(super) fn constant(name: &str) -> Option<String> {
    let limit = name.split('_').find(|p| LIMITS.contains(p))?;
    let taken = TAKEN.iter().any(|t| name.contains(t));
    (!taken).then(|| format!("a constant with {limit}: MAX_ or MIN_, the thing, the unit"))
}

#[cfg(test)]
mod tests;
