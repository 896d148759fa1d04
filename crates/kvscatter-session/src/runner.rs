//! A loaded decoder that runs single steps in place or out of place.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use kvscatter::ElementType;

use crate::engine::{GroupQueryNodes, InPlaceCache, Session, Step};
use crate::error::SessionError;
use crate::feed::Feed;
use crate::interface::Interface;
use crate::numbers;
use crate::states::States;
use crate::tensor::Tensor;

/// A loaded decoder.
pub struct Runner {
    session: Box<dyn Session>,
    /// The decoder's inputs and outputs.
    pub interface: Interface,
}

/// The logits of a step, as the engine returned them.
///
/// Rows are converted to float32 when they are read, because most callers do not read the rows of padding or
/// of all tokens of a prompt.
#[derive(Debug)]
pub struct LogitsTensor {
    /// The number of tokens of each sample that have logits: the width of the step, or 1.
    tokens: usize,
    /// The number of logits after each token.
    pub vocabulary: usize,
    /// The number of tokens of each sample in the step.
    width: usize,
    /// The logits, `[batch, tokens, vocabulary]`, of a type that [`to_f32`](crate::to_f32) can convert.
    tensor: Tensor,
}

impl LogitsTensor {
    /// Returns `true` if only the last of several tokens has logits.
    pub(crate) fn are_last_only(&self) -> bool {
        self.tokens < self.width
    }

    /// Returns the logits after a token of a sample, or `None` if the model did not return them.
    pub fn after(&self, sample: usize, token: usize) -> Option<Cow<'_, [f32]>> {
        let token = token.checked_sub(self.width.checked_sub(self.tokens)?)?;
        let row = sample.checked_mul(self.tokens)?.checked_add(token).filter(|_| token < self.tokens)?;
        let len = self.vocabulary * (self.tensor.element().bits()? / 8);
        let first = row.checked_mul(len)?;
        numbers::to_f32(self.tensor.element(), self.tensor.bytes().get(first..first.checked_add(len)?)?)
    }

    /// Returns the index of the first of a sample's first `tokens` tokens whose logits contain NaN.
    pub(crate) fn first_nan(&self, sample: usize, tokens: usize) -> Option<usize> {
        let is_nan = |token: usize| {
            self.after(sample, token).is_some_and(|logits| logits.iter().any(|logit| logit.is_nan()))
        };
        (0..tokens).find(|token| is_nan(*token))
    }

    /// Returns the logits after the last token of a sample.
    pub(crate) fn last(&self, sample: usize) -> Option<Cow<'_, [f32]>> {
        self.after(sample, self.width.checked_sub(1)?)
    }
}

impl Runner {
    /// Creates a runner of a model that an engine has loaded.
    #[must_use]
    pub fn new(session: Box<dyn Session>, interface: Interface) -> Self {
        Self { session, interface }
    }

    /// Returns which kernels compute the nodes of `GroupQueryAttention`, if the model has any.
    #[must_use]
    pub fn group_query_nodes(&self) -> Option<GroupQueryNodes> {
        self.session.group_query_nodes()
    }

    /// Returns the loaded model.
    #[must_use]
    pub fn session(&self) -> &dyn Session {
        &*self.session
    }

    /// Allocates caches of zeros.
    ///
    /// # Errors
    /// Returns [`SessionError::TensorTooLarge`] if a cache cannot be allocated.
    pub fn caches(&self, batch: usize, length: usize) -> Result<Vec<Tensor>, SessionError> {
        self.interface
            .caches
            .iter()
            .map(|port| self.session.zeros(port.element, &port.shape(batch, length)))
            .collect()
    }

    /// Allocates a tensor of zeros in the engine's memory.
    pub(crate) fn zeros(&self, element: ElementType, shape: &[usize]) -> Result<Tensor, SessionError> {
        self.session.zeros(element, shape)
    }

    /// Returns `true` if a run can cover some samples of the batch.
    pub(crate) fn takes_some_samples(&self) -> bool {
        self.interface.batch.is_none() && self.session.takes_some_samples()
    }

    /// Runs one step that writes into the caches. Returns the logits and the address that the engine reports for each
    /// present.
    ///
    /// `of_encoder` contains the inputs from an encoder. `states` are updated. Samples without tokens keep
    /// theirs, and samples whose first token is fed begin with zeros.
    pub fn in_place(
        &mut self,
        inputs: &[(String, Tensor)],
        of_encoder: &[(String, Tensor)],
        caches: &mut [Tensor],
        states: &mut States,
        feed: &Feed,
    ) -> Result<(LogitsTensor, Vec<usize>), SessionError> {
        self.some_in_place(inputs, of_encoder, caches, states, feed, None)
    }

