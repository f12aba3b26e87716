//! A terminal that is drawn on: its size, and the signals that concern it.
//!
//! The program that draws puts the terminal back to its first state. Signals that would end or stop the
//! process are therefore taken by [`Signals`] instead of ending it in the middle.

use crate::signal::{self, Signal};
use rustix::termios::tcgetwinsize;
use std::io;
use std::os::fd::BorrowedFd;

/// Columns and rows; `None`: it is no terminal, or does not know.
pub fn size(fd: BorrowedFd<'_>) -> Option<(u16, u16)> {
    let size = tcgetwinsize(fd).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// The program's reaction to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Stop until continued: put the terminal back and call [`stop`].
    Stop,
    /// End.
    End,
}

/// Signals that this process takes by a call.
#[derive(Clone, Copy, Debug)]
pub struct Signals(signal::Signals);

impl Signals {
    /// From now on they wait, in this thread and those that it starts.
    ///
    /// # Errors
    /// No error in practice.
    pub fn hold() -> io::Result<Self> {
        let all = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::TSTP];
        signal::Signals::hold(&all).map(Self)
    }
    /// Waits for the next one.
    ///
    /// # Errors
    /// No error in practice.
    pub fn next(&self) -> io::Result<Asked> {
        Ok(match self.0.next()? {
            Signal::TSTP => Asked::Stop,
            _ => Asked::End,
        })
    }
}

/// Stops this process, until another one continues it.
///
/// # Errors
/// No error in practice.
pub fn stop() -> io::Result<()> {
    signal::raise(Signal::STOP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_no_terminal() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(size(file.as_fd()), None);
    }
}
