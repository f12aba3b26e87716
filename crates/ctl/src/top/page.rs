//! The contents of the screen: the frame, or the page that explains it, and the visible part of it.
//!
//! A page of any size is drawn on a screen of any size. Keys move the visible part.

use super::cells;
use super::frame;
use super::help;
use super::history::History;
use super::keys::{Key, View};
use super::rates::Frame;
use super::sample::Sample;
use anyhow::Result;
use ratatui::layout::Rect;
use ratatui::style::Stylize as _;
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;

/// Bounds of the interval.
const MIN_SECONDS: f64 = 0.1;
const MAX_SECONDS: f64 = 60.0;

/// The result of the last samples.
enum Samples {
    /// No sample yet, or one, from which no rates follow.
    Little,
    Frame(Box<Frame>),
    /// The switch does not reply, for this reason.
    Nothing(String),
}

/// The contents of the screen.
pub(super) struct Page {
    before: Option<Sample>,
    known: Samples,
    history: History,
    view: View,
    /// The view of the frame, while the help page is shown instead of it.
    help: Option<View>,
    interval: f64,
    /// Rows for lines on the screen, when it was last drawn.
    rows: usize,
}

impl Page {
    pub(super) fn new(interval: f64) -> Page {
        Page {
            before: None,
            known: Samples::Little,
            history: History::default(),
            view: View::default(),
            help: None,
            interval,
            rows: 0,
        }
    }

    /// Takes in a sample of the switch, or the reason why there is none.
    pub(super) fn learn(&mut self, sample: Result<Sample>) {
        match sample {
            Ok(now) => {
                self.known = match &self.before {
                    Some(before) => {
                        let frame = Frame::between(before, &now);
                        self.history.add(&frame);
                        Samples::Frame(Box::new(frame))
                    }
                    None => Samples::Little,
                };
                self.before = Some(now);
            }
            Err(why) => {
                self.known = Samples::Nothing(cells::clean(&format!("{why:#}")));
                self.before = None;
            }
        }
    }

    /// Carries out a key's command; returns whether a new sample is to be taken now.
    pub(super) fn pressed(&mut self, key: Key) -> bool {
        if let Some(view) = self.view.moved(key, self.rows) {
            self.view = view;
            return false;
        }
        match key {
            Key::Help => match self.help.take() {
                Some(view) => self.view = view,
                None => self.help = Some(std::mem::take(&mut self.view)),
            },
            Key::Faster => self.interval = (self.interval / 2.0).max(MIN_SECONDS),
            Key::Slower => self.interval = (self.interval * 2.0).min(MAX_SECONDS.max(self.interval)),
            _ => {}
        }
        matches!(key, Key::Faster | Key::Slower | Key::Now)
    }

    /// Seconds between frames.
    pub(super) fn interval(&self) -> f64 {
        self.interval
    }

    /// The first line, and those below it.
    fn lines(&self, columns: usize) -> (String, Vec<Line<'static>>) {
        match &self.known {
            _ if self.help.is_some() => (
                "heddle top: what it shows".to_owned(),
                help::PAGE.lines().map(Line::from).collect(),
            ),
            Samples::Frame(frame) => (frame::head(frame), frame::lines(frame, &self.history, columns)),
            Samples::Nothing(why) => (
                "heddle top: waiting for the switch".to_owned(),
                vec![why.clone().into()],
            ),
            Samples::Little => ("heddle top: measuring ...".to_owned(), Vec::new()),
        }
    }

    /// The last line.
    fn foot(&self, lines: usize) -> String {
        let last = (self.view.top + self.rows).min(lines);
        let part = match lines > self.rows {
            true => format!("lines {}-{last} of {lines}   ", self.view.top + 1),
            false => String::new(),
        };
        let help = if self.help.is_some() { "back" } else { "help" };
        format!(
            "{part}?: {help}  q: end  arrows: move  + -: every {} s  space: now",
            self.interval
        )
    }

