//! Escapes names from untrusted files and arguments.

/// Escapes the characters of a text that [mislead](misleads) a reader, so that the text fits on one line.
///
/// Names in files and arguments may contain line breaks, terminal control sequences and Unicode's invisible
/// characters for the direction of text. Such characters can make one name look like another.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if misleads(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
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
    use super::one_line;

    #[test]
    fn nothing_in_a_name_can_move_the_cursor_or_the_text() {
        assert_eq!(
            one_line("k\u{202e}yp.n\u{2066}\u{200f}\n\x1b[2J"),
            "k\\u{202e}yp.n\\u{2066}\\u{200f}\\n\\u{1b}[2J"
        );
        assert_eq!(one_line("κλειδί 键"), "κλειδί 键");
    }
}
