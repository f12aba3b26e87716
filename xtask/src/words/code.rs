//! Comments, names and messages of Rust, comments of C.

use super::Kind;
use super::lex::{Piece, tokens};
use super::prose::Line;
use super::read::{Findings, WIDTH};

/// Macros, methods and attributes whose strings are messages however short they are.
const MESSAGES: &[&str] = &[
    "error",
    "warn",
    "info",
    "debug",
    "trace",
    "log",
    "bail",
    "anyhow",
    "ensure",
    "context",
    "with_context",
    "println",
    "eprintln",
    "Err",
    "map_err",
    "ok_or",
    "ok_or_else",
];

/// Macros and methods whose strings are for developers alone.
const INVARIANTS: &[&str] = &[
    "expect",
    "panic",
    "unreachable",
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
];

/// The shortest string that is a message wherever it is, in words.
const MIN_MESSAGE_WORDS: usize = 3;

/// Comments, names and messages of Rust; of C the comments alone.
pub(super) fn judge(all: &mut Findings<'_>, text: &str, names: bool, texts: bool) {
    let tokens = tokens(text);
    comments(all, &tokens);
    widths(all, text, &tokens);
    let is_code = |t: &&(usize, Piece<'_>)| !matches!(t.1, Piece::Comment { .. });
    let code: Vec<_> = tokens.iter().filter(is_code).copied().collect();
    if names {
        definitions(all, &code);
    }
    if texts {
        messages(all, &code);
    }
}

/// Runs of lines with the same mark are one comment. One behind code is one of its own.
fn comments(all: &mut Findings<'_>, tokens: &[(usize, Piece<'_>)]) {
    let mut run: Vec<Line<'_>> = Vec::new();
    let mut last = None;
    for &(line, piece) in tokens {
        let Piece::Comment { text, mark, whole } = piece else {
            continue;
        };
        let joins = last.is_some_and(|(end, m, w)| w && whole && m == mark && end + 1 == line);
        if !joins {
            all.prose(&run, false);
            run.clear();
        }
        run.push((line, text));
        last = Some((line, mark, whole));
    }
    all.prose(&run, false);
}

/// Comments that are too wide. Rows of tables, code between fences and links cannot be broken: they may be.
fn widths(all: &mut Findings<'_>, text: &str, tokens: &[(usize, Piece<'_>)]) {
    let lines: Vec<_> = text.lines().collect();
    let (mut fenced, mut last) = (false, 0);
    for &(line, piece) in tokens {
        let Piece::Comment { text, whole, .. } = piece else {
            continue;
        };
        let words = text.trim_start();
        fenced &= last + 1 == line && whole;
        last = line;
        let fence = whole && words.starts_with("```");
        fenced ^= fence;
        let columns = lines.get(line - 1).map_or(0, |l| l.chars().count());
        let excepted = fence || whole && (fenced || words.starts_with('|')) || words.contains("://");
        let rule = (columns > WIDTH && !excepted)
            .then(|| format!("a comment of {columns} columns, at most {WIDTH}"));
        all.add(Kind::Width, line, rule, words);
    }
}

/// Names of items, fields and variants.
fn definitions(all: &mut Findings<'_>, code: &[(usize, Piece<'_>)]) {
    let at = |n: usize| code.get(n).map(|t| t.1);
    let sign = |n: usize, s: u8| at(n) == Some(Piece::Sign(s));
    // The keyword of a body to come, and of bodies that are open, with their depths.
    let (mut coming, mut open, mut depth) = (None, Vec::<(&str, usize)>::new(), 0_usize);
    for (n, &(line, piece)) in code.iter().enumerate() {
        match piece {
            Piece::Word(
                keyword
                @ ("fn" | "struct" | "enum" | "trait" | "type" | "union" | "mod" | "const" | "static"),
            ) => {
                let skip = usize::from(at(n + 1) == Some(Piece::Word("mut")));
                let before = n.checked_sub(1).and_then(at);
                let raw = before == Some(Piece::Sign(b'#')) || before == Some(Piece::Sign(b'*'));
                if let Some(Piece::Word(name)) = at(n + 1 + skip)
                    && !raw
                    && !matches!(name, "fn" | "unsafe" | "extern" | "_")
                {
                    all.name(line, keyword, name);
                    // Parameters of a type are between its name and its body.
                    if matches!(keyword, "struct" | "enum" | "union") {
                        coming = Some(keyword);
                    }
                }
            }
            Piece::Word(name) => {
                if let Some((keyword, at_depth)) = open.last()
                    && *at_depth == depth
                {
                    let field = *keyword != "enum" && sign(n + 1, b':') && !sign(n + 2, b':');
                    let begins = n > 0 && (sign(n - 1, b'{') || sign(n - 1, b',') || sign(n - 1, b']'));
                    if field && !sign(n - 1, b':') {
                        all.name(line, "field", name);
                    } else if *keyword == "enum" && begins {
                        all.name(line, "variant", name);
                    }
                }
            }
            Piece::Sign(b'{' | b'(' | b'[') => {
                depth += 1;
                if piece == Piece::Sign(b'{')
                    && let Some(keyword) = coming.take()
                {
                    open.push((keyword, depth));
                }
            }
            Piece::Sign(b'}' | b')' | b']') => {
                if open.last().is_some_and(|o| o.1 == depth) {
                    open.pop();
                }
                depth = depth.saturating_sub(1);
            }
            Piece::Sign(b';') => coming = None,
            _ => {}
        }
    }
}

/// Strings within brackets of [`MESSAGES`], and longer ones anywhere but in [`INVARIANTS`] and tests.
fn messages(all: &mut Findings<'_>, code: &[(usize, Piece<'_>)]) {
    let at = |n: usize| code.get(n).map(|t| t.1);
    // The least number of words of a message within each open bracket.
    let mut open = vec![MIN_MESSAGE_WORDS];
    // The name before a bracket, and whether the name is an attribute's.
    let (mut before, mut attribute) = ("", false);
    for (n, &(line, piece)) in code.iter().enumerate() {
        let outer = open.last().copied().unwrap_or(MIN_MESSAGE_WORDS);
        match piece {
            Piece::Word("tests") if before == "mod" && at(n + 1) == Some(Piece::Sign(b'{')) => return,
            Piece::Word(word) => {
                attribute =
                    n > 1 && at(n - 1) == Some(Piece::Sign(b'[')) && at(n - 2) == Some(Piece::Sign(b'#'));
                before = word;
            }
            Piece::Sign(b'!') => {}
            Piece::Sign(s @ (b'(' | b'[' | b'{')) => {
                // A block of statements is no part of the text's bracket, but the brackets of `format!` are.
                open.push(if s == b'{' {
                    MIN_MESSAGE_WORDS
                } else if INVARIANTS.contains(&before) || attribute && before != "error" {
                    usize::MAX
                } else if MESSAGES.contains(&before) {
                    1
                } else {
                    outer
                });
                before = "";
            }
            Piece::Sign(b')' | b']' | b'}') => {
                if open.len() > 1 {
                    open.pop();
                }
                before = "";
            }
            Piece::Text(text) if !text.starts_with('<') && text.split_whitespace().count() >= outer => {
                all.message(line, text);
            }
            _ => before = "",
        }
    }
}
