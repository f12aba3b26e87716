//! A terminal that is drawn on: its size, keys without waiting for the end of a line, and the signals that concern it.
//!
//! Invariant: the terminal is put back to what it was when [`Keys`] is dropped. Signals that would end or stop the process are therefore taken by
//! [`Signals`] instead of ending it in the middle.

use nix::sys::signal::{SigSet, Signal, raise};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Columns and rows; `None`: it is no terminal, or does not know.
pub fn size(fd: BorrowedFd<'_>) -> Option<(u16, u16)> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ writes one winsize, and the pointer is to one.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (done == 0 && size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// While this lives, the terminal gives keys at once and does not print them.
#[derive(Debug)]
pub struct Keys<'a> {
    fd: BorrowedFd<'a>,
    before: libc::termios,
}

impl<'a> Keys<'a> {
    /// Asks the terminal `fd` for single keys. Keys that send signals still do.
    ///
    /// # Errors
    /// `ENOTTY` where it is none.
    pub fn of(fd: BorrowedFd<'a>) -> io::Result<Self> {
        // SAFETY: a termios is integers only.
        let mut now: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and the pointer is to a termios.
        crate::cvt(unsafe { libc::tcgetattr(fd.as_raw_fd(), &raw mut now) })?;
        let before = now;
        now.c_lflag &= !(libc::ICANON | libc::ECHO);
        (now.c_cc[libc::VMIN], now.c_cc[libc::VTIME]) = (1, 0);
        // SAFETY: as above.
        crate::cvt(unsafe { libc::tcsetattr(fd.as_raw_fd(), libc::TCSANOW, &raw const now) })?;
        Ok(Self { fd, before })
    }
}

impl Drop for Keys<'_> {
    fn drop(&mut self) {
        // SAFETY: the descriptor is borrowed for as long as this lives; the pointer is to a termios. A terminal that is gone needs nothing put back.
        let _ = unsafe { libc::tcsetattr(self.fd.as_raw_fd(), libc::TCSANOW, &raw const self.before) };
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
pub struct Signals(SigSet);

impl Signals {
    /// From now on they wait, in this thread and those that it starts.
    ///
    /// # Errors
    /// None in practice.
    pub fn hold() -> io::Result<Self> {
        let all = [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGQUIT,
            Signal::SIGTSTP,
            Signal::SIGWINCH,
        ];
        Self::of(all.into_iter().collect())
    }
    /// As [`Signals::hold`], of the interrupt key's alone.
    ///
    /// # Errors
    /// None in practice.
    pub fn interrupts() -> io::Result<Self> {
        Self::of([Signal::SIGINT].into_iter().collect())
    }
    fn of(set: SigSet) -> io::Result<Self> {
        set.thread_block()?;
        Ok(Self(set))
    }
    /// Waits for the next one.
    ///
    /// # Errors
    /// None in practice.
    pub fn next(&self) -> io::Result<Asked> {
        Ok(match self.0.wait()? {
            Signal::SIGWINCH => Asked::Resized,
            Signal::SIGTSTP => Asked::Stop,
            _ => Asked::End,
        })
    }
}

/// Stops this process, until somebody continues it.
///
/// # Errors
/// None in practice.
pub fn stop() -> io::Result<()> {
    Ok(raise(Signal::SIGSTOP)?)
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
