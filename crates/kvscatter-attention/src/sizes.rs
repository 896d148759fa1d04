//! The sizes of a call. Shapes are checked against each other here.
//!
//! After that, every tensor is batch × heads × length × size with strides, for tensors of rank 3 and 4.

use kvscatter::Mode;
use kvscatter::visibility::Visibility;

use crate::error::{AttentionError, Operand};
use crate::operands::Shapes;
use crate::operator::Attention;

/// The sizes of a call, after a check that they agree with each other and that every tensor fits the address
/// space.
///
/// **A1** Every product of these sizes that counts elements or bytes of a tensor, and every sum of offsets inside a
/// tensor, fits `isize`. So later code multiplies and adds them without checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) query_heads: usize,
    pub(crate) heads: usize,
    pub(crate) queries: usize,
    /// The number of slots of K and V, without the past.
    pub(crate) keys: usize,
    pub(crate) past: usize,
    pub(crate) head_size: usize,
    pub(crate) value_size: usize,
    /// Whether queries and output are `[batch, length, heads * size]`.
    pub(crate) is_query_by_token: bool,
    /// Whether keys and values are `[batch, length, heads * size]`.
    pub(crate) is_cache_by_token: bool,
    pub(crate) blocks: Option<Blocks>,
}

/// The blocks of keys and values that samples share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// The number of all blocks.
    pub(crate) count: usize,
    /// The number of slots of a block.
    pub(crate) size: usize,
    /// The number of blocks of a sample.
    pub(crate) per_sample: usize,
}

/// The largest number of slots of a cache whose keys and values have no elements. Such a cache takes no memory, so a
/// stranger could claim any number of slots, and the scores of these take memory.
const MAX_EMPTY_SLOTS: usize = 1 << 16;

impl Sizes {
    /// Computes the sizes, and establishes A1.
    ///
    /// # Errors
    /// Returns an error about the first tensor that does not fit.
    pub(crate) fn new(op: &Attention, shapes: &Shapes<'_>) -> Result<Self, AttentionError> {
        let rank = shapes.query.len();
        if !matches!(rank, 3 | 4) {
            return Err(AttentionError::Rank { operand: Operand::Query, rank, expected: "3 or 4" });
        }
        let (cache_rank, expected) = if rank == 3 && !op.cache_by_head { (3, "3") } else { (4, "4") };
        for (operand, shape) in [(Operand::Key, shapes.key), (Operand::Value, shapes.value)] {
            if shape.len() != cache_rank {
                return Err(AttentionError::Rank { operand, rank: shape.len(), expected });
            }
        }
        let (query_heads, heads) = match op.heads {
            _ if rank == 4 => (None, None),
            Some((query, key)) => (Some(query), Some(key)),
            None => return Err(AttentionError::HeadsMissing),
        };
        let [batch, query_heads, queries, head_size] = by_head(Operand::Query, shapes.query, query_heads)?;
        let of_key = by_head(Operand::Key, shapes.key, heads)?;
        let of_value = by_head(Operand::Value, shapes.value, heads)?;
        let [count, heads, keys, _] = of_key;
        let [.., value_size] = of_value;
        let blocks = op.blocks.map(|per_sample| Blocks { count, size: keys, per_sample });
        let outer = if blocks.is_some() { count } else { batch };
        agree(Operand::Key, of_key, [outer, heads, keys, head_size])?;
        agree(Operand::Value, of_value, [outer, heads, keys, value_size])?;
        let keys = match blocks {
            None => keys,
            Some(blocks) => Self::slots_of_blocks(op, blocks, shapes.past.is_some())?,
        };
        if let Some(got) = op.heads
            && got != (query_heads, heads)
        {
            return Err(AttentionError::Heads { got, expected: (query_heads, heads) });
        }
        if query_heads.checked_rem(heads) != Some(0) {
            return Err(AttentionError::Group { query: query_heads, key: heads });
        }
        let past = match shapes.past {
            None => 0,
            Some(_) if op.is_ring => return Err(AttentionError::Ring { operand: Operand::PastKey }),
            Some([key, value]) => {
                let of_key = by_head(Operand::PastKey, key, None)?;
                let [_, _, past, _] = of_key;
                agree(Operand::PastKey, of_key, [batch, heads, past, head_size])?;
                let of_value = by_head(Operand::PastValue, value, None)?;
                agree(Operand::PastValue, of_value, [batch, heads, past, value_size])?;
                past
            }
        };
        if op.is_ring && op.scores.is_some() {
            return Err(AttentionError::Ring { operand: Operand::Scores });
        }
        if op.has_sinks && op.scores.is_some() {
            return Err(AttentionError::SinksAndScores);
        }
        let total = keys.checked_add(past);
        let slots = total.ok_or(AttentionError::TooLarge { operand: Operand::PresentKey })?;
        if head_size == 0 && value_size == 0 && slots > MAX_EMPTY_SLOTS {
            return Err(AttentionError::EmptySlots { slots, max: MAX_EMPTY_SLOTS });
        }
        let sizes = Self {
            batch,
            query_heads,
            heads,
            queries,
            keys,
            past,
            head_size,
            value_size,
            is_query_by_token: rank == 3,
            is_cache_by_token: cache_rank == 3,
            blocks,
        };
        // The other tensors are parts of these.
        let largest = [
            Operand::Query,
            Operand::Output,
            Operand::Key,
            Operand::Value,
            Operand::PresentKey,
            Operand::PresentValue,
            Operand::Scores,
        ];
        for operand in largest {
            // Scores are float32, so all tensors are counted as if they were.
            let bytes = sizes
                .shape(operand)
                .iter()
                .filter(|size| **size != 0)
                .try_fold(size_of::<f32>(), |product, &size| product.checked_mul(size))
                .filter(|bytes| isize::try_from(*bytes).is_ok());
            bytes.ok_or(AttentionError::TooLarge { operand })?;
        }
        Ok(sizes)
    }

