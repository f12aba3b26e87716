//! Warnings of repeated work: each is logged when it comes up, and not again while it lasts.
//!
//! **Problem.** A configuration is applied as a whole after every change of the database, and each time finds
//! the same faults in the same rows. Their warnings would fill the log, and hide the one that is new.
//!
//! **Method.** Work that repeats itself runs in a [`Rounds::round`]. A warning or error that this thread logs
//! meanwhile is dropped if the round before had the same text of the same module. After a round without it,
//! it is logged again.
//!
//! **Threads.** A round covers only the messages of its own thread.

use std::cell::RefCell;
use std::collections::HashSet;

/// Most texts that are remembered; those beyond are logged every time.
const MAX_TEXTS: usize = 4096;

/// The warnings and errors of the rounds of one kind of work.
#[derive(Debug, Default)]
pub struct Rounds {
    before: HashSet<(String, String)>,
    now: HashSet<(String, String)>,
}

thread_local! {
    static RUNNING: RefCell<Option<Rounds>> = const { RefCell::new(None) };
}

impl Rounds {
    /// Does the work of one round. A round within a round is a part of the outer one.
    pub fn round<T>(&mut self, work: impl FnOnce() -> T) -> T {
        if RUNNING.with_borrow(Option::is_some) {
            return work();
        }
        // If the work panics, its warnings are forgotten, which costs a line.
        let this = std::mem::take(self);
        RUNNING.set(Some(Rounds {
            before: this.now,
            now: HashSet::new(),
        }));
        let end = RoundEnd(self);
        let result = work();
        drop(end);
        result
    }

    fn is_news(&mut self, module: &str, text: &str) -> bool {
        let said = (module.to_owned(), text.to_owned());
        let news = !self.before.contains(&said);
        if self.now.len() < MAX_TEXTS {
            self.now.insert(said);
        }
        news
    }
}

/// Gives a round's memory back, however it ends.
struct RoundEnd<'a>(&'a mut Rounds);

impl Drop for RoundEnd<'_> {
    fn drop(&mut self) {
        if let Some(rounds) = RUNNING.take() {
            *self.0 = rounds;
        }
    }
}

/// Whether a warning is to be logged. Always, outside of rounds.
pub(super) fn is_news(module: &str, text: &std::fmt::Arguments<'_>) -> bool {
    RUNNING.with_borrow_mut(|running| {
        running
            .as_mut()
            .is_none_or(|rounds| rounds.is_news(module, &text.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_fault_is_logged_once() {
        let said = |rounds: &mut Rounds, texts: &[&str]| -> Vec<bool> {
            rounds.round(|| texts.iter().map(|t| is_news("m", &format_args!("{t}"))).collect())
        };
        let mut rounds = Rounds::default();
        assert_eq!(said(&mut rounds, &["a", "b"]), [true, true]);
        assert_eq!(said(&mut rounds, &["a", "c", "c"]), [false, true, true]);
        assert_eq!(said(&mut rounds, &["b", "a"]), [true, false]);
        assert!(said(&mut rounds, &[]).is_empty());
        assert_eq!(said(&mut rounds, &["a"]), [true]);
        assert!(is_news("m", &format_args!("a")), "outside");
        let other = rounds.round(|| is_news("n", &format_args!("a")));
        assert!(other, "another module");
    }

    #[test]
    fn a_round_ends_with_its_work() {
        let mut rounds = Rounds::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            rounds.round(|| {
                is_news("m", &format_args!("a"));
                panic!("the work's own mistake")
            })
        }));
        assert!(panicked.is_err());
        assert!(RUNNING.with_borrow(Option::is_none));
        let inner = rounds.round(|| {
            let mut other = Rounds::default();
            other.round(|| is_news("m", &format_args!("b")))
        });
        assert!(inner);
        assert!(
            !rounds.round(|| is_news("m", &format_args!("b"))),
            "it was part of the round"
        );
    }
}
