//! The tokens of one step, and the input tensors that are computed from them.

use std::ops::Range;

use kvscatter::ElementType;

use crate::error::SessionError;
use crate::interface::{FeedPort, Interface, Purpose, TEXT};
use crate::tensor::Tensor;

/// The maximum number of elements of an input whose sizes come from the file: four times the embeddings of 512 tokens
/// with a hidden size of 32,768.
const MOST_ELEMENTS: usize = 1 << 26;

/// One step, in which every sample gets `width` tokens, padding included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// The number of tokens of each sample, padding included.
    pub width: usize,
    /// The samples by batch index.
    pub samples: Vec<SampleFeed>,
}

/// The tokens of one sample in a step. The columns contain `padding` columns of padding, the tokens of the
/// sequence, and padding up to the width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleFeed {
    /// The first slot that the step writes for this sample.
    pub start: usize,
    /// The number of padding columns before the tokens of the sequence.
    pub padding: usize,
    /// The positions, in the sequence, of the tokens that are fed.
    pub tokens: Range<usize>,
    /// The slot of the sequence's first token. It is above 0 only if the sample is padded on the left.
    pub first_slot: usize,
}

impl Feed {
    /// Creates a step with the next `width` tokens of each sequence. The sequences begin in slot 0. `written`
    /// contains the number of tokens that each sequence already has.
    pub fn next(written: &[usize], width: usize) -> Self {
        let samples = written.iter().map(|&start| SampleFeed {
            start,
            padding: 0,
            tokens: start..start + width,
            first_slot: 0,
        });
        Self { width, samples: samples.collect() }
    }

    /// Returns the tensors of all inputs except the caches.
    ///
    /// `token(sample, position)` must return a token of a sample's sequence. `slots` is the number of slots of a
    /// mask: the capacity of a static cache, or the number of tokens after the step for a growing one. A mask of
    /// lengths does not depend on it.
    ///
    /// All tokens are text, so ids of blocks are -1. A decoder that takes embeddings gets pseudo-random rows, one for
    /// each token id. The logits are then only useful for a comparison with a decoder that gets the same rows.
    ///
    /// # Errors
    /// - Returns [`SessionError::InputType`] if an input's type cannot represent a value.
    /// - Returns [`SessionError::TensorTooLarge`] if there is no memory for a tensor, or if embeddings, or
    ///   an input that no node reads, have more than 2^26 elements.
    pub fn tensors(
        &self,
        interface: &Interface,
        token: impl Fn(usize, usize) -> i64,
        slots: usize,
    ) -> Result<Vec<(String, Tensor)>, SessionError> {
        let feeds = interface.feeds.iter();
        feeds.map(|port| Ok((port.name.clone(), self.tensor(port, &token, slots)?))).collect()
    }

    /// Returns the tensor of one input. The arguments and errors are those of [`tensors`](Self::tensors).
    pub(crate) fn tensor(
        &self,
        port: &FeedPort,
        token: impl Fn(usize, usize) -> i64,
        slots: usize,
    ) -> Result<Tensor, SessionError> {
        let batch = self.samples.len();
        let (shape, values): (Vec<usize>, Vec<i64>) = match port.purpose {
            Purpose::Tokens => (vec![batch, self.width], self.tokens(token)),
            Purpose::Embeddings { size } => return self.embeddings(port.element, size, token),
            Purpose::Positions => (vec![batch, self.width], self.positions()),
            Purpose::SharedPositions => {
                let first = self.samples.first().map_or(0, |sample| sample.start);
                let rank = port.dims.len();
                let count = if rank == 0 { 1 } else { self.width };
                (vec![count; rank], (first..).map(int).take(count).collect())
            }
            Purpose::Mask => (vec![batch, slots], self.mask(slots)),
            Purpose::LengthMask => (vec![batch, self.longest()], self.length_mask()),
            Purpose::BlockIds => (vec![batch, slots], vec![TEXT; batch.saturating_mul(slots)]),
            Purpose::WriteIndices => (vec![batch], self.each(|sample| sample.start)),
            Purpose::NonpadKvSeqlen => (vec![batch], self.each(|sample| sample.start + self.width)),
            Purpose::SeqlensK => {
                let shape = if port.dims.len() == 1 { vec![batch] } else { vec![batch, 1] };
                (shape, self.each(|sample| self.length(sample).saturating_sub(1)))
            }
            Purpose::TotalLength => (vec![1; port.dims.len()], vec![int(self.longest())]),
            Purpose::Unread => return self.zeros(port),
            Purpose::Condition(value) => (vec![1; port.dims.len()], vec![i64::from(value)]),
        };
        Tensor::integers(port.element, &shape, &values)
    }

