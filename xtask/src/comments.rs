//! The width of comments, which `cargo fmt` leaves alone.
//!
//! Comments of Rust files are at most [`WIDTH`] columns wide, those behind code too. Excepted are what cannot
//! be broken: rows of tables, code between fences, links.

use crate::sources;
use anyhow::Result;
use std::path::Path;

/// Columns, one for each character: `max_width` of `rustfmt.toml`.
const WIDTH: usize = 110;

/// What a line's comment says, and whether the line has nothing else. A line inside of a string that goes
/// over several lines is taken for code of its own.
fn comment(line: &str) -> Option<(&str, bool)> {
    let (mut quoted, mut escaped) = (false, false);
    let mut before = '\0';
    for (at, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            // A quote as a character is no string's.
            '"' if before != '\'' || quoted => quoted = !quoted,
            '/' if !quoted && line[at..].starts_with("//") => {
                let text = line[at..].trim_start_matches(['/', '!']).trim_start();
                return Some((text, line[..at].trim().is_empty()));
            }
            _ => {}
        }
        before = c;
    }
    None
}

/// The numbers of lines whose comments are too wide, from 1, with their widths.
fn too_wide(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (n, line) in text.lines().enumerate() {
        let Some((words, whole)) = comment(line) else {
            fenced = false;
            continue;
        };
        let fence = whole && words.starts_with("```");
        fenced ^= fence;
        let columns = line.chars().count();
        let excepted = fence || whole && (fenced || words.starts_with('|')) || words.contains("://");
        if columns > WIDTH && !excepted {
            found.push((n + 1, columns));
        }
    }
    found
}

/// What is wrong, or what is said when nothing is.
pub(crate) fn check(root: &Path) -> Result<(Vec<String>, String)> {
    let files = sources(root)?;
    let mut faults = Vec::new();
    for file in &files {
        let name = file.strip_prefix(root).unwrap_or(file).display();
        for (line, columns) in too_wide(&std::fs::read_to_string(file)?) {
            faults.push(format!(
                "{name}:{line}: a comment of {columns} columns, {WIDTH} are allowed"
            ));
        }
    }
    let fine = format!(
        "comments of {} files are at most {WIDTH} columns wide",
        files.len()
    );
    Ok((faults, fine))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that are told, of a text of lines that are too wide where `~` stands for many words.
    fn told(text: &str) -> Vec<usize> {
        let wide = text.replace('~', &"word ".repeat(WIDTH / 5));
        too_wide(&wide).into_iter().map(|(n, _)| n).collect()
    }

    #[test]
    fn wide_comments_are_told() {
        assert_eq!(
            told("//! ~\n/// ~\n    // ~\n// short\nlet a = 1; // ~\n"),
            [1, 2, 3, 5]
        );
        assert!(too_wide(&format!("// {}", "é".repeat(WIDTH - 3))).is_empty());
        assert_eq!(
            too_wide(&format!("// {}", "é".repeat(WIDTH - 2))),
            [(1, WIDTH + 1)]
        );
    }

    #[test]
    fn code_is_not() {
        assert!(told("let a = \"~\";\nlog::warn!(\"~ // ~\");\nf(\"\\\" // ~\");\n").is_empty());
        assert_eq!(
            told("let a = ('\"', 1); // ~\nlet b = '\"'; f(\" // ~\");\n"),
            [1]
        );
    }

    #[test]
    fn what_cannot_be_broken_is_not() {
        assert!(told("//! | a | ~ |\n/// https://example.org/ ~\n").is_empty());
        assert_eq!(told("/// ```\n/// ~\n/// ```\n/// ~\n"), [4]);
        // A fence that is not closed ends with its comment.
        assert_eq!(told("/// ```\n/// ~\nfn f() {}\n// ~\n"), [4]);
    }
}
