//! Ends a text before the first of some other texts. The first is the one that ends first.

/// Texts that end a generated text. None of them is printed, also if it is split over several pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stops {
    texts: Vec<String>,
    /// The end of the text so far, which may be the beginning of one of the texts.
    held: String,
    has_stopped: bool,
}

impl Stops {
    /// Prepares texts that are not empty.
    pub(crate) fn new(texts: &[String]) -> Self {
        Self { texts: texts.to_vec(), ..Self::default() }
    }

    /// Returns whether one of the texts has occurred. The later text is left out.
    pub(crate) fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// Takes the next piece of the text. Returns what can be printed: all of it before the first of the texts, without
    /// an end that may be the beginning of one of them.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        if self.has_stopped {
            return String::new();
        }
        let mut text = std::mem::take(&mut self.held) + piece;
        // The stop that ends first counts, so the text does not depend on its pieces. A longer one contains another.
        let ends = self.texts.iter().filter_map(|stop| {
            let at = text.find(stop.as_str())?;
            Some((at.saturating_add(stop.len()), at))
        });
        if let Some((_, at)) = ends.min() {
            self.has_stopped = true;
            text.truncate(at);
            return text;
        }
        let begins = |at: usize| {
            let end = text.get(at..).filter(|end| !end.is_empty());
            end.is_some_and(|end| self.texts.iter().any(|stop| stop.starts_with(end)))
        };
        if let Some(at) = (0..text.len()).find(|&at| begins(at)) {
            self.held = text.split_off(at);
        }
        text
    }

    /// Returns the end of the text, which turned out to be the beginning of none of the texts.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::Stops;

    fn stopped(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<String> = stops.iter().copied().map(str::to_owned).collect();
        let mut stops = Stops::new(&stops);
        let mut printed: Vec<String> = pieces.iter().map(|piece| stops.push(piece)).collect();
        printed.push(stops.finish());
        (printed, stops.has_stopped())
    }

    #[test]
    fn a_text_ends_before_the_first_stop() {
        for (stops, pieces, expected, ends) in [
            (&["END"][..], &["one EN", "D two", "x"][..], &["one ", "", "", ""][..], true),
            (&["END"], &["one E", "xit"], &["one ", "Exit", ""], false),
            (&["END"], &["one E"], &["one ", "E"], false),
            // The earliest stop counts, and not the first in the list.
            (&["c", "b"], &["abc"], &["a", ""], true),
            // Of two stops that overlap, the one that ends first counts, however the text comes.
            (&[" upon a", "pon"], &[" upon a time"], &[" u", ""], true),
            (&[" upon a", "pon"], &[" up", "on", " a"], &["", " u", "", ""], true),
            (&["pon", " upon"], &[" u", "pon a"], &["", "", ""], true),
            (&["aab"], &["a", "a", "a", "b"], &["", "", "a", "", ""], true),
            (&["ж!"], &["ж", "ж", "!"], &["", "ж", "", ""], true),
            (&["\n\n"], &["a\n", "b\n", "\n"], &["a", "\nb", "", ""], true),
            (&[], &["a", "b"], &["a", "b", ""], false),
        ] {
            let expected: Vec<String> = expected.iter().copied().map(str::to_owned).collect();
            assert_eq!(stopped(stops, pieces), (expected, ends), "{stops:?} in {pieces:?}");
        }
    }
}
