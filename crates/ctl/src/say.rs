//! What people are told on standard error.

/// An error with its causes. Many texts hold that of their cause already: it is not said again.
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

/// Tells what is waited for.
pub(crate) fn waiting(text: &str) {
    eprintln!("heddle: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use heddle_vhost_user::frontend::Listener;

    #[test]
    fn no_text_is_said_twice() {
        let path = std::path::Path::new("/no/such/directory/socket");
        let e = Listener::bind(path).map(drop).context("port 0").unwrap_err();
        assert_eq!(
            error(&e),
            "port 0: /no/such/directory/socket: No such file or directory (os error 2)"
        );
        assert_eq!(error(&anyhow::anyhow!("one").context("two")), "two: one");
    }
}