    /// Runs one step like [`in_place`](Self::in_place).
    ///
    /// With `samples`, the run covers these samples. The caches, the states, the masks, the ids of blocks and the
    /// inputs from an encoder are those of the whole batch, and the other inputs and `feed` are those of the samples.
    pub(crate) fn some_in_place(
        &mut self,
        inputs: &[(String, Tensor)],
        of_encoder: &[(String, Tensor)],
        caches: &mut [Tensor],
        states: &mut States,
        feed: &Feed,
        samples: Option<Range<usize>>,
    ) -> Result<(LogitsTensor, Vec<usize>), SessionError> {
        let first = samples.as_ref().map_or(0, |samples| samples.start);
        states.start(first, feed);
        let is_by_slot =
            |name: &str| self.interface.feeds.iter().any(|of| of.purpose.is_by_slot() && of.name == name);
        let read = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let of_encoder = of_encoder.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let (of_batch, read) = read
            .map(|input| (is_by_slot(input.0), input))
            .chain(of_encoder.map(|input| (true, input)))
            .partition::<Vec<_>, _>(|(is_of_batch, _)| *is_of_batch && samples.is_some());
        let without_flags = |of: Vec<(bool, _)>| of.into_iter().map(|(_, input)| input).collect();
        let ports = &self.interface.caches;
        let mut step = Step {
            inputs: without_flags(read),
            of_batch: without_flags(of_batch),
            samples,
            outputs: Vec::new(),
            shared: ports
                .iter()
                .zip(caches)
                .map(|(port, cache)| InPlaceCache { past: &port.past, present: &port.present, cache })
                .collect(),
            returned: vec![&self.interface.logits],
        };
        states.bind(&mut step);
        let mut ran = self.session.run(step)?;
        let columns = ran.returned.split_off(ran.returned.len().min(1));
        let logits = logits(&self.interface, ran.returned, feed)?;
        states.take_columns(first, feed, columns)?;
        states.take(first, feed);
        Ok((logits, ran.present_at))
    }

    /// Runs one step that leaves the pasts unchanged and writes the presents to other memory. `of_encoder` and `states`
    /// are those of [`in_place`](Self::in_place).
    pub fn out_of_place(
        &mut self,
        inputs: &[(String, Tensor)],
        of_encoder: &[(String, Tensor)],
        pasts: &[Tensor],
        presents: &mut [Tensor],
        states: &mut States,
        feed: &Feed,
    ) -> Result<LogitsTensor, SessionError> {
        states.start(0, feed);
        let ports = &self.interface.caches;
        let all = inputs.iter().chain(of_encoder);
        let mut all: Vec<_> = all.map(|(name, tensor)| (name.as_str(), tensor)).collect();
        all.extend(ports.iter().zip(pasts).map(|(port, past)| (port.past.as_str(), past)));
        let mut step = Step {
            inputs: all,
            outputs: ports
                .iter()
                .zip(presents)
                .map(|(port, present)| (port.present.as_str(), present))
                .collect(),
            returned: vec![&self.interface.logits],
            ..Step::default()
        };
        states.bind(&mut step);
        let ran = self.session.run(step)?;
        let logits = logits(&self.interface, ran.returned, feed)?;
        states.take(0, feed);
        Ok(logits)
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("interface", &self.interface).finish_non_exhaustive()
    }
}

fn logits(interface: &Interface, returned: Vec<Tensor>, feed: &Feed) -> Result<LogitsTensor, SessionError> {
    let (batch, width) = (feed.samples.len(), feed.width);
    let name = || interface.logits.clone();
    let tensor = returned.into_iter().next().ok_or(SessionError::NoLogits)?;
    let shape = tensor.shape().to_vec();
    let &[got, tokens, vocabulary] = shape.as_slice() else {
        return Err(SessionError::LogitsShape { output: name(), shape, batch, width });
    };
    if got != batch || (tokens != width && tokens != 1) || vocabulary == 0 {
        return Err(SessionError::LogitsShape { output: name(), shape, batch, width });
    }
    if numbers::to_f32(tensor.element(), &[]).is_none() {
        return Err(SessionError::LogitsElement { output: name(), element: tensor.element() });
    }
    Ok(LogitsTensor { tokens, vocabulary, width, tensor })
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::LogitsTensor;
    use crate::tensor::Tensor;

    /// Logits of 2 samples, for the last `tokens` of 3 tokens. The value is 10 × sample + token.
    fn logits(tokens: usize) -> LogitsTensor {
        let logits: Vec<i64> =
            [0, 10].into_iter().flat_map(|sample| (3 - tokens..3).map(move |t| sample + t as i64)).collect();
        let tensor = Tensor::integers(ElementType::Float32, &[2, tokens, 1], &logits).unwrap();
        LogitsTensor { tokens, vocabulary: 1, width: 3, tensor }
    }

    #[test]
    fn logits_are_those_of_a_sample_s_own_tokens() {
        let after =
            |logits: &LogitsTensor, sample, token| logits.after(sample, token).map(|logits| logits[0]);
        let all = logits(3);
        assert_eq!([(0, 0), (0, 2), (1, 1)].map(|(s, t)| after(&all, s, t)), [0.0, 2.0, 11.0].map(Some));
        let last = logits(1);
        assert_eq!([(0, 2), (1, 2)].map(|(s, t)| after(&last, s, t)), [2.0, 12.0].map(Some));
        assert_eq!(last.last(1).unwrap(), &[12.0][..]);
        for (logits, sample, token) in [(&all, 0, 3), (&all, 2, 0), (&all, usize::MAX, 0), (&last, 0, 1)] {
            assert!(logits.after(sample, token).is_none(), "{sample} {token}");
        }
    }
}
