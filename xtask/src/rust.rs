//! Rust sources as flat lists of tokens, without comments and without the code of tests.
//!
//! `proc-macro2` splits the text. A list keeps delimiters as tokens, so that a macro's body is read like any
//! other code. An item with `#[cfg(test)]` or `#[test]` is code of tests.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// The kinds of tokens that the checks tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ident,
    Punct,
    Open,
    Close,
    Literal,
    /// A name inside a string: `{name}` of a format string, or the path in an attribute's string.
    Quoted,
}

/// One token of a file.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) kind: Kind,
    /// Line of the file, from 1.
    pub(crate) line: usize,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text && !matches!(self.kind, Kind::Literal | Kind::Quoted)
    }

    pub(crate) fn is_ident(&self) -> bool {
        self.kind == Kind::Ident
    }
}

/// Whether the token at an index has this text. An index behind the end has none.
pub(crate) fn is(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|t| t.is(text))
}

/// The tokens of a source, comments removed.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>> {
    let stream: TokenStream = text.parse().map_err(|e| anyhow!("is no Rust source: {e}"))?;
    let mut list = Vec::new();
    flatten(stream, false, &mut list);
    Ok(list)
}

/// The tokens of a source without comments and without the code of tests.
pub(crate) fn production(text: &str) -> Result<Vec<Token>> {
    Ok(without_tests(&tokens(text)?))
}

fn flatten(stream: TokenStream, attribute: bool, list: &mut Vec<Token>) {
    let mut joint = false;
    let mut lifetime = false;
    for tree in stream {
        let line = tree.span().start().line;
        let mut push = |text: String, kind| list.push(Token { text, kind, line });
        let was_joint = std::mem::take(&mut joint);
        match tree {
            TokenTree::Group(group) => {
                let marks = match group.delimiter() {
                    Delimiter::Brace => Some(("{", "}")),
                    Delimiter::Bracket => Some(("[", "]")),
                    Delimiter::Parenthesis => Some(("(", ")")),
                    Delimiter::None => None,
                };
                let marked = list.last().is_some_and(|t| t.is("#") || t.is("!"))
                    && group.delimiter() == Delimiter::Bracket;
                if marked && is_doc(&group.stream()) {
                    list.pop_if(|t| t.is("!"));
                    list.pop_if(|t| t.is("#"));
                    continue;
                }
                if let Some((open, _)) = marks {
                    list.push(Token {
                        text: open.into(),
                        kind: Kind::Open,
                        line,
                    });
                }
                flatten(group.stream(), attribute || marked, list);
                if let Some((_, close)) = marks {
                    let line = group.span_close().start().line;
                    list.push(Token {
                        text: close.into(),
                        kind: Kind::Close,
                        line,
                    });
                }
            }
            TokenTree::Ident(_) if std::mem::take(&mut lifetime) => {}
            TokenTree::Ident(ident) => {
                push(ident.to_string().trim_start_matches("r#").to_owned(), Kind::Ident)
            }
            TokenTree::Punct(punct) if punct.as_char() == '\'' => lifetime = true,
            TokenTree::Punct(punct) => {
                joint = punct.spacing() == Spacing::Joint;
                let c = punct.as_char();
                let before = list.last().filter(|_| was_joint).map_or("", |t| t.text.as_str());
                match (before, c) {
                    (":", ':') | ("-" | "=", '>') => {
                        if let Some(last) = list.last_mut() {
                            last.text.push(c);
                        }
                        joint = false;
                    }
                    _ => list.push(Token {
                        text: c.to_string(),
                        kind: Kind::Punct,
                        line,
                    }),
                }
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.contains('"') {
                    for name in quoted(&text, attribute) {
                        list.push(Token {
                            text: name.to_owned(),
                            kind: Kind::Quoted,
                            line,
                        });
                    }
                }
                list.push(Token {
                    text,
                    kind: Kind::Literal,
                    line,
                });
            }
        }
    }
}

fn is_doc(attribute: &TokenStream) -> bool {
    matches!(attribute.clone().into_iter().next(), Some(TokenTree::Ident(i)) if i == "doc")
}

