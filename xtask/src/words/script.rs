//! Comments and names of Python, comments of shell scripts.

use super::prose::Line;
use super::read::Findings;

/// Comments, docstrings and names of Python, comments of shell.
pub(super) fn judge(all: &mut Findings<'_>, text: &str, python: bool) {
    let mut run: Vec<Line<'_>> = Vec::new();
    // The quotes of an open string of several lines, and whether it is a docstring.
    let mut string: Option<(&str, bool)> = None;
    for (line, raw) in text.lines().zip(1..).map(|(l, n)| (n, l)) {
        let words = raw.trim();
        if let Some((quotes, doc)) = string {
            let end = words.find(quotes);
            if doc {
                run.push((line, &words[..end.unwrap_or(words.len())]));
            }
            if end.is_some() {
                all.prose(&std::mem::take(&mut run), false);
                string = None;
            }
            continue;
        }
        if let Some(comment) = words.strip_prefix('#').filter(|_| !words.starts_with("#!")) {
            run.push((line, comment));
            continue;
        }
        all.prose(&std::mem::take(&mut run), false);
        if !python {
            continue;
        }
        let quotes = ["\"\"\"", "'''"]
            .into_iter()
            .find(|q| words.matches(q).count() > 0);
        if let Some(quotes) = quotes {
            let (before, after) = words.split_once(quotes).unwrap_or_default();
            let doc = before.is_empty() || before == "r";
            let end = after.find(quotes);
            if doc {
                run.push((line, &after[..end.unwrap_or(after.len())]));
            }
            if end.is_some() {
                all.prose(&std::mem::take(&mut run), false);
            } else {
                string = Some((quotes, doc));
            }
        } else if let Some((code, comment)) = words.split_once("  # ")
            && ['"', '\''].iter().all(|q| code.matches(*q).count() % 2 == 0)
        {
            all.prose(&[(line, comment)], false);
        }
        python_name(all, line, raw);
    }
    all.prose(&run, false);
}

/// The name that a line of Python defines: a function, a class, a constant of the module.
fn python_name(all: &mut Findings<'_>, line: usize, raw: &str) {
    let ident = |s: &str| {
        s.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect::<String>()
    };
    let words = raw.trim_start();
    for (keyword, as_rust) in [("def ", "fn"), ("class ", "struct")] {
        if let Some(rest) = words.strip_prefix(keyword) {
            all.name(line, as_rust, &ident(rest));
        }
    }
    let name = ident(raw);
    if !name.is_empty() && name == name.to_uppercase() && raw[name.len()..].starts_with(" = ") {
        all.name(line, "const", &name);
    }
}
