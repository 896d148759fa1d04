//! What the samples of a session must score.

use kvscatter_session::{EncoderOutputs, Interface, Sample};

/// Knows what the samples of a session must score.
pub(crate) trait Oracle {
    /// The past of a sample.
    type Past: Clone + Default;

    /// Is called before a step.
    fn start(&mut self) {}

    /// Lets a sample without tokens attend to a text. Only models with inputs from an encoder need this.
    fn attend(&mut self, _: &mut Self::Past, _: &Interface, outputs: &EncoderOutputs) {
        panic!("no text was expected: {outputs:?}");
    }

    /// Appends tokens that a step has fed.
    fn extend(&mut self, past: &mut Self::Past, interface: &Interface, sample: Sample, tokens: &[i64]);

    /// Keeps the first `to` tokens.
    fn truncate(&mut self, past: &mut Self::Past, to: usize);

    /// Keeps the tokens at `rows` of those from `begun` on. Some of them may have run again since
    /// [`start`](Self::start).
    fn accept(
        &mut self,
        past: &mut Self::Past,
        interface: &Interface,
        sample: Sample,
        begun: usize,
        rows: &[usize],
    ) {
        let tokens: Vec<i64> = rows.iter().map(|row| self.tokens(past)[begun + row]).collect();
        let first = before_gap(rows);
        self.truncate(past, begun + first);
        if first < rows.len() {
            self.extend(past, interface, sample, &tokens[first..]);
        }
    }

    fn tokens<'p>(&self, past: &'p Self::Past) -> &'p [i64];

    /// Returns `true` if these are the logits after the token at a position.
    fn scores(&self, past: &Self::Past, position: usize, logits: &[f32]) -> bool;
}

/// Returns the number of rows before the first gap.
pub(crate) fn before_gap(rows: &[usize]) -> usize {
    rows.iter().enumerate().take_while(|(index, row)| index == *row).count()
}