/// The names that a string literal mentions: all of them in an attribute, else those behind a brace.
fn quoted(literal: &str, attribute: bool) -> Vec<&str> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    if attribute {
        return literal.split(|c| !word(c)).filter(|w| !w.is_empty()).collect();
    }
    let mut names = Vec::new();
    for (at, _) in literal.match_indices('{') {
        let rest = &literal[at + 1..];
        let name = &rest[..rest.find(|c| !word(c)).unwrap_or(rest.len())];
        if !name.is_empty() {
            names.push(name);
        }
    }
    // A width or a precision may be a name too: `{:>width$}`.
    for (at, _) in literal.match_indices('$') {
        let start = literal[..at].rfind(|c| !word(c)).map_or(0, |n| n + 1);
        names.push(&literal[start..at]);
    }
    names
}

/// The index behind the group that opens at `open`.
pub(crate) fn behind_group(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The index behind the attributes that begin at `at`.
fn behind_attributes(tokens: &[Token], mut at: usize) -> usize {
    while is(tokens, at, "#") && is(tokens, at + 1, "[") {
        at = behind_group(tokens, at + 1);
    }
    at
}

/// The index behind a visibility, if one begins at `at`.
pub(crate) fn behind_visibility(tokens: &[Token], at: usize) -> usize {
    if !is(tokens, at, "pub") {
        return at;
    }
    let restricted = is(tokens, at + 1, "(")
        && ["crate", "super", "self", "in"]
            .iter()
            .any(|w| is(tokens, at + 2, w));
    if restricted {
        behind_group(tokens, at + 1)
    } else {
        at + 1
    }
}

const ITEMS: [&str; 14] = [
    "fn", "mod", "use", "struct", "enum", "union", "impl", "trait", "const", "static", "type", "unsafe",
    "async", "extern",
];

/// The index behind the item, field, arm or statement that begins at `at`, attributes first.
pub(crate) fn behind_item(tokens: &[Token], at: usize) -> usize {
    let mut at = behind_visibility(tokens, behind_attributes(tokens, at));
    let first = tokens.get(at).map_or("", |t| t.text.as_str());
    let item = ITEMS.contains(&first);
    let value = match first {
        "use" | "let" | "static" | "type" => true,
        "const" => !["fn", "unsafe", "async", "extern"]
            .iter()
            .any(|w| is(tokens, at + 1, w)),
        _ => false,
    };
    let block = ["if", "match", "for", "while", "loop"].contains(&first);
    let invoked = is(tokens, at + 1, "!");
    let mut angles = 0i32;
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            _ if token.kind == Kind::Close => return at,
            _ if token.kind == Kind::Open => {
                let end = behind_group(tokens, at);
                let braces = token.is("{");
                let arm = at > 0 && is(tokens, at - 1, "=>");
                if braces && !value && (item || block || invoked || arm || at == 0) {
                    return end + usize::from(is(tokens, end, ",") && arm);
                }
                at = end;
                continue;
            }
            ";" => return at + 1,
            "," if !item && !value && angles <= 0 => return at + 1,
            "<" => angles += 1,
            ">" => angles -= 1,
            _ => {}
        }
        at += 1;
    }
    at
}

/// Whether a `cfg` predicate holds in tests only.
fn requires_test(predicate: &[Token]) -> bool {
    let Some(first) = predicate.first() else {
        return false;
    };
    if predicate.len() == 1 {
        return first.is("test");
    }
    let inner = predicate.get(2..predicate.len() - 1).unwrap_or_default();
    let mut parts = Vec::new();
    let (mut begin, mut at) = (0, 0);
    while at < inner.len() {
        if inner[at].kind == Kind::Open {
            at = behind_group(inner, at);
            continue;
        }
        if inner[at].is(",") {
            parts.push(&inner[begin..at]);
            begin = at + 1;
        }
        at += 1;
    }
    if begin < inner.len() {
        parts.push(&inner[begin..]);
    }
    match first.text.as_str() {
        "all" => parts.into_iter().any(requires_test),
        "any" => !parts.is_empty() && parts.into_iter().all(requires_test),
        _ => false,
    }
}

