//! The interrupt key ends a measurement but not the program, which prints the results so far. Pressed again,
//! it ends the program.

use heddle_sys::signal::{Signal, Signals};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A second signal within this time counts as the first: `timeout` signals its command, and then its whole
/// group.
const TWICE: Duration = Duration::from_millis(200);

static ENOUGH: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// A flag that the first interrupt sets. From the first call on, interrupts no longer end the program at
/// once.
///
/// # Errors
/// No thread can be started.
pub(crate) fn enough() -> io::Result<Arc<AtomicBool>> {
    enough_by(&[Signal::INT])
}

/// Like [`enough`], but also set by SIGTERM and by the end of the terminal.
///
/// # Errors
/// The errors of [`enough`].
pub(crate) fn ended() -> io::Result<Arc<AtomicBool>> {
    enough_by(&[Signal::INT, Signal::TERM, Signal::HUP])
}

fn enough_by(these: &[Signal]) -> io::Result<Arc<AtomicBool>> {
    let mut made = ENOUGH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(enough) = &*made {
        return Ok(enough.clone());
    }
    let (enough, signals) = (Arc::new(AtomicBool::new(false)), Signals::hold(these)?);
    let set = enough.clone();
    std::thread::Builder::new()
        .name("interrupts".into())
        .spawn(move || {
            let mut first = None;
            while signals.next().is_ok() {
                set.store(true, Relaxed);
                let since = first.get_or_insert_with(Instant::now).elapsed();
                if since > TWICE {
                    std::process::exit(130);
                }
            }
        })?;
    Ok(made.insert(enough).clone())
}
