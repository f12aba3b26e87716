//! The findings of one file.

use super::prose::{Line, blocks, sentences, sentences_of};
use super::{Finding, Kind, code, rules, script};

/// Columns of a comment or of a page's line, one for each character: `max_width` of `rustfmt.toml`.
pub(super) const WIDTH: usize = 110;

/// Columns of a finding's text.
const MAX_TEXT: usize = 160;

/// The language of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Rust or C. `names` of code are judged in Rust alone, `texts` outside of tests.
    Code {
        names: bool,
        texts: bool,
    },
    Page,
    Script {
        python: bool,
    },
}

impl Form {
    /// The form that the end of a file's name stands for.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let is_test = ["tests", "examples", "bench/"].iter().any(|t| name.contains(t));
        match name.rsplit_once('.')?.1 {
            "rs" => Some(Self::Code {
                names: true,
                texts: !is_test,
            }),
            "c" | "h" => Some(Self::Code {
                names: false,
                texts: false,
            }),
            "md" => Some(Self::Page),
            "py" => Some(Self::Script { python: true }),
            "sh" => Some(Self::Script { python: false }),
            _ => None,
        }
    }

    /// The form that a program's first line names.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("#!")?;
        let python = line.contains("python");
        (python || line.ends_with("sh")).then_some(Self::Script { python })
    }
}

/// All findings of a file, by lines.
pub(super) fn findings(form: Form, group: &str, text: &str) -> Vec<Finding> {
    let mut all = Findings {
        group,
        list: Vec::new(),
    };
    match form {
        Form::Code { names, texts } => code::judge(&mut all, text, names, texts),
        Form::Page => page(&mut all, text),
        Form::Script { python } => script::judge(&mut all, text, python),
    }
    all.list.sort_by_key(|f| (f.line, f.kind));
    all.list
}

/// The findings of a file so far.
pub(super) struct Findings<'a> {
    group: &'a str,
    list: Vec<Finding>,
}

impl Findings<'_> {
    pub(super) fn add(
        &mut self,
        kind: Kind,
        line: usize,
        rule: impl IntoIterator<Item = String>,
        text: &str,
    ) {
        for rule in rule {
            let text = text.chars().take(MAX_TEXT).collect();
            self.list.push(Finding {
                kind,
                line,
                rule,
                text,
            });
        }
    }

    /// Judges one comment, or a page.
    pub(super) fn prose(&mut self, lines: &[Line<'_>], is_page: bool) {
        let blocks = blocks(lines);
        for mut sentence in sentences(&blocks) {
            sentence.begins_line &= !is_page;
            let (line, text) = (sentence.line, &sentence.text);
            self.add(Kind::Openings, line, rules::opening(&sentence, false), text);
            self.add(
                Kind::Words,
                line,
                rules::banned(self.group, &sentence.words),
                text,
            );
            self.add(Kind::Long, line, rules::long(&sentence), text);
        }
        for cell in blocks.iter().filter(|b| b.cell && is_page) {
            let (count, (line, text)) = (sentences_of(cell), cell.begin());
            let rule = (count > 1).then(|| format!("{count} sentences in a cell"));
            self.add(Kind::Cells, line, rule, text);
        }
    }

    /// Judges a log line or an error text.
    pub(super) fn message(&mut self, line: usize, text: &str) {
        let text = text.replace("\\\n", " ").replace("\\\"", "'").replace('\n', " ");
        let lines: Vec<Line<'_>> = vec![(line, &text)];
        for mut sentence in sentences(&blocks(&lines)) {
            sentence.begins_line = false;
            self.add(
                Kind::Messages,
                line,
                rules::opening(&sentence, true),
                &sentence.text,
            );
            self.add(
                Kind::Messages,
                line,
                rules::banned(self.group, &sentence.words),
                &sentence.text,
            );
        }
    }

    /// Judges the name that a definition gives.
    pub(super) fn name(&mut self, line: usize, keyword: &str, name: &str) {
        let text = format!("{keyword} {name}");
        let rule = match keyword {
            "const" | "static" => rules::constant(name),
            "struct" | "enum" | "trait" | "type" | "union" => rules::vague(name),
            _ => None,
        };
        let kind = if matches!(keyword, "const" | "static") {
            Kind::Constants
        } else {
            Kind::Types
        };
        let known = rule.is_some();
        self.add(kind, line, rule, &text);
        if !known {
            let of_type = matches!(keyword, "struct" | "enum" | "trait" | "type" | "union");
            let rule = of_type.then(|| rules::type_name(self.group, name)).flatten();
            let rule = rule.or_else(|| rules::name(self.group, name));
            self.add(Kind::Names, line, rule, &text);
        }
    }
}

/// A page: sentences, cells, widths of lines that can be broken.
fn page(all: &mut Findings<'_>, text: &str) {
    let lines: Vec<Line<'_>> = text.lines().zip(1..).map(|(l, n)| (n, l)).collect();
    all.prose(&lines, true);
    let mut fenced = false;
    for (line, words) in lines {
        let fence = words.trim_start().starts_with("```");
        fenced ^= fence;
        let columns = words.chars().count();
        let excepted =
            fenced || fence || words.starts_with('|') || words.contains("://") || words.starts_with('#');
        let rule =
            (columns > WIDTH && !excepted).then(|| format!("a line of {columns} columns, at most {WIDTH}"));
        all.add(Kind::Width, line, rule, words);
    }
}

#[cfg(test)]
mod tests;