/// Whether the attribute between these brackets makes its item code of tests.
fn marks_test(attribute: &[Token]) -> bool {
    match attribute {
        [cfg, _, predicate @ .., _] if cfg.is("cfg") => requires_test(predicate),
        _ => {
            let end = attribute
                .iter()
                .position(|t| !t.is_ident() && !t.is("::"))
                .unwrap_or(attribute.len());
            attribute[..end].last().is_some_and(|t| t.is("test"))
        }
    }
}

fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let inner = is(tokens, at + 1, "!");
        let open = at + 1 + usize::from(inner);
        if is(tokens, at, "#") && is(tokens, open, "[") {
            let end = behind_group(tokens, open);
            if marks_test(&tokens[open + 1..end - 1]) {
                at = if inner {
                    behind_enclosing(tokens, end)
                } else {
                    behind_item(tokens, at)
                };
                continue;
            }
        }
        kept.push(tokens[at].clone());
        at += 1;
    }
    kept
}

/// The index of the bracket that closes the group around `at`, or of the end.
fn behind_enclosing(tokens: &[Token], mut at: usize) -> usize {
    while let Some(token) = tokens.get(at) {
        match token.kind {
            Kind::Close => return at,
            Kind::Open => at = behind_group(tokens, at),
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        let texts: Vec<_> = production(text).unwrap().into_iter().map(|t| t.text).collect();
        texts.join(" ")
    }

    #[test]
    fn comments_and_lifetimes_are_no_tokens() {
        assert_eq!(
            words("//! One\n/// Two\nfn a<'b>(c: &'b D) {} // three"),
            "fn a < > ( c : & D ) { }"
        );
        let list = tokens("fn a() {\n\n    b::c()\n}").unwrap();
        let b = list.iter().find(|t| t.is("b")).unwrap();
        assert_eq!(b.line, 3);
    }

    #[test]
    fn code_of_tests_is_left_out() {
        assert_eq!(
            words("fn a() {}\n#[cfg(test)]\nmod tests { fn b() {} }\nfn c() {}"),
            "fn a ( ) { } fn c ( ) { }"
        );
        assert_eq!(
            words("#[cfg(all(test, not(loom)))] mod tests; fn c() {}"),
            "fn c ( ) { }"
        );
        assert_eq!(words("#[cfg(test)] use a::{b, c}; d();"), "d ( ) ;");
        assert_eq!(
            words("#[cfg(test)] pub(crate) const A: [u8; 2] = [1, 2]; d();"),
            "d ( ) ;"
        );
        assert_eq!(
            words("struct A { #[cfg(test)] b: C<D, E>, f: G }"),
            "struct A { f : G }"
        );
        assert_eq!(
            words("mod t { #![cfg(test)] fn a() {} } b();"),
            "mod t { } b ( ) ;"
        );
        assert_eq!(
            words("#[test] fn a() {} #[tokio::test] async fn b() {} c();"),
            "c ( ) ;"
        );
        assert_eq!(
            words("match a { #[cfg(test)] B => { c } D => e }"),
            "match a { D => e }"
        );
    }

    #[test]
    fn code_of_production_is_kept() {
        for text in [
            "# [ cfg ( not ( test ) ) ] fn a ( ) { }",
            "# [ cfg ( any ( test , unix ) ) ] mod a { }",
        ] {
            assert_eq!(words(text), text);
        }
    }

    #[test]
    fn names_in_strings_are_seen() {
        let names = |text: &str| {
            let list = production(text).unwrap().into_iter();
            list.filter(|t| t.kind == Kind::Quoted)
                .map(|t| t.text)
                .collect::<Vec<_>>()
        };
        assert_eq!(names("println!(\"a {MOST} {:>width$}\")"), ["MOST", "width"]);
        assert_eq!(
            names("#[serde(default = \"one::two\")] fn a() { \"three\" }"),
            ["one", "two"]
        );
    }
}
