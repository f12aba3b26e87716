//! Text measured in a terminal's cells: letters of some scripts take two of them, an accent none.
//!
//! Names come from the database, where any client may write any text, and some characters are commands to a
//! terminal. [`clean`] replaces them; every text that is shown has passed through it.

use unicode_width::UnicodeWidthChar;

/// Mark of a text that was cut off.
const CUT: char = '~';

/// Replaces characters that are commands to a terminal, or that change the direction of text, by `?`.
pub(super) fn clean(text: &str) -> String {
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars().map(|c| if obeyed(c) { '?' } else { c }).collect()
}

fn of_char(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Cells that `text` takes.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(of_char).sum()
}

/// `text` in exactly `cells` cells: filled with blanks, or cut and marked.
pub(super) fn exactly(text: &str, cells: usize) -> String {
    let cut = width(text) > cells;
    let room = if cut { cells.saturating_sub(1) } else { cells };
    let (mut fit, mut taken) = (String::new(), 0);
    for c in text.chars() {
        if taken + of_char(c) > room {
            break;
        }
        fit.push(c);
        taken += of_char(c);
    }
    if cut && cells > 0 {
        fit.push(CUT);
        taken += 1;
    }
    fit.extend(std::iter::repeat_n(' ', cells.saturating_sub(taken)));
    fit
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wide_letters_are_not_halved() {
        assert_eq!(exactly("ab", 4), "ab  ");
        assert_eq!(exactly("abcdef", 4), "abc~");
        assert_eq!(exactly("端口一", 6), "端口一");
        assert_eq!(exactly("端口一", 5), "端口~");
        assert_eq!(exactly("端口一", 4), "端~ ");
        assert_eq!(
            (exactly("端", 0), exactly("端", 1)),
            (String::new(), "~".to_owned())
        );
    }

    #[test]
    fn names_command_no_terminal() {
        assert_eq!(clean("p\x1b[2J\u{9b}1m\u{202e}0\r\n"), "p?[2J?1m?0??");
        assert_eq!(clean("вход-端口"), "вход-端口");
    }

    proptest! {
        #[test]
        fn never_too_wide(text in "[a-d端口é\u{301}]{0,12}", cells in 0_usize..20) {
            let fit = exactly(&text, cells);
            prop_assert_eq!(width(&fit), cells);
            // A text that fits is there, whole.
            prop_assert_eq!(fit.starts_with(&text), width(&text) <= cells);
        }
    }
}
