//! Keys, their commands, and their effect on the view.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Columns by which a key moves the view.
const ASIDE: usize = 8;

/// A user's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Stop,
    Help,
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

impl Key {
    /// The command of a key; `None`: the key has no meaning.
    pub(super) fn of(event: KeyEvent) -> Option<Key> {
        if event.kind == KeyEventKind::Release {
            return None;
        }
        if event.modifiers.contains(KeyModifiers::CONTROL) {
            return match event.code {
                // Control and a backslash is read as control and 4.
                KeyCode::Char('c' | 'd' | '4') => Some(Key::Quit),
                KeyCode::Char('z') => Some(Key::Stop),
                _ => None,
            };
        }
        Some(match event.code {
            KeyCode::Char('q' | 'Q') => Key::Quit,
            KeyCode::Char('?') => Key::Help,
            KeyCode::Up | KeyCode::Char('k') => Key::Up,
            KeyCode::Down | KeyCode::Char('j') => Key::Down,
            KeyCode::Left | KeyCode::Char('h') => Key::Left,
            KeyCode::Right | KeyCode::Char('l') => Key::Right,
            KeyCode::PageUp => Key::PageUp,
            KeyCode::PageDown => Key::PageDown,
            KeyCode::Home | KeyCode::Char('g') => Key::Home,
            KeyCode::End | KeyCode::Char('G') => Key::End,
            KeyCode::Char('+' | '=') => Key::Faster,
            KeyCode::Char('-') => Key::Slower,
            KeyCode::Char(' ') => Key::Now,
            _ => return None,
        })
    }
}

/// The visible part of the lines: the number of its first line, and of its first cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) top: usize,
    pub(super) left: usize,
}

impl View {
    /// The view, limited so that a screen is filled as far as there are lines and cells.
    pub(super) fn bounded(self, (widest, lines): (usize, usize), (columns, rows): (usize, usize)) -> View {
        View {
            top: self.top.min(lines.saturating_sub(rows)),
            left: self.left.min(widest.saturating_sub(columns)),
        }
    }

    /// The view after a key, on a screen of `rows` rows; `None`: the key does not move it.
    pub(super) fn moved(self, key: Key, rows: usize) -> Option<View> {
        let View { top, left } = self;
        let to = |top| View { top, left };
        Some(match key {
            Key::Up => to(top.saturating_sub(1)),
            Key::Down => to(top + 1),
            Key::PageUp => to(top.saturating_sub(rows)),
            Key::PageDown => to(top + rows),
            Key::Home => View::default(),
            Key::End => to(usize::MAX / 2),
            Key::Left => View {
                top,
                left: left.saturating_sub(ASIDE),
            },
            Key::Right => View {
                top,
                left: left + ASIDE,
            },
            Key::Quit | Key::Stop | Key::Help | Key::Faster | Key::Slower | Key::Now => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_meanings() {
        let key = |code, modifiers| Key::of(KeyEvent::new(code, modifiers));
        let (none, control) = (KeyModifiers::NONE, KeyModifiers::CONTROL);
        assert_eq!(key(KeyCode::Up, none), Some(Key::Up));
        assert_eq!(key(KeyCode::Up, control), None);
        assert_eq!(key(KeyCode::Char('G'), KeyModifiers::SHIFT), Some(Key::End));
        assert_eq!(key(KeyCode::Char('c'), control), Some(Key::Quit));
        assert_eq!(key(KeyCode::Char('z'), control), Some(Key::Stop));
        assert_eq!(
            (key(KeyCode::Char('z'), none), key(KeyCode::F(5), none)),
            (None, None)
        );
    }

    #[test]
    fn views_end_where_the_lines_do() {
        let seen = |key| View::default().moved(key, 4).unwrap().bounded((6, 10), (4, 4));
        assert_eq!(seen(Key::End), View { top: 6, left: 0 });
        assert_eq!(seen(Key::PageDown), View { top: 4, left: 0 });
        assert_eq!(seen(Key::Up), View::default());
        assert_eq!(seen(Key::Right), View { top: 0, left: 2 });
        let all = View { top: 9, left: 9 };
        assert_eq!(all.bounded((6, 10), (80, 24)), View::default());
        assert_eq!(all.moved(Key::Help, 4), None);
    }
}
