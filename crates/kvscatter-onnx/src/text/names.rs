//! Escapes names from untrusted files and arguments.

/// Escapes the characters of a text that [mislead](misleads) a reader, so that the text fits on one line.
///
/// Names in files and arguments may contain line breaks, terminal control sequences and Unicode's invisible
/// characters for the direction of text. Such characters can make one name look like another.
#[must_use]
pub fn one_line(text: &str) -> String {
    escaped(text, misleads)
}

/// Escapes the characters of a text of several lines that control a terminal or change the direction of a part of the
/// text. Line feeds, tabs and separators stay, and the marks that texts in scripts from right to left contain.
#[must_use]
pub fn printable(text: &str) -> String {
    escaped(text, |c| {
        let stays = matches!(c, '\n' | '\t' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}');
        !stays && misleads(c)
    })
}

/// Returns a text of at most `most` characters, or its first `most` characters and `...`.
#[must_use]
pub fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Returns `true` if a character controls a terminal, breaks a line or changes the direction of the text around
/// it.
#[must_use]
pub fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::{beginning, one_line, printable};

    #[test]
    fn a_long_text_is_cut_between_characters() {
        for (text, expected) in [("", ""), ("κλε", "κλε"), ("κλει", "κλε...")] {
            assert_eq!(beginning(text, 3), expected);
        }
        assert_eq!(beginning("a", 0), "...");
    }

    #[test]
    fn nothing_in_a_name_can_move_the_cursor_or_the_text() {
        assert_eq!(
            one_line("k\u{202e}yp.n\u{2066}\u{200f}\n\x1b[2J"),
            "k\\u{202e}yp.n\\u{2066}\\u{200f}\\n\\u{1b}[2J"
        );
        assert_eq!(one_line("κλειδί 键"), "κλειδί 键");
    }

    #[test]
    fn a_text_keeps_its_lines_and_cannot_control_a_terminal() {
        assert_eq!(printable("a\tb\n\u{200f}ש\u{2029}"), "a\tb\n\u{200f}ש\u{2029}");
        assert_eq!(
            printable("a\r\x1b]0;x\x07\u{9b}2J\u{202e}b\x7f"),
            "a\\r\\u{1b}]0;x\\u{7}\\u{9b}2J\\u{202e}b\\u{7f}"
        );
    }
}
