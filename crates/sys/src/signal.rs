//! Signals that a thread takes by a call, instead of being interrupted by them.
//!
//! They go through libc, whose threads and timers have signals of their own: a mask that is set behind its
//! back could hold them up.

#![allow(unsafe_code)] // signal sets

use crate::cvt;
pub use rustix::process::Signal;
use std::ffi::CStr;
use std::io;

/// Signals that wait for [`Signals::next`].
#[derive(Clone, Copy, Debug)]
pub struct Signals(libc::sigset_t);

/// pthread functions return the error's number.
fn done(error: libc::c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

impl Signals {
    fn of(signals: &[Signal]) -> Self {
        // SAFETY: an empty set is made, and signals are added that exist.
        unsafe {
            let mut set: libc::sigset_t = core::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in signals {
                libc::sigaddset(&raw mut set, signal.as_raw());
            }
            Self(set)
        }
    }
    fn mask(&self, how: libc::c_int) -> io::Result<()> {
        // SAFETY: the set is valid; the pointer for the old one is null.
        done(unsafe { libc::pthread_sigmask(how, &raw const self.0, core::ptr::null_mut()) })
    }
    /// From now on `signals` wait, in this thread and those that it starts.
    ///
    /// # Errors
    /// No error in practice.
    pub fn hold(signals: &[Signal]) -> io::Result<Self> {
        let set = Self::of(signals);
        set.mask(libc::SIG_BLOCK)?;
        Ok(set)
    }
    /// Waits for the next one.
    ///
    /// # Errors
    /// No error in practice.
    pub fn next(&self) -> io::Result<Signal> {
        let mut signal = 0;
        // SAFETY: the set is valid, and `signal` is writable.
        done(unsafe { libc::sigwait(&raw const self.0, &raw mut signal) })?;
        Signal::from_named_raw(signal).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Sends `signal` to this thread, which takes it at once.
///
/// # Errors
/// No error in practice.
pub fn raise(signal: Signal) -> io::Result<()> {
    Signals::of(&[signal]).mask(libc::SIG_UNBLOCK)?;
    // SAFETY: takes a number only.
    cvt(unsafe { libc::raise(signal.as_raw()) }).map(drop)
}

/// The system's words for a signal: `Segmentation fault`.
pub fn text(signal: Signal) -> String {
    // SAFETY: the text of a signal that has a name is constant.
    let text = unsafe { CStr::from_ptr(libc::strsignal(signal.as_raw())) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_taken_when_asked_for() {
        let held = Signals::hold(&[Signal::USR1, Signal::USR2]).unwrap();
        // SAFETY: takes a number only; the signal is held.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
        assert_eq!(held.next().unwrap(), Signal::USR2);
        assert_eq!(text(Signal::SEGV), "Segmentation fault");
    }
}
