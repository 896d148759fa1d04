//! Reads the parts of a call in `rules.txt`.

use std::str::FromStr;

/// A call: its kind, and pairs of a name and a value. Every pair must be taken.
pub(super) struct Fields<'a> {
    pub(super) kind: &'a str,
    text: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut words = text.split(' ');
        let kind = words.next().unwrap_or_default();
        let pair = |word: &'a str| word.split_once('=').unwrap_or_else(|| wrong(text));
        Self { kind, text, pairs: words.map(pair).collect() }
    }

    pub(super) fn text(&mut self, name: &str) -> Option<&'a str> {
        let place = self.pairs.iter().position(|(other, _)| *other == name)?;
        Some(self.pairs.remove(place).1)
    }

    pub(super) fn value<T: FromStr>(&mut self, name: &str) -> Option<T> {
        self.text(name).map(parsed)
    }

    /// Returns a list such as `[1,2]`.
    pub(super) fn list<T: FromStr>(&mut self, name: &str) -> Option<Vec<T>> {
        self.text(name).map(list)
    }

    /// Returns a list of `N` numbers.
    pub(super) fn numbers<const N: usize>(&mut self, name: &str) -> Option<[usize; N]> {
        self.list(name).map(|list| list.try_into().unwrap_or_else(|_| wrong(self.text)))
    }

    /// Panics if a pair was not taken.
    pub(super) fn finish(self) {
        if !self.pairs.is_empty() {
            wrong(self.text)
        }
    }
}

pub(super) fn list<T: FromStr>(text: &str) -> Vec<T> {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let values = inside.unwrap_or_else(|| wrong(text)).split(',');
    values.filter(|value| !value.is_empty()).map(parsed).collect()
}

pub(super) fn parsed<T: FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| wrong(text))
}

/// Panics, because the text does not have its format.
#[expect(clippy::panic, reason = "the text is a part of this crate, and a test reads all of it")]
pub(super) fn wrong<T>(text: &str) -> T {
    panic!("wrong text of the corpus: {text}")
}

#[cfg(test)]
mod tests {
    use super::Fields;

    #[test]
    #[should_panic(expected = "wrong text of the corpus: linear cache=[1,2] row=1")]
    fn a_name_that_no_call_has_is_wrong() {
        let mut fields = Fields::new("linear cache=[1,2] row=1");
        assert_eq!(fields.list("cache"), Some(vec![1, 2]));
        fields.finish();
    }
}
