//! Rust and C as tokens: enough to tell comments, strings, names and brackets from each other.

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// One line of a comment without its slashes. `whole`: the line has nothing else.
    Comment {
        text: &'a str,
        mark: &'a str,
        whole: bool,
    },
    /// A string's contents, escapes as written.
    Text(&'a str),
    /// A name, keyword or number.
    Word(&'a str),
    /// Any other character.
    Sign(u8),
}

/// The tokens of `source`, with numbers of lines from 1.
pub(super) fn tokens(source: &str) -> Vec<(usize, Piece<'_>)> {
    let bytes = source.as_bytes();
    let at = |n: usize| bytes.get(n).copied().unwrap_or(0);
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80;
    let (mut out, mut n, mut line, mut blank) = (Vec::new(), 0, 1, true);
    while n < bytes.len() {
        let begin = n;
        match at(n) {
            b'\n' => {
                (line, blank) = (line + 1, true);
                n += 1;
                continue;
            }
            b if b.is_ascii_whitespace() => {
                n += 1;
                continue;
            }
            b'/' if at(n + 1) == b'/' => {
                n = end_of_line(bytes, n);
                let all = &source[begin..n];
                let text = all.trim_start_matches(['/', '!']);
                let mark = &all[..all.len() - text.len()];
                out.push((
                    line,
                    Piece::Comment {
                        text,
                        mark,
                        whole: blank,
                    },
                ));
            }
            b'/' if at(n + 1) == b'*' => {
                let length = source[n + 2..].find("*/").unwrap_or(source.len() - n - 2);
                for text in source[n + 2..n + 2 + length].split('\n') {
                    let text = text.trim_start().trim_start_matches('*');
                    out.push((
                        line,
                        Piece::Comment {
                            text,
                            mark: "/*",
                            whole: blank,
                        },
                    ));
                    line += 1;
                }
                line -= 1;
                n = (n + length + 4).min(bytes.len());
            }
            b'"' => {
                n = end_of_string(bytes, n + 1);
                out.push((
                    line,
                    Piece::Text(&source[begin + 1..n.saturating_sub(1).max(begin + 1)]),
                ));
                line += newlines(&bytes[begin..n]);
            }
            b'\'' => n = end_of_char(source, n),
            b if is_word(b) => {
                while is_word(at(n)) {
                    n += 1;
                }
                let word = &source[begin..n];
                let hashes = bytes[n..].iter().take_while(|b| **b == b'#').count();
                if matches!(word, "r" | "br" | "cr") && at(n + hashes) == b'"' {
                    let close = format!("\"{}", "#".repeat(hashes));
                    let from = n + hashes + 1;
                    let length = source[from..].find(&close).unwrap_or(source.len() - from);
                    out.push((line, Piece::Text(&source[from..from + length])));
                    n = (from + length + close.len()).min(bytes.len());
                    line += newlines(&bytes[begin..n]);
                } else if !(matches!(word, "b" | "c") && matches!(at(n), b'"' | b'\'')) {
                    out.push((line, Piece::Word(word)));
                }
            }
            b => {
                out.push((line, Piece::Sign(b)));
                n += 1;
            }
        }
        blank = false;
    }
    out
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|b| **b == b'\n').count()
}

fn end_of_line(bytes: &[u8], from: usize) -> usize {
    bytes[from..]
        .iter()
        .position(|b| *b == b'\n')
        .map_or(bytes.len(), |n| from + n)
}

/// Behind the closing quote of a string whose contents begin at `n`.
fn end_of_string(bytes: &[u8], mut n: usize) -> usize {
    while n < bytes.len() && bytes[n] != b'"' {
        n += 1 + usize::from(bytes[n] == b'\\');
    }
    (n + 1).min(bytes.len())
}

/// Behind a character, or behind the quote of a lifetime. `n` is the quote.
fn end_of_char(source: &str, n: usize) -> usize {
    let mut chars = source[n + 1..].char_indices();
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, c))) => {
            let from = n + 1 + at + c.len_utf8();
            source[from..].find('\'').map_or(from, |m| from + m + 1)
        }
        (Some(_), Some((at, '\''))) => n + 2 + at,
        _ => n + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comments(source: &str) -> Vec<(usize, &str, bool)> {
        let each = tokens(source).into_iter();
        each.filter_map(|(line, p)| match p {
            Piece::Comment { text, whole, .. } => Some((line, text.trim(), whole)),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn comments_are_found() {
        assert_eq!(
            comments("//! a\nlet x = 1; // b\n  /* c\n   * d */\n/// e"),
            [
                (1, "a", true),
                (2, "b", false),
                (3, "c", true),
                (4, "d", true),
                (5, "e", true)
            ]
        );
    }

    #[test]
    fn strings_hide_them() {
        for code in [
            "\"// a\"",
            "\"\\\" // a\"",
            "r#\"\" // a\"#",
            "b\"// a\"",
            "\"\n// a\n\"",
        ] {
            assert!(comments(code).is_empty(), "{code}");
        }
        for code in [
            "'\"' // a",
            "'\\'' // a",
            "b'\"' // a",
            "f::<'x>() // a",
            "'\\u{22}' // a",
            "r\"\\\" // a",
        ] {
            assert_eq!(comments(code), [(1, "a", false)], "{code}");
        }
        assert_eq!(
            comments("\"\n\" // a\nr\"\n\" // b"),
            [(2, "a", false), (4, "b", false)]
        );
    }

    #[test]
    fn words_and_signs_are_found() {
        let pieces: Vec<_> = tokens("fn a_b(r: u8)").into_iter().map(|t| t.1).collect();
        let (word, sign) = (Piece::Word, Piece::Sign);
        let expected = [
            word("fn"),
            word("a_b"),
            sign(b'('),
            word("r"),
            sign(b':'),
            word("u8"),
            sign(b')'),
        ];
        assert_eq!(pieces, expected);
        assert!(tokens("\"").len() == 1 && tokens("r#\"").len() == 1 && tokens("/*").len() == 1);
    }
}
