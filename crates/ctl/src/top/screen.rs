//! The terminal that frames are shown on: what of a frame is seen, and keys.
//!
//! Nothing scrolls the terminal: each row is addressed, and holds at most as many cells as there are columns.
//! What does not fit is reached with keys. The terminal is put back to what it was however this ends, but by
//! SIGKILL.
//!
//! Three threads, so that no one waits for another: one asks the switch, which may not answer; one reads
//! keys; one takes signals. All tell [`Screen::run`], which alone draws.

use super::cells;
use super::frame;
use super::sample::Sample;
use anyhow::Result;
use heddle_sys::terminal::{self, Asked, Keys, Signals};
use std::io::{Read as _, Stdin, Stdout, Write as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::Duration;

/// The other screen, no cursor, no wrapping at the right edge; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// What is taken for the size of a terminal that does not know it.
const SIZE: (usize, usize) = (80, 24);
/// Columns that a key moves by.
const ASIDE: usize = 8;
/// Bounds of the interval.
const SHORTEST: f64 = 0.1;
const LONGEST: f64 = 60.0;

/// What happens to the screen.
enum Event {
    Sample(Box<Result<Sample>>),
    Key(Key),
    Asked(Asked),
}

/// What a user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Quit,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Faster,
    Slower,
    Now,
}

/// The keys in some bytes that a terminal has sent; those that mean nothing are left out.
fn keys(mut bytes: &[u8]) -> Vec<Key> {
    const SEQUENCES: [(&[u8], Key); 14] = [
        (b"\x1b[A", Key::Up),
        (b"\x1bOA", Key::Up),
        (b"\x1b[B", Key::Down),
        (b"\x1bOB", Key::Down),
        (b"\x1b[C", Key::Right),
        (b"\x1bOC", Key::Right),
        (b"\x1b[D", Key::Left),
        (b"\x1bOD", Key::Left),
        (b"\x1b[5~", Key::PageUp),
        (b"\x1b[6~", Key::PageDown),
        (b"\x1b[H", Key::Home),
        (b"\x1b[1~", Key::Home),
        (b"\x1b[F", Key::End),
        (b"\x1b[4~", Key::End),
    ];
    let mut keys = Vec::new();
    while let [first, rest @ ..] = bytes {
        if *first == 0x1b {
            let known = SEQUENCES.iter().find(|(text, _)| bytes.starts_with(text));
            keys.extend(known.map(|(_, key)| *key));
            bytes = match (known, rest) {
                (Some((text, _)), _) => &bytes[text.len()..],
                // The sequence of another key ends with a letter or `~`.
                (None, [b'[', more @ ..]) => {
                    let end = more.iter().position(|b| (0x40..=0x7e).contains(b));
                    end.map_or(&[], |end| &more[end + 1..])
                }
                (None, _) => rest,
            };
            continue;
        }
        bytes = rest;
        keys.extend(match first {
            b'q' | b'Q' | 3 | 4 => Some(Key::Quit),
            b'k' => Some(Key::Up),
            b'j' => Some(Key::Down),
            b'h' => Some(Key::Left),
            b'l' => Some(Key::Right),
            b'g' => Some(Key::Home),
            b'G' => Some(Key::End),
            b'+' | b'=' => Some(Key::Faster),
            b'-' => Some(Key::Slower),
            b' ' => Some(Key::Now),
            _ => None,
        });
    }
    keys
}

/// The part of a frame that is seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct View {
    /// The first of the lines below the head, and the first cell of all.
    top: usize,
    left: usize,
}

