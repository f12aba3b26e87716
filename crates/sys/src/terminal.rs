//! A terminal that is drawn on: its size, keys without waiting for the end of a line, and the signals that
//! concern it.
//!
//! Invariant: the terminal is put back to what it was when [`Keys`] is dropped. Signals that would end or
//! stop the process are therefore taken by [`Signals`] instead of ending it in the middle.

use crate::signal::{self, Signal};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io;
use std::os::fd::BorrowedFd;

/// Columns and rows; `None`: it is no terminal, or does not know.
pub fn size(fd: BorrowedFd<'_>) -> Option<(u16, u16)> {
    let size = tcgetwinsize(fd).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// While this lives, the terminal gives keys at once and does not print them.
#[derive(Debug)]
pub struct Keys<'a> {
    fd: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> Keys<'a> {
    /// Asks the terminal `fd` for single keys. Keys that send signals still do.
    ///
    /// # Errors
    /// `ENOTTY` where it is none.
    pub fn of(fd: BorrowedFd<'a>) -> io::Result<Self> {
        let before = tcgetattr(fd)?;
        let mut now = before.clone();
        now.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(fd, OptionalActions::Now, &now)?;
        Ok(Self { fd, before })
    }
}

impl Drop for Keys<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing put back.
        let _ = tcsetattr(self.fd, OptionalActions::Now, &self.before);
    }
}

/// What a signal asks of whoever draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The size is another one.
    Resized,
    /// Stop until continued: put the terminal back and call [`stop`].
    Stop,
    /// End.
    End,
}

/// Signals that this process takes when it asks for them.
#[derive(Clone, Copy, Debug)]
pub struct Signals(signal::Signals);

impl Signals {
    /// From now on they wait, in this thread and those that it starts.
    ///
    /// # Errors
    /// None in practice.
    pub fn hold() -> io::Result<Self> {
        let all = [
            Signal::INT,
            Signal::TERM,
            Signal::HUP,
            Signal::QUIT,
            Signal::TSTP,
            Signal::WINCH,
        ];
        signal::Signals::hold(&all).map(Self)
    }
    /// As [`Signals::hold`], of the interrupt key's alone.
    ///
    /// # Errors
    /// None in practice.
    pub fn interrupts() -> io::Result<Self> {
        signal::Signals::hold(&[Signal::INT]).map(Self)
    }
    /// Waits for the next one.
    ///
    /// # Errors
    /// None in practice.
    pub fn next(&self) -> io::Result<Asked> {
        Ok(match self.0.next()? {
            Signal::WINCH => Asked::Resized,
            Signal::TSTP => Asked::Stop,
            _ => Asked::End,
        })
    }
}

/// Stops this process, until somebody continues it.
///
/// # Errors
/// None in practice.
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
        assert_eq!(
            Keys::of(file.as_fd()).unwrap_err().raw_os_error(),
            Some(libc::ENOTTY)
        );
    }
}
