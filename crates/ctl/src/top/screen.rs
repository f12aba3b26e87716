//! The terminal that frames are shown on.
//!
//! Ratatui draws a [`Page`]: it sends only the cells that have changed. [`Shown`] restores the terminal when
//! it is dropped, so the terminal is restored after any end but SIGKILL.
//!
//! Three threads, so that none waits for another: one queries the switch, which may not reply; one reads
//! keys; one takes signals. All send events to [`run`], which alone draws.

use super::keys::Key;
use super::page::Page;
use super::sample::Sample;
use anyhow::Result;
use heddle_sys::terminal::{self, Asked, Signals};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, event, execute};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use std::io::{self, BufWriter, Stdout, stdout};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::Duration;

/// Size of a terminal that does not report one.
const SIZE: (u16, u16) = (80, 24);

/// An event for the screen.
enum Event {
    Sample(Box<Result<Sample>>),
    Key(Key),
    Resized,
    Requested(Asked),
}

/// The terminal while it is drawn on.
struct Shown {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    area: Rect,
}

fn area() -> Rect {
    let (columns, rows) = terminal::size(stdout().as_fd()).unwrap_or(SIZE);
    Rect::new(0, 0, columns, rows)
}

impl Shown {
    fn enter() -> io::Result<Shown> {
        // A terminal without keys is still drawn on.
        let _ = enable_raw_mode();
        let area = area();
        // The cursor's position is never queried: the reply would come as keys do, which another thread
        // reads.
        let viewport = Viewport::Fixed(area);
        let backend = CrosstermBackend::new(BufWriter::new(stdout()));
        let terminal = Terminal::with_options(backend, TerminalOptions { viewport })?;
        let shown = Shown { terminal, area };
        execute!(stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(shown)
    }

    fn draw(&mut self, page: &mut Page) -> io::Result<()> {
        let area = area();
        if area != self.area {
            self.terminal.resize(area)?;
            self.area = area;
        }
        self.terminal.draw(|frame| page.render(frame))?;
        Ok(())
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = execute!(stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Shows the samples that `look` returns, until the user quits.
pub(super) fn run(interval: f64, look: impl Fn() -> Result<Sample> + Send + 'static) -> Result<()> {
    let signals = Signals::hold()?;
    let (events, happens) = mpsc::sync_channel(16);
    let (pace, paces) = mpsc::channel();
    let asked = events.clone();
    std::thread::spawn(move || {
        while let Ok(what) = signals.next()
            && asked.send(Event::Requested(what)).is_ok()
        {}
    });
    let pressed = events.clone();
    std::thread::spawn(move || read_keys(&pressed));
    std::thread::spawn(move || sample(look, interval, &events, &paces));
    let mut page = Page::new(interval);
    loop {
        let mut shown = Shown::enter()?;
        let ended = show(&mut page, &mut shown, &happens, &pace);
        drop(shown);
        if ended? {
            return Ok(());
        }
        terminal::stop()?;
    }
}

/// Draws after each event. Returns true if the program is to end, false if the process is to be stopped.
fn show(page: &mut Page, shown: &mut Shown, events: &Receiver<Event>, pace: &Sender<f64>) -> Result<bool> {
    loop {
        shown.draw(page)?;
        match events.recv() {
            Err(_) | Ok(Event::Key(Key::Quit) | Event::Requested(Asked::End)) => return Ok(true),
            Ok(Event::Key(Key::Stop) | Event::Requested(Asked::Stop)) => return Ok(false),
            Ok(Event::Resized) => {}
            Ok(Event::Sample(sample)) => page.learn(*sample),
            Ok(Event::Key(key)) => {
                if page.pressed(key) {
                    // The sampling thread lives as long as this one.
                    let _ = pace.send(page.interval());
                }
            }
        }
    }
}

fn read_keys(events: &SyncSender<Event>) {
    // Without a terminal there are no keys to read. The end of the terminal comes as a signal.
    while let Ok(event) = event::read() {
        let event = match event {
            event::Event::Key(key) => Key::of(key).map(Event::Key),
            event::Event::Resize(..) => Some(Event::Resized),
            _ => None,
        };
        if event.is_some_and(|event| events.send(event).is_err()) {
            return;
        }
    }
}

/// Queries the switch repeatedly, each time after the last received interval, or when a new interval is
/// received.
fn sample(
    look: impl Fn() -> Result<Sample>,
    mut interval: f64,
    events: &SyncSender<Event>,
    paces: &Receiver<f64>,
) {
    while events.send(Event::Sample(Box::new(look()))).is_ok() {
        match paces.recv_timeout(Duration::from_secs_f64(interval)) {
            Ok(other) => interval = other,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Ok(other) = paces.try_recv() {
            interval = other;
        }
    }
}
