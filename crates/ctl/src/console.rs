//! Texts for people, on standard output and on standard error.

use anyhow::{Context as _, Result, bail};
use std::fmt;
use std::io::{self, Write as _};

/// The reader of standard output has read enough. The program ends with success.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enough;

impl fmt::Display for Enough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output has no reader")
    }
}

impl std::error::Error for Enough {}

/// Faults that standard output has listed. The program ends with status 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults;

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faults were found")
    }
}

impl std::error::Error for Faults {}

/// Writes to standard output, without delay.
///
/// # Errors
/// [`Enough`] if there is no reader; another error on a full disk, for example.
pub(crate) fn out(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => bail!(Enough),
        done => done.context("standard output"),
    }
}

/// An error with its causes. Many texts contain that of their cause already; it is not repeated.
pub(crate) fn error(e: &anyhow::Error) -> String {
    let mut all = String::new();
    for cause in e.chain() {
        let text = cause.to_string();
        if all.is_empty() {
            all = text;
        } else if !all.contains(&text) {
            all = format!("{all}: {text}");
        }
    }
    all
}

/// Reports what the program waits for.
pub(crate) fn waiting(text: &str) {
    eprintln!("heddle: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use heddle_vhost_user::frontend::Listener;

    #[test]
    fn no_text_is_printed_twice() {
        let path = std::path::Path::new("/no/such/directory/socket");
        let e = Listener::bind(path).map(drop).context("port 0").unwrap_err();
        assert_eq!(
            error(&e),
            "port 0: /no/such/directory/socket: No such file or directory (os error 2)"
        );
        assert_eq!(error(&anyhow::anyhow!("one").context("two")), "two: one");
    }
}