    /// Returns zeros for an input that no node reads.
    fn zeros(&self, port: &FeedPort) -> Result<Tensor, SessionError> {
        let open = |axis| if axis == 0 { self.samples.len() } else { 1 };
        let dims = port.dims.iter().enumerate();
        sized(port.element, &dims.map(|(axis, dim)| dim.unwrap_or_else(|| open(axis))).collect::<Vec<_>>())
    }

    /// Returns the substitute embeddings of every sample, `[batch, tokens, size]`.
    fn embeddings(
        &self,
        element: ElementType,
        size: usize,
        token: impl Fn(usize, usize) -> i64,
    ) -> Result<Tensor, SessionError> {
        let shape = [self.samples.len(), self.width, size];
        let mut tensor = sized(element, &shape)?;
        for (row, token) in self.tokens(token).into_iter().enumerate() {
            for column in 0..size {
                let at = row * size + column;
                tensor.fill(at..at + 1, embedding(token, column))?;
            }
        }
        Ok(tensor)
    }

    /// Returns the tokens of every sample.
    ///
    /// Padding repeats the last token of the sample. Attention may multiply masked rows by zero, so a row of
    /// padding must not contain a value that no token of the sample has. The embedding of another token might
    /// contain NaN. A sample without tokens has padding of token 0, because its logits are not used.
    fn tokens(&self, token: impl Fn(usize, usize) -> i64) -> Vec<i64> {
        self.columns(|index, sample, column| {
            let last = || sample.tokens.clone().next_back();
            sample.position(column).or_else(last).map_or(0, |position| token(index, position))
        })
    }

    /// Returns the positions of every sample. Padding has position 0, because every table of positions has
    /// that entry.
    fn positions(&self) -> Vec<i64> {
        self.columns(|_, sample, column| sample.position(column).map_or(0, int))
    }

    fn columns(&self, value: impl Fn(usize, &SampleFeed, usize) -> i64) -> Vec<i64> {
        let value = &value;
        let samples = self.samples.iter().enumerate();
        samples
            .flat_map(|(index, sample)| (0..self.width).map(move |column| value(index, sample, column)))
            .collect()
    }

    /// Returns which slots contain tokens. Which of these a query sees is decided by the masks of the model.
    fn mask(&self, slots: usize) -> Vec<i64> {
        let mask = |sample: &SampleFeed| {
            let valid = sample.valid();
            (0..slots).map(move |slot| i64::from(valid.contains(&slot)))
        };
        self.samples.iter().flat_map(mask).collect()
    }

    /// Returns 1 for the slots up to the length of each sample.
    fn length_mask(&self) -> Vec<i64> {
        let mask = |sample: &SampleFeed| {
            let length = self.length(sample);
            (0..self.longest()).map(move |slot| i64::from(slot < length))
        };
        self.samples.iter().flat_map(mask).collect()
    }

    /// Returns the length of a sample after the step, without padding on the right.
    ///
    /// `GroupQueryAttention` writes the last row of a step at this length less 1. So the length of a sample
    /// without tokens includes its padding, which is then written from `start` on.
    fn length(&self, sample: &SampleFeed) -> usize {
        if sample.tokens.is_empty() { sample.start + self.width } else { sample.valid().end }
    }

    /// Returns the end of the slots that the step writes, of the sample that is written furthest.
    fn longest(&self) -> usize {
        self.samples.iter().map(|sample| sample.start + self.width).max().unwrap_or_default()
    }

    fn each(&self, value: impl Fn(&SampleFeed) -> usize) -> Vec<i64> {
        self.samples.iter().map(|sample| int(value(sample))).collect()
    }
}

impl SampleFeed {
    /// Returns the position, in the sequence, of the token in a column. Returns `None` for padding.
    pub fn position(&self, column: usize) -> Option<usize> {
        let position = self.tokens.start.checked_add(column.checked_sub(self.padding)?)?;
        self.tokens.contains(&position).then_some(position)
    }

    /// Returns the slots that contain tokens after the step.
    pub fn valid(&self) -> Range<usize> {
        self.first_slot..self.first_slot + self.tokens.end
    }
}

/// Returns zeros. The sizes come from an untrusted file.
fn sized(element: ElementType, shape: &[usize]) -> Result<Tensor, SessionError> {
    if shape.iter().copied().fold(1, usize::saturating_mul) > MOST_ELEMENTS {
        return Err(SessionError::TensorTooLarge { element, shape: shape.to_vec() });
    }
    Tensor::zeros(element, shape)
}

/// Returns one element of a token's substitute embedding: a pseudo-random integer from -4 to 4, which every type of
/// floats represents exactly.
fn embedding(token: i64, column: usize) -> i64 {
    // The mixing of `SplitMix64`.
    let mut mixed =
        token.cast_unsigned().wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(int(column).cast_unsigned());
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    i64::try_from((mixed ^ (mixed >> 31)) % 9).unwrap_or_default() - 4
}

