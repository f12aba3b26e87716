//! Paragraphs, lists and tables of comments and pages as sentences.

/// One line of a comment or page: its number, and its text without what marks a comment.
pub(super) type Line<'a> = (usize, &'a str);

/// One sentence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    pub(super) line: usize,
    pub(super) text: String,
    /// The text with code, quotations and addresses blotted out by `_`.
    pub(super) plain: String,
    /// The words of `plain` in small letters. Names with `_` are none; `stand-in` is one word.
    pub(super) words: Vec<String>,
    /// A line begins with the sentence. Cells of tables and bold titles do not count.
    pub(super) begins_line: bool,
}

impl Sentence {
    /// The number of words. Code and a quotation are one word.
    pub(super) fn length(&self) -> usize {
        let word = |w: &&str| w.contains(|c: char| c.is_alphanumeric() || c == '_');
        self.plain.split_whitespace().filter(word).count()
    }
}

/// The words of a text in small letters. Names with `_` are none; `stand-in` is one word.
fn words(text: &str) -> Vec<String> {
    let inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '\'');
    text.split(|c| !inside(c))
        .map(|w| w.trim_matches(['-', '\'']))
        .filter(|w| !w.is_empty())
        .map(|w| {
            if w.contains('_') {
                "_".to_owned()
            } else {
                w.to_lowercase()
            }
        })
        .collect()
}

/// A paragraph, an item of a list or a cell of a table.
#[derive(Debug, Default)]
pub(super) struct Block<'a> {
    lines: Vec<Line<'a>>,
    /// A cell of a table's row.
    pub(super) cell: bool,
}

impl<'a> Block<'a> {
    /// The first line.
    pub(super) fn begin(&self) -> Line<'a> {
        self.lines.first().copied().unwrap_or_default()
    }
}

/// The blocks of a comment or page. Headings, heads of tables and code between fences are left out.
pub(super) fn blocks<'a>(lines: &[Line<'a>]) -> Vec<Block<'a>> {
    let (mut out, mut now, mut fence) = (Vec::new(), Block::default(), None);
    for (n, &(line, raw)) in lines.iter().enumerate() {
        let text = raw.trim();
        let marks = text.chars().take_while(|c| *c == '`').count();
        match fence {
            Some(open) if marks >= open && marks == text.len() => fence = None,
            Some(_) => {}
            None if marks >= 3 => {
                out.push(std::mem::take(&mut now));
                fence = Some(marks);
            }
            None if text.is_empty()
                || text.starts_with('#')
                || text.starts_with("<!--")
                || is_code(raw, &now) =>
            {
                out.push(std::mem::take(&mut now));
            }
            None if text.starts_with('|') => {
                out.push(std::mem::take(&mut now));
                let rule = |t: &str| t.trim().starts_with("| -") || t.trim().starts_with("|-");
                if !rule(text) && !lines.get(n + 1).is_some_and(|next| rule(next.1)) {
                    out.extend(cells(text).into_iter().map(|c| Block {
                        lines: vec![(line, c)],
                        cell: true,
                    }));
                }
            }
            None => {
                let item = item(text);
                if item.is_some() {
                    out.push(std::mem::take(&mut now));
                }
                now.lines.push((line, item.unwrap_or(text)));
            }
        }
    }
    out.push(now);
    out.retain(|b| !b.lines.is_empty());
    out
}

/// Whether a line is code or a table without marks: indented where a paragraph would begin, or in columns.
fn is_code(raw: &str, before: &Block<'_>) -> bool {
    raw.starts_with("    ") && before.lines.is_empty() || raw.trim().contains("   ")
}

/// The cells of a table's row. A bar within code separates none.
fn cells(row: &str) -> Vec<&str> {
    let (mut out, mut begin, mut code) = (Vec::new(), 0, false);
    for (n, c) in row.char_indices() {
        code ^= c == '`';
        if c == '|' && !code && !row[..n].ends_with('\\') {
            out.push(row[begin..n].trim());
            begin = n + 1;
        }
    }
    out.push(row[begin..].trim());
    out.retain(|c| !c.is_empty());
    out
}

/// The text of a line that begins an item of a list.
fn item(text: &str) -> Option<&str> {
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let rest = match digits {
        0 => text.strip_prefix(['*', '-', '>']),
        _ => text[digits..].strip_prefix(['.', ')']),
    };
    rest.filter(|r| r.starts_with(' ')).map(str::trim_start)
}