    /// Returns the number of slots of a sample whose slots are in blocks.
    fn slots_of_blocks(op: &Attention, blocks: Blocks, has_past: bool) -> Result<usize, AttentionError> {
        let others = [(has_past, Operand::PastKey), (op.scores.is_some(), Operand::Scores)];
        if let Some((_, operand)) = others.into_iter().find(|(is_given, _)| *is_given) {
            return Err(AttentionError::Blocks { operand });
        }
        if op.is_ring {
            return Err(AttentionError::Ring { operand: Operand::BlockTable });
        }
        if blocks.size == 0 {
            return Err(AttentionError::EmptyBlocks);
        }
        let slots = blocks.size.checked_mul(blocks.per_sample);
        slots.ok_or(AttentionError::TooLarge { operand: Operand::BlockTable })
    }

    /// Returns the shape of an operand as `[batch, heads, length, size]`, for a mask the one that it broadcasts
    /// to.
    pub(crate) fn shape(&self, operand: Operand) -> [usize; 4] {
        let Self { batch, query_heads, heads, queries, keys, past, head_size, value_size, .. } = *self;
        if let Some(Blocks { count, size, .. }) = self.blocks {
            match operand {
                Operand::Key => return [count, heads, size, head_size],
                Operand::Value => return [count, heads, size, value_size],
                Operand::KeyScales | Operand::ValueScales => return [count, heads, size, 1],
                _ => {}
            }
        }
        match operand {
            Operand::Query => [batch, query_heads, queries, head_size],
            Operand::Key => [batch, heads, keys, head_size],
            Operand::Value => [batch, heads, keys, value_size],
            Operand::PastKey => [batch, heads, past, head_size],
            Operand::PastValue => [batch, heads, past, value_size],
            Operand::Lengths | Operand::Starts => [batch, 1, 1, 1],
            Operand::BlockTable => [batch, self.blocks.map_or(0, |blocks| blocks.per_sample), 1, 1],
            Operand::Sinks => [1, query_heads, 1, 1],
            Operand::KeyScales | Operand::ValueScales => [batch, heads, keys, 1],
            Operand::Output => [batch, query_heads, queries, value_size],
            Operand::PresentKey => [batch, heads, self.total(), head_size],
            Operand::PresentValue => [batch, heads, self.total(), value_size],
            Operand::Mask | Operand::Scores => [batch, query_heads, queries, self.total()],
        }
    }

    /// Returns the number of keys of a sample, including those of the past.
    pub(crate) fn total(&self) -> usize {
        self.past + self.keys
    }

    /// Returns the number of query heads that share a head of keys.
    pub(crate) fn group(&self) -> usize {
        self.query_heads / self.heads
    }

    /// Returns the number of rows that share a head of keys: one for each query and each head of its group.
    pub(crate) fn rows(&self) -> usize {
        self.queries * self.group()
    }

    /// Returns the rule that decides which slots a query sees.
    pub(crate) fn visibility(&self, op: &Attention) -> Visibility {
        let mode = if op.is_ring { Mode::Circular } else { Mode::Linear };
        let rule = Visibility::new(mode, self.total());
        let rule = if op.is_causal { rule.causal() } else { rule };
        let rule = op.left.map_or(rule, |left| rule.left(left));
        op.right.map_or(rule, |right| rule.right(right))
    }

    /// Returns the number of rows of a block of an operand, if it consists of blocks.
    pub(crate) fn block_of(&self, operand: Operand) -> Option<usize> {
        match operand {
            Operand::Key | Operand::Value => self.blocks.map(|blocks| blocks.size),
            _ => None,
        }
    }
}

/// Returns a shape as `[batch, heads, length, size]`. A tensor of rank 3 needs its number of heads.
fn by_head(operand: Operand, shape: &[usize], heads: Option<usize>) -> Result<[usize; 4], AttentionError> {
    match (shape, heads) {
        (&[batch, heads, length, size], _) => Ok([batch, heads, length, size]),
        (&[batch, length, hidden], Some(heads)) if hidden.checked_rem(heads) == Some(0) => {
            Ok([batch, heads, length, hidden / heads])
        }
        (&[_, _, hidden], Some(heads)) => Err(AttentionError::HiddenSize { operand, hidden, heads }),
        _ => Err(AttentionError::Rank { operand, rank: shape.len(), expected: "4" }),
    }
}

fn agree(operand: Operand, got: [usize; 4], expected: [usize; 4]) -> Result<(), AttentionError> {
    if got == expected { Ok(()) } else { Err(AttentionError::Shape { operand, got, expected }) }
}