fn int(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::{Feed, MOST_ELEMENTS, SampleFeed};
    use crate::error::SessionError;
    use crate::interface::{FeedPort, Purpose};
    use crate::numbers::to_f32;

    fn port(size: usize) -> FeedPort {
        let (name, element) = ("inputs_embeds".to_owned(), ElementType::Float32);
        FeedPort { name, element, dims: vec![None; 3], purpose: Purpose::Embeddings { size } }
    }

    /// The numbers were computed by another program, from the definition of `SplitMix64`.
    #[test]
    fn every_token_has_an_embedding_and_padding_that_of_the_last_token() {
        let feed = Feed {
            width: 3,
            samples: vec![
                SampleFeed { start: 0, padding: 0, tokens: 0..2, first_slot: 0 },
                SampleFeed { start: 0, padding: 1, tokens: 0..2, first_slot: 1 },
            ],
        };
        let tokens = [[5, 9], [9, 0]];
        let tensor = feed.tensor(&port(4), |sample, position| tokens[sample][position], 8).unwrap();
        const FIVE: [f32; 4] = [0.0, -1.0, 3.0, -4.0];
        const NINE: [f32; 4] = [4.0, -4.0, -1.0, 1.0];
        const ZERO: [f32; 4] = [-4.0, 0.0, 0.0, -2.0];
        assert_eq!(tensor.shape(), [2, 3, 4]);
        let values = to_f32(ElementType::Float32, tensor.bytes()).unwrap();
        assert_eq!(values.as_ref(), [FIVE, NINE, NINE, ZERO, NINE, ZERO].concat());
    }

    #[test]
    fn lengths_have_the_rank_of_their_input() {
        let samples = vec![
            SampleFeed { start: 0, padding: 0, tokens: 0..2, first_slot: 0 },
            SampleFeed { start: 3, padding: 0, tokens: 0..2, first_slot: 3 },
        ];
        let feed = Feed { width: 2, samples };
        let shape = |rank, purpose| {
            let port = FeedPort {
                name: String::new(),
                element: ElementType::Int64,
                dims: vec![None; rank],
                purpose,
            };
            let tensor = feed.tensor(&port, |_, _| 0, 8).unwrap();
            let values = tensor.bytes().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes));
            (tensor.shape().to_vec(), values.collect::<Vec<_>>())
        };
        assert_eq!(shape(1, Purpose::SeqlensK), (vec![2], vec![1, 4]));
        assert_eq!(shape(2, Purpose::SeqlensK), (vec![2, 1], vec![1, 4]));
        assert_eq!(shape(0, Purpose::TotalLength), (vec![], vec![5]));
        assert_eq!(shape(1, Purpose::TotalLength), (vec![1], vec![5]));
        assert_eq!(shape(0, Purpose::SharedPositions), (vec![], vec![0]));
        let later = Feed::next(&[3, 3], 2).tensor(
            &FeedPort {
                name: String::new(),
                element: ElementType::Int64,
                dims: vec![None],
                purpose: Purpose::SharedPositions,
            },
            |_, _| 0,
            8,
        );
        assert_eq!(later.unwrap().bytes(), [3_i64, 4].map(i64::to_le_bytes).concat());
        assert_eq!(shape(1, Purpose::WriteIndices), (vec![2], vec![0, 3]));
        assert_eq!(shape(1, Purpose::NonpadKvSeqlen), (vec![2], vec![2, 5]));
    }

    #[test]
    fn an_input_that_no_node_reads_has_zeros_of_its_sizes() {
        let zeros = |dims: &[Option<usize>]| {
            let (name, element, dims) = (String::new(), ElementType::Float32, dims.to_vec());
            let port = FeedPort { name, element, dims, purpose: Purpose::Unread };
            Feed::next(&[0, 0, 0], 2).tensor(&port, |_, _| 1, 8).map(|tensor| tensor.shape().to_vec())
        };
        assert_eq!(zeros(&[]).unwrap(), [0; 0]);
        assert_eq!(zeros(&[None, None, Some(5)]).unwrap(), [3, 1, 5]);
        assert_eq!(zeros(&[Some(2), Some(0)]).unwrap(), [2, 0]);
        let refused = zeros(&[Some(usize::MAX), Some(2)]).unwrap_err();
        assert!(matches!(refused, SessionError::TensorTooLarge { .. }), "{refused}");
    }

    #[test]
    fn embeddings_beyond_the_limit_are_refused() {
        let embed = |size| Feed::next(&[0], 2).tensor(&port(size), |_, _| 1, 8).map(|tensor| tensor.len());
        assert_eq!(embed(MOST_ELEMENTS / 2 / 4096).unwrap(), 4 * MOST_ELEMENTS / 4096);
        let refused = embed(MOST_ELEMENTS / 2 + 1).unwrap_err();
        assert!(
            matches!(refused, SessionError::TensorTooLarge { shape, .. } if shape == [1, 2, MOST_ELEMENTS / 2 + 1])
        );
    }
}