/// The sentences of a comment or page.
pub(super) fn sentences(blocks: &[Block<'_>]) -> Vec<Sentence> {
    let mut out = Vec::new();
    for block in blocks {
        split(block, &mut out);
    }
    out
}

/// The number of sentences of a block.
pub(super) fn sentences_of(block: &Block<'_>) -> usize {
    let mut out = Vec::new();
    split(block, &mut out);
    out.len()
}

fn split(block: &Block<'_>, out: &mut Vec<Sentence>) {
    let (mut text, mut starts) = (String::new(), Vec::new());
    for (line, words) in &block.lines {
        starts.push((text.len(), *line));
        text.push_str(words);
        text.push(' ');
    }
    let plain = blot(&text);
    let mut begin = 0;
    for end in ends(&plain) {
        let lead = plain[begin..end].len() - plain[begin..end].trim_start().len();
        let from = begin + lead;
        let (at, line) = starts
            .iter()
            .rev()
            .find(|s| s.0 <= from)
            .copied()
            .unwrap_or_default();
        if !plain[from..end].trim().is_empty() {
            out.push(Sentence {
                line,
                text: text[from..end].trim().to_owned(),
                plain: plain[from..end].trim().to_owned(),
                words: words(&plain[from..end]),
                begins_line: at == from && !block.cell && !plain[from..].starts_with("**"),
            });
        }
        begin = end;
    }
}

/// The text with code, quotations, messages' arguments and links' addresses blotted out by `_`, byte by byte.
fn blot(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (open, close) = match c {
            '{' => ("{", "}"),
            '`' => ("`", "`"),
            '"' => ("\"", "\""),
            ']' if rest.starts_with("](") => ("](", ")"),
            'h' if rest.starts_with("https://") || rest.starts_with("http://") => ("http", " "),
            _ => ("", ""),
        };
        let inside = rest[open.len()..].find(close);
        match inside {
            Some(length) if !open.is_empty() => {
                let blot = |s: &str| s.replace(['{', '}'], "_");
                out.push_str(&blot(open));
                out.extend(std::iter::repeat_n('_', length));
                out.push_str(&blot(close));
                rest = &rest[open.len() + length + close.len()..];
            }
            _ => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

/// The ends of sentences: behind the space after `.`, `?` or `!` if no small letter follows.
fn ends(plain: &str) -> Vec<usize> {
    const SHORT: [&str; 7] = ["e.g.", "i.e.", "etc.", "cf.", "vs.", "No.", "fig."];
    let mut out = Vec::new();
    for (n, _) in plain.match_indices(' ') {
        let before = plain[..n].trim_end_matches([')', '"', '*', '_', '\'']);
        let stop = before.ends_with(['.', '?', '!']) && !SHORT.iter().any(|s| before.ends_with(s));
        let next = plain[n..].trim_start().chars().next();
        if stop
            && !next.is_some_and(|c| c.is_lowercase() || c.is_ascii_punctuation() && !"`\"([*_".contains(c))
        {
            out.push(n + 1);
        }
    }
    out.push(plain.len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<(usize, String)> {
        let lines: Vec<_> = text.lines().zip(1..).map(|(l, n)| (n, l)).collect();
        let found = sentences(&blocks(&lines)).into_iter();
        found.map(|s| (s.line, s.text)).collect()
    }

    fn texts(text: &str) -> Vec<String> {
        all(text).into_iter().map(|s| s.1).collect()
    }

    #[test]
    fn sentences_are_split() {
        assert_eq!(
            texts("A b. C d? `E` f. G, e.g. H, i.e. 3. \"J k.\""),
            ["A b.", "C d?", "`E` f.", "G, e.g. H, i.e. 3.", "\"J k.\""]
        );
        assert_eq!(
            texts("See file.rs and 1.5 of them, v. next."),
            ["See file.rs and 1.5 of them, v. next."]
        );
    }

    #[test]
    fn lines_are_kept() {
        let found = all("# Head\n\nA b\nc. D\ne.\n* F\n  g\n1. H\n");
        let expected = [(3, "A b c."), (4, "D e."), (6, "F g"), (8, "H")];
        assert_eq!(found, expected.map(|(n, t)| (n, t.to_owned())));
    }

    #[test]
    fn code_and_heads_of_tables_are_left_out() {
        assert_eq!(
            texts("```sh\nA b.\n```\n| what | who |\n| --- | --- |\n| A `x|y` | B |\n"),
            ["A `x|y`", "B"]
        );
        assert_eq!(texts("````\n```\nA\n````\nB"), ["B"]);
        assert_eq!(
            texts("A:\n\n    run it\nrun [X]    as X\nB\n    c."),
            ["A:", "B c."]
        );
    }

    #[test]
    fn code_and_quotations_are_one_word() {
        let lines = [(1, "See `a b: c`, \"who is it\" and [that](https://a.b/c).")];
        let found = sentences(&blocks(&lines));
        assert_eq!(found[0].length(), 5);
        assert_eq!(found[0].words, ["see", "_", "_", "and", "that", "_"]);
        assert!(found[0].begins_line);
    }
}