impl View {
    /// As far as there is something to see.
    fn bounded(self, lines: &[String], columns: usize, rows: usize) -> View {
        let widest = lines.iter().map(|l| cells::width(l)).max().unwrap_or(0);
        View {
            top: self.top.min(lines.len().saturating_sub(rows)),
            left: self.left.min(widest.saturating_sub(columns)),
        }
    }
    fn moved(self, key: Key, rows: usize) -> View {
        let View { top, left } = self;
        match key {
            Key::Up => View {
                top: top.saturating_sub(1),
                left,
            },
            Key::Down => View { top: top + 1, left },
            Key::PageUp => View {
                top: top.saturating_sub(rows),
                left,
            },
            Key::PageDown => View {
                top: top + rows,
                left,
            },
            Key::Home => View::default(),
            Key::End => View {
                top: usize::MAX / 2,
                left,
            },
            Key::Left => View {
                top,
                left: left.saturating_sub(ASIDE),
            },
            Key::Right => View {
                top,
                left: left + ASIDE,
            },
            Key::Quit | Key::Faster | Key::Slower | Key::Now => self,
        }
    }
}

/// Rows between the head and the last row, which tells of keys.
fn body(rows: usize) -> usize {
    rows.saturating_sub(2)
}

/// What the terminal is sent for a frame.
fn drawn(head: &str, lines: &[String], view: View, (columns, rows): (usize, usize), interval: f64) -> String {
    let body = body(rows);
    let mut shown = vec![cells::window(head, 0, columns).0];
    shown.extend(
        lines
            .iter()
            .skip(view.top)
            .take(body)
            .map(|l| cells::window(l, view.left, columns).0),
    );
    shown.resize(rows.saturating_sub(1).max(1), String::new());
    if rows > 1 {
        let last = (view.top + body).min(lines.len());
        let part = match lines.len() > body {
            true => format!("lines {}-{last} of {}   ", view.top + 1, lines.len()),
            false => String::new(),
        };
        let foot = format!("{part}q: end   arrows: move   + -: every {interval} s   space: now");
        shown.push(cells::window(&foot, 0, columns).0);
    }
    // Cleared first: behind text in the last column the cursor still stands on it.
    let rows = shown
        .iter()
        .zip(1..)
        .map(|(text, row)| format!("\x1b[{row};1H\x1b[2K{text}"));
    rows.collect()
}

/// What is on the screen.
struct Screen<'a> {
    out: &'a Stdout,
    before: Option<Sample>,
    now: Option<Result<Sample>>,
    view: View,
    interval: f64,
}

/// Shows what `look` tells until the user has enough.
pub(super) fn run(interval: f64, look: impl Fn() -> Result<Sample> + Send + 'static) -> Result<()> {
    let signals = Signals::hold()?;
    let (events, happens) = mpsc::sync_channel(16);
    let (pace, paces) = mpsc::channel();
    let asked = events.clone();
    std::thread::spawn(move || {
        while let Ok(what) = signals.next()
            && asked.send(Event::Asked(what)).is_ok()
        {}
    });
    let pressed = events.clone();
    std::thread::spawn(move || read_keys(&std::io::stdin(), &pressed));
    std::thread::spawn(move || sample(look, interval, &events, &paces));
    let (out, stdin) = (std::io::stdout(), std::io::stdin());
    let mut screen = Screen {
        out: &out,
        before: None,
        now: None,
        view: View::default(),
        interval,
    };
    loop {
        // Where nobody can press a key the terminal is still drawn on.
        let keys = Keys::of(stdin.as_fd()).ok();
        screen.send(ENTER)?;
        let ended = screen.run(&happens, &pace);
        // A terminal that is gone needs nothing put back.
        let _ = screen.send(LEAVE);
        drop(keys);
        if ended? {
            return Ok(());
        }
        terminal::stop()?;
    }
}

fn read_keys(stdin: &Stdin, events: &SyncSender<Event>) {
    let mut bytes = [0; 64];
    // At its end nobody presses keys any more; the terminal's own end comes as a signal.
    while let Ok(n @ 1..) = stdin.lock().read(&mut bytes) {
        for key in keys(&bytes[..n]) {
            if events.send(Event::Key(key)).is_err() {
                return;
            }
        }
    }
}

/// Asks the switch again and again, each time after the interval that was told last, or when another one is
/// told.
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

