//! Planted faults, and text that has none.

use super::*;

/// Lines and kinds of findings.
fn found(form: Form, text: &str) -> Vec<(usize, Kind)> {
    findings(form, "flow", text)
        .into_iter()
        .map(|f| (f.line, f.kind))
        .collect()
}

fn rust(text: &str) -> Vec<(usize, Kind)> {
    found(
        Form::Code {
            names: true,
            texts: true,
        },
        text,
    )
}

/// Lines of comments that are too wide, where `~` stands for many words.
fn wide(text: &str) -> Vec<usize> {
    let text = text.replace('~', &"word ".repeat(WIDTH / 5));
    let found = rust(&text).into_iter();
    found.filter(|f| f.1 == Kind::Width).map(|f| f.0).collect()
}

#[test]
fn planted_faults_are_found() {
    assert_eq!(rust("/// Who waits.\nfn f() {}\n"), [(1, Kind::Openings)]);
    assert_eq!(rust("//! A packet. Of many.\n"), [(1, Kind::Openings)]);
    assert_eq!(rust("// It is at rest.\n"), [(1, Kind::Openings)]);
    assert_eq!(rust("let a = 1; // where it is\n"), [(1, Kind::Openings)]);
    // A line or paragraph of a comment, too, but neither a sentence within a line nor a bold title.
    assert_eq!(rust("/// A packet.\n/// It waits.\n"), [(2, Kind::Openings)]);
    assert_eq!(
        rust("//! A packet.\n//!\n//! So it waits.\n"),
        [(3, Kind::Openings)]
    );
    assert!(rust("/// A packet. It waits.\n///\n/// **How.** The queue\n/// it has.\n").is_empty());
    assert_eq!(rust("/// A packet\n/// goes on.\n"), [(1, Kind::Words)]);
    assert_eq!(rust("fn is_told() {}\n"), [(1, Kind::Names)]);
    assert_eq!(
        rust("struct Packet<const N: usize> {\n    a: u8,\n    /// One.\n    pub told: u8,\n}\n"),
        [(4, Kind::Names)]
    );
    assert_eq!(
        rust("enum Packet {\n    One { a: u8 },\n    #[a(b)]\n    Told(u8),\n}\n"),
        [(4, Kind::Names)]
    );
    assert_eq!(rust("struct Way;\n"), [(1, Kind::Names)]);
    assert_eq!(
        rust("const MOST: u8 = 1;\nstatic mut MOST_A: u8 = 1;\n"),
        [(1, Kind::Constants), (2, Kind::Constants)]
    );
    assert_eq!(
        rust("pub(crate) struct State {}\nenum Held {}\n"),
        [(1, Kind::Types), (2, Kind::Types)]
    );
    assert_eq!(rust("// One: two: three.\n"), [(1, Kind::Long)]);
    assert_eq!(
        rust("log::warn!(\"{}: nobody is there\", 1);\n"),
        [(1, Kind::Messages)]
    );
    assert_eq!(rust("#[error(\"who is there\")]\n"), [(1, Kind::Messages)]);
    assert_eq!(
        rust("x.map_err(|e| format!(\"{e}: told\"))\n"),
        [(1, Kind::Messages)]
    );
    let cell = "| a | b |\n| --- | --- |\n| A packet. A port. | b |\n";
    assert_eq!(found(Form::Page, cell), [(3, Kind::Cells)]);
    assert_eq!(found(Form::Page, &"word, more. ".repeat(12)), [(1, Kind::Width)]);
    let python = Form::Script { python: true };
    assert_eq!(
        found(
            python,
            "\"\"\"Who waits.\"\"\"\nMOST = 1\ndef told():\n    # It is.\n"
        ),
        [
            (1, Kind::Openings),
            (2, Kind::Constants),
            (3, Kind::Names),
            (4, Kind::Openings)
        ]
    );
    assert_eq!(
        found(Form::Script { python: false }, "#!/bin/sh\n# Who waits.\n"),
        [(2, Kind::Openings)]
    );
}

#[test]
fn messages_are_found_anywhere_but_in_tests() {
    assert_eq!(rust("call(\"the worker tells it\");\n"), [(1, Kind::Messages)]);
    assert_eq!(rust("#[expect(a, reason = \"the worker tells it\")]\n"), []);
    assert_eq!(rust("mod tests {\n    call(\"the worker tells it\");\n}\n"), []);
    assert_eq!(
        found(
            Form::of_name("crates/a/src/tests.rs").expect("Rust"),
            "call(\"the worker tells it\");\n"
        ),
        []
    );
}

#[test]
fn what_is_right_is_not() {
    let good = "/// A session that is late by less than one interval is not reported as down.\n\
        /// # Errors\n/// One megaflow as a worker caches it: RFC 7047 says so.\n\
        struct Megaflow { a: u8 }\nconst MAX_QUEUE_CHARGE_CYCLES: u64 = 1;\n\
        fn f() { let told = Megaflow { a: 1 }; call(\"nobody\"); x.expect(\"nobody waits for it\"); log::info!(\"bridge br0: no target\"); log::info!(\"{told} of {}\"); }\n\
        // If two workers allocate an id for the same state, the second uses the first one's id.\n\
        // Packets flooded to other ports are unaffected.\n\
        // A worker queues a neighbour request; the control thread sends it.\n\
        // Sampling probability, as a fraction of 2³²−1.\n";
    assert_eq!(rust(good), []);
    let page = "# What it is\n\n## Who may import whom\n\nThe worker drops the packet.\n\n```sh\nsay who\n```\n\n\
        | what | who |\n| --- | --- |\n| One packet. | `A. B.` |\n";
    assert_eq!(found(Form::Page, page), []);
    let python = "X = \"\"\"\nWho waits.\n\"\"\"\nfor a in b:\n    told = \"  # who\"\n";
    assert_eq!(found(Form::Script { python: true }, python), []);
    assert_eq!(
        found(
            Form::Code {
                names: false,
                texts: false
            },
            "int told; /* A port. */\n"
        ),
        []
    );
}

#[test]
fn wide_comments_are_found() {
    assert_eq!(
        wide("//! ~\n/// ~\n    // ~\n// short\nlet a = 1; // ~\n"),
        [1, 2, 3, 5]
    );
    assert!(wide(&format!("// {}", "é".repeat(WIDTH - 3))).is_empty());
    assert_eq!(wide(&format!("// {}", "é".repeat(WIDTH - 2))), [1]);
}

#[test]
fn wide_code_is_not() {
    assert!(wide("let a = \"~\";\nlog::warn!(\"~ // ~\");\nf(\"\\\" // ~\");\n").is_empty());
    assert_eq!(
        wide("let a = ('\"', 1); // ~\nlet b = '\"'; f(\" // ~\");\n"),
        [1]
    );
}

#[test]
fn what_cannot_be_broken_is_not() {
    assert!(wide("//! | a | ~ |\n/// https://example.org/ ~\n").is_empty());
    assert_eq!(wide("/// ```\n/// ~\n/// ```\n/// ~\n"), [4]);
    // A fence that is not closed ends with its comment.
    assert_eq!(wide("/// ```\n/// ~\nfn f() {}\n// ~\n"), [4]);
}