    pub(super) fn render(&mut self, screen: &mut ratatui::Frame<'_>) {
        let all = screen.area();
        let row = |y, height| Rect::new(0, y, all.width, height).intersection(all);
        let columns = usize::from(all.width);
        let (head, mut lines) = self.lines(columns);
        let widest = lines.iter().map(Line::width).max().unwrap_or(0);
        let below = all.height.saturating_sub(2);
        self.rows = usize::from(below);
        self.view = self.view.bounded((widest, lines.len()), (columns, self.rows));
        let foot = self.foot(lines.len());
        // Draw only the visible lines: there may be thousands.
        let first = self.view.top.min(lines.len());
        let seen: Vec<Line<'static>> = lines.drain(first..).take(self.rows).collect();
        let aside = u16::try_from(self.view.left).unwrap_or(u16::MAX);
        screen.render_widget(Line::from(head).bold().reversed(), row(0, 1));
        screen.render_widget(Paragraph::new(Text::from(seen)).scroll((0, aside)), row(1, below));
        if all.height > 1 {
            screen.render_widget(Line::from(foot).dim(), row(all.height - 1, 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    /// A page after two samples of a switch with `ports` ports.
    fn page(ports: usize) -> Page {
        let sample = |tsc: u64| {
            let queues: Vec<String> = (0..ports)
                .map(|i| format!(r#"{{"port": "端口{i}", "queue": 0, "core": 0, "percent": 1.0}}"#))
                .collect();
            let text = format!(
                r#"{{"tsc": {tsc}, "tsc_hz": 1000, "flows": 1, "flow_limit": 2, "drops": {{"datapath_drop_tx_full": {tsc}}},
                "workers": [{{"id": 0, "core": 0, "numa": 0, "isolated": false, "counters": {{}}}}], "queues": [{}]}}"#,
                queues.join(",")
            );
            Sample::read(&text)
        };
        let mut page = Page::new(1.0);
        page.learn(sample(1000));
        page.learn(sample(2000));
        page
    }

    /// The rows of a screen of this size.
    fn drawn(page: &mut Page, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| page.render(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cells = buffer.content().chunks(usize::from(columns));
        cells
            .map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect())
            .collect()
    }

    #[test]
    fn any_size_is_drawn_on() {
        for (columns, rows) in [(80, 24), (7, 5), (1, 1), (2, 2), (200, 60), (3, 1)] {
            for left in [0, 1, 3] {
                let mut page = page(10);
                page.view = View { top: 3, left };
                let shown = drawn(&mut page, columns, rows);
                assert!(shown[0].starts_with(&"heddle top"[..usize::from(columns.min(10))]));
                page.pressed(Key::Help);
                drawn(&mut page, columns, rows);
            }
        }
    }

    #[test]
    fn keys_move_in_what_has_no_room() {
        let mut page = page(64);
        let shown = drawn(&mut page, 60, 10);
        assert!(shown[1].starts_with("WORKER NUMA") && shown[9].starts_with("lines 1-8 of "));
        page.pressed(Key::Down);
        assert!(drawn(&mut page, 60, 10)[9].starts_with("lines 2-9 of "));
        page.pressed(Key::End);
        assert!(drawn(&mut page, 60, 10)[8].contains("63"));
        page.pressed(Key::Home);
        page.pressed(Key::Right);
        assert!(drawn(&mut page, 60, 10)[1].starts_with("UMA  BUSY%"));
    }

    #[test]
    fn help_is_left_where_it_was_entered() {
        let mut page = page(64);
        page.pressed(Key::Down);
        let before = drawn(&mut page, 100, 30);
        page.pressed(Key::Help);
        let help = drawn(&mut page, 100, 30);
        assert!(help[0].starts_with("heddle top: what it shows") && help[1].starts_with("WORKERS"));
        assert!(help[29].contains("?: back"));
        // The view of the help page moves, and new samples do not change the page.
        page.pressed(Key::Down);
        page.learn(Err(anyhow::anyhow!("nobody answers")));
        assert!(drawn(&mut page, 100, 30)[1].starts_with("  WORKER "));
        page.pressed(Key::Help);
        assert!(drawn(&mut page, 100, 30)[0].starts_with("heddle top: waiting for the switch"));
        assert!(before[1].starts_with("     0 "));
    }

    #[test]
    fn intervals_have_bounds() {
        let mut page = Page::new(0.3);
        assert!(page.pressed(Key::Faster) && page.pressed(Key::Faster) && page.pressed(Key::Now));
        assert_eq!(page.interval, MIN_SECONDS);
        for _ in 0..20 {
            page.pressed(Key::Slower);
        }
        assert_eq!(page.interval, MAX_SECONDS);
        assert!(!page.pressed(Key::Help) && !page.pressed(Key::Up));
    }
}