impl Screen<'_> {
    fn send(&self, text: &str) -> std::io::Result<()> {
        let mut out = self.out.lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
    fn size(&self) -> (usize, usize) {
        let size = terminal::size(self.out.as_fd());
        size.map_or(SIZE, |(columns, rows)| (columns.into(), rows.into()))
    }

    /// Draws whatever happens; returns whether that is all, or the process is to be stopped.
    fn run(&mut self, events: &Receiver<Event>, pace: &Sender<f64>) -> Result<bool> {
        loop {
            self.draw()?;
            match events.recv() {
                Err(_) | Ok(Event::Key(Key::Quit) | Event::Asked(Asked::End)) => return Ok(true),
                Ok(Event::Asked(Asked::Stop)) => return Ok(false),
                Ok(Event::Asked(Asked::Resized)) => {}
                Ok(Event::Sample(sample)) => {
                    self.before = self.now.take().and_then(Result::ok);
                    self.now = Some(*sample);
                }
                Ok(Event::Key(key)) => {
                    self.interval = match key {
                        Key::Faster => (self.interval / 2.0).max(SHORTEST),
                        Key::Slower => (self.interval * 2.0).min(LONGEST.max(self.interval)),
                        _ => self.interval,
                    };
                    if matches!(key, Key::Faster | Key::Slower | Key::Now) {
                        // Whoever asks the switch lives as long as this does.
                        let _ = pace.send(self.interval);
                    }
                    self.view = self.view.moved(key, body(self.size().1));
                }
            }
        }
    }

    fn draw(&mut self) -> Result<()> {
        let (columns, rows) = self.size();
        let (head, lines) = match (&self.before, &self.now) {
            (Some(before), Some(Ok(now))) => frame::lines(before, now, columns),
            (_, Some(Err(why))) => (
                "heddle top: waiting for the switch".to_owned(),
                vec![cells::clean(&format!("{why:#}"))],
            ),
            _ => ("heddle top: measuring ...".to_owned(), Vec::new()),
        };
        self.view = self.view.bounded(&lines, columns, body(rows));
        self.send(&drawn(&head, &lines, self.view, (columns, rows), self.interval))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_terminals() {
        assert_eq!(keys(b"\x1b[A\x1bOBj"), [Key::Up, Key::Down, Key::Down]);
        assert_eq!(keys(b"\x1b[15~q"), [Key::Quit], "a function key before");
        assert_eq!(keys(b"\x1b[1;5A\x1b[6~"), [Key::PageDown], "with control held");
        assert_eq!(keys(b"\x1b"), []);
        assert_eq!(keys(b"\x1b[1"), []);
        assert_eq!(keys(b"x \xff+"), [Key::Now, Key::Faster]);
    }

    #[test]
    fn views_end_where_the_frame_does() {
        let lines: Vec<String> = (0..10).map(|i| format!("line {i}")).collect();
        let seen = |key| View::default().moved(key, 4).bounded(&lines, 4, 4);
        assert_eq!(seen(Key::End), View { top: 6, left: 0 });
        assert_eq!(seen(Key::PageDown), View { top: 4, left: 0 });
        assert_eq!(seen(Key::Up), View::default());
        assert_eq!(seen(Key::Right), View { top: 0, left: 2 });
        let all = View { top: 9, left: 9 };
        assert_eq!(all.bounded(&lines, 80, 24), View::default());
    }

    #[test]
    fn any_size_is_kept_to() {
        let lines: Vec<String> = (0..10).map(|i| format!("{i} {}", "端".repeat(30))).collect();
        for (columns, rows) in [(80, 24), (7, 5), (1, 1), (2, 2), (200, 60)] {
            let text = drawn(
                "heddle top",
                &lines,
                View { top: 3, left: 3 },
                (columns, rows),
                1.0,
            );
            let shown: Vec<&str> = text.split("\x1b[2K").collect();
            assert_eq!(shown.len(), rows + 1);
            for row in &shown[1..] {
                let row = row.split('\x1b').next().unwrap();
                assert!(cells::width(row) <= columns, "{row}");
            }
        }
    }
}
