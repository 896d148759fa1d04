//! A ring that is filled slot by slot: what each slot contains after every step, and whether each query sees its
//! window.
//!
//! A query at position `q` sees slot `s` of `C` if and only if `(q - s) mod C <= min(q, W - 1)`. A step is exact if
//! every query of a token sees the tokens of the `W` positions up to its own, and nothing else.

/// A step of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The number of tokens that are taken back before the step, at most all.
    pub rewind: usize,
    /// The number of rows that are written, padding included.
    pub rows: usize,
    /// The number of these rows, from the first on, that are tokens.
    pub tokens: usize,
}

/// The ring of one sample.
#[derive(Clone, Debug)]
pub struct Ring {
    window: usize,
    /// What each slot contains.
    slots: Vec<Row>,
    /// The tokens of the sample, each with the number of the step that wrote it.
    tokens: Vec<usize>,
    steps: usize,
}

/// The contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Nothing,
    Padding,
    /// The token of a position that a step wrote.
    Token {
        position: usize,
        step: usize,
    },
}

impl Ring {
    /// Creates an empty ring.
    #[must_use]
    pub fn new(capacity: usize, window: usize) -> Self {
        Self { window, slots: vec![Row::Nothing; capacity], tokens: Vec::new(), steps: 0 }
    }

    /// Returns the number of tokens of the sample.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Writes a step, and returns whether it is exact.
    pub fn step(&mut self, step: Step) -> bool {
        let start = self.tokens.len().saturating_sub(step.rewind);
        self.tokens.truncate(start);
        self.tokens.resize(start + step.tokens, self.steps);
        for row in 0..step.rows {
            let (position, capacity) = (start + row, self.slots.len());
            self.slots[position % capacity] =
                if row < step.tokens { Row::Token { position, step: self.steps } } else { Row::Padding };
        }
        self.steps += 1;
        (start..start + step.tokens).all(|query| self.sees_its_window(query))
    }

    fn sees_its_window(&self, query: usize) -> bool {
        let capacity = self.slots.len();
        let farthest = query.min(self.window - 1);
        let age = |slot: usize| (query + capacity - slot) % capacity;
        let seen: Vec<_> = (0..capacity).filter(|&slot| age(slot) <= farthest).collect();
        let is_seen = |position: usize| {
            let row = Row::Token { position, step: self.tokens[position] };
            seen.iter().filter(|&&slot| self.slots[slot] == row).count() == 1
        };
        seen.len() == farthest + 1 && (query - farthest..=query).all(is_seen)
    }
}

#[cfg(test)]
mod tests {
    use super::{Ring, Step};

    const fn step(rewind: usize, rows: usize, tokens: usize) -> Step {
        Step { rewind, rows, tokens }
    }

    /// A window of 3 in 4 slots: one token more than the window fits.
    #[test]
    fn a_step_that_overwrites_its_window_is_seen() {
        let mut ring = Ring::new(4, 3);
        assert!(ring.step(step(0, 2, 2)) && ring.step(step(0, 2, 2)) && ring.step(step(0, 2, 2)));
        let mut larger = ring.clone();
        // Position 6 needs position 4, whose slot position 8 takes.
        assert!(!larger.step(step(0, 3, 3)));
        let mut padded = ring.clone();
        assert!(!padded.step(step(0, 3, 1)), "padding overwrites, too");
        assert!(ring.clone().step(step(2, 1, 1)) && !ring.step(step(3, 1, 1)));
    }
}
