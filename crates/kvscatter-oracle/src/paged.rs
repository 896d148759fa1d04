//! Paged caches, with the terms of vLLM and FlashInfer: `slot_mapping`, `block_tables`, `seq_lens`.
//!
//! If a call breaks several rules, the first one in this order is reported:
//!
//! 1. the shapes
//! 2. the number of slots
//! 3. for each token in turn: its slot exists
//! 4. for each token in turn: no earlier token has its slot

use crate::{Outcome, Tensor, ravel, unravel};

/// The write of tokens into a paged cache, one slot for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedWrite {
    /// The dimension of the cache that counts the slots of a block. Dimension 0 counts the blocks.
    pub axis: i64,
    /// Whether a token with a negative slot is left out.
    pub skip_negative: bool,
}

/// The rule that a write or a table broke.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant's comment and its names describe the fields")]
pub enum PagedRefusal {
    /// The cache does not have 2 to 8 dimensions.
    CacheRank { rank: usize },
    /// The axis is dimension 0, or it is out of range.
    Axis { axis: i64, rank: usize },
    /// The update does not have one dimension less than the cache.
    UpdateRank { rank: usize },
    /// A dimension of the update differs from the cache's, but must equal it.
    Dimension { dimension: usize, cache: usize, update: usize },
    /// A list does not have the required number of values.
    Count { list: &'static str, given: usize, needed: usize },
    /// The slot of a token is negative.
    NegativeSlot { token: usize, slot: i64 },
    /// The slot of a token is beyond the last block.
    SlotOutOfRange { token: usize, slot: i64, slots: usize },
    /// An earlier token has the same slot.
    DuplicateSlot { token: usize, earlier: usize, slot: i64 },
    /// The number of new tokens of a sample is negative, or larger than its table.
    NewTokens { sample: usize, new_tokens: i64, most: usize },
    /// A sample has fewer tokens than new tokens, or more than its table has slots.
    SeqLen { sample: usize, seq_len: i64, least: usize, most: usize },
    /// A block of a new token does not exist.
    Block { sample: usize, column: usize, block: i64, blocks: usize },
}

impl PagedWrite {
    /// Returns the cache after `cache[block, …, offset, …] = update[token, …]` for each token, where
    /// `slot_mapping[token]` is `block * block_size + offset`.
    ///
    /// # Errors
    /// Returns the first broken rule, in the order in the documentation of the module.
    pub fn run<E: Clone>(
        &self,
        cache: Tensor<'_, E>,
        update: Tensor<'_, E>,
        slot_mapping: &[i64],
    ) -> Result<Outcome<E>, PagedRefusal> {
        let axis = self.check_shapes(cache.shape, update.shape)?;
        let (block_size, tokens) = (cache.shape[axis], update.shape[0]);
        let slots = cache.shape[0] * block_size;
        if slot_mapping.len() != tokens {
            let given = slot_mapping.len();
            return Err(PagedRefusal::Count { list: "slot_mapping", given, needed: tokens });
        }
        for (token, &slot) in slot_mapping.iter().enumerate() {
            if slot < 0 && !self.skip_negative {
                return Err(PagedRefusal::NegativeSlot { token, slot });
            }
            if i128::from(slot) >= slots as i128 {
                return Err(PagedRefusal::SlotOutOfRange { token, slot, slots });
            }
        }
        for (token, &slot) in slot_mapping.iter().enumerate() {
            if let Some(earlier) = slot_mapping[..token].iter().position(|&other| other == slot && slot >= 0)
            {
                return Err(PagedRefusal::DuplicateSlot { token, earlier, slot });
            }
        }
        let mut present = cache.data.to_vec();
        for (flat, element) in update.data.iter().enumerate() {
            let index = unravel(flat, update.shape);
            let Ok(slot) = usize::try_from(slot_mapping[index[0]]) else {
                continue; // the token is skipped
            };
            let (block, offset) = (slot / block_size, slot % block_size);
            let place = [&[block], &index[1..axis], &[offset], &index[axis..]].concat();
            present[ravel(&place, cache.shape)] = element.clone();
        }
        let skipped = slot_mapping.iter().filter(|&&slot| slot < 0).count();
        Ok(Outcome { present, skipped })
    }

    /// Checks the shapes, and returns the axis counted from the front.
    fn check_shapes(&self, cache: &[usize], update: &[usize]) -> Result<usize, PagedRefusal> {
        let rank = cache.len();
        if !(2..=8).contains(&rank) {
            return Err(PagedRefusal::CacheRank { rank });
        }
        let from_front = if self.axis < 0 { i128::from(self.axis) + rank as i128 } else { self.axis.into() };
        if from_front < 1 || from_front >= rank as i128 {
            return Err(PagedRefusal::Axis { axis: self.axis, rank });
        }
        let axis = from_front as usize;
        if update.len() + 1 != rank {
            return Err(PagedRefusal::UpdateRank { rank: update.len() });
        }
        let mut others = cache.to_vec();
        others.remove(axis);
        for dimension in 1..update.len() {
            let (cache, update) = (others[dimension], update[dimension]);
            if cache != update {
                return Err(PagedRefusal::Dimension { dimension, cache, update });
            }
        }
        Ok(axis)
    }
}

/// The blocks of each sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTables {
    /// The blocks of each sample, `max_blocks` numbers for each.
    pub block_tables: Vec<i32>,
    /// The number of entries of each sample.
    pub max_blocks: usize,
    /// The number of tokens of each sample, new tokens included.
    pub seq_lens: Vec<i32>,
    /// The number of slots of a block.
    pub block_size: usize,
    /// The number of blocks of the cache.
    pub num_blocks: usize,
}

impl BlockTables {
    /// Returns the slots of the last `new_tokens[sample]` tokens of each sample.
    ///
    /// The rules are checked in this order: the number of values of the tables and of `new_tokens`, the number
    /// of new tokens and the length of each sample in turn, the number of slots if the caller wants
    /// `wanted_slots` of them, and the block of each new token in turn.
    ///
    /// # Errors
    /// Returns the first broken rule.
    pub fn slot_mapping(&self, new_tokens: &[i64], wanted_slots: usize) -> Result<Vec<i64>, PagedRefusal> {
        let Self { block_tables, max_blocks, seq_lens, block_size, num_blocks } = self;
        let most = max_blocks * block_size;
        let batch = seq_lens.len();
        let expect = |list, given, needed| {
            if given == needed { Ok(()) } else { Err(PagedRefusal::Count { list, given, needed }) }
        };
        expect("block_tables", block_tables.len(), batch * max_blocks)?;
        expect("new_tokens", new_tokens.len(), batch)?;
        let mut total = 0;
        for (sample, &new_tokens) in new_tokens.iter().enumerate() {
            if new_tokens < 0 || new_tokens > most as i64 {
                return Err(PagedRefusal::NewTokens { sample, new_tokens, most });
            }
            let (seq_len, least) = (i64::from(seq_lens[sample]), new_tokens as usize);
            if seq_len < new_tokens || seq_len > most as i64 {
                return Err(PagedRefusal::SeqLen { sample, seq_len, least, most });
            }
            total += least;
        }
        expect("slot_mapping", wanted_slots, total)?;
        let mut slots = Vec::new();
        for (sample, &new_tokens) in new_tokens.iter().enumerate() {
            let seq_len = seq_lens[sample] as usize;
            for token in seq_len - new_tokens as usize..seq_len {
                let column = token / block_size;
                let block = i64::from(block_tables[sample * max_blocks + column]);
                if block < 0 || block >= *num_blocks as i64 {
                    return Err(PagedRefusal::Block { sample, column, block, blocks: *num_blocks });
                }
                slots.push(block * *block_size as i64 + (token % block_size) as i64);
            }
        }
        Ok(slots)
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockTables, PagedRefusal, PagedWrite};
    use crate::Tensor;

    /// Two blocks of three slots, one head of two elements. The tokens go to slot 4 and to slot 0.
    #[test]
    fn both_layouts_by_hand() {
        let (cache, update) = ([0; 12], [1, 2, 3, 4]);
        for (axis, shape) in [(1, [2, 3, 1, 2]), (2, [2, 1, 3, 2]), (-2, [2, 1, 3, 2])] {
            let write = PagedWrite { axis, skip_negative: false };
            let written = write.run(Tensor::new(&cache, &shape), Tensor::new(&update, &[2, 1, 2]), &[4, 0]);
            assert_eq!(written.unwrap().present, [3, 4, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0]);
        }
        let heads = PagedWrite { axis: 2, skip_negative: true };
        let written = heads.run(
            Tensor::new(&cache, &[2, 2, 3, 1]),
            Tensor::new(&[1, 2, 3, 4, 5, 6], &[3, 2, 1]),
            &[4, -1, 0],
        );
        let written = written.unwrap();
        assert_eq!((written.present, written.skipped), (vec![5, 0, 0, 6, 0, 0, 0, 1, 0, 0, 2, 0], 1));
    }

    #[test]
    fn slots_that_no_token_can_have() {
        let write = |slots: &[i64]| {
            let (cache, update) = ([0; 6], [1, 2, 3]);
            PagedWrite { axis: 1, skip_negative: false }
                .run(Tensor::new(&cache, &[2, 3]), Tensor::new(&update, &[3]), slots)
                .unwrap_err()
        };
        assert_eq!(write(&[1, 2]), PagedRefusal::Count { list: "slot_mapping", given: 2, needed: 3 });
        assert_eq!(write(&[5, 6, -1]), PagedRefusal::SlotOutOfRange { token: 1, slot: 6, slots: 6 });
        assert_eq!(write(&[5, 5, -1]), PagedRefusal::NegativeSlot { token: 2, slot: -1 });
        assert_eq!(write(&[5, 2, 5]), PagedRefusal::DuplicateSlot { token: 2, earlier: 0, slot: 5 });
    }

    #[test]
    fn new_tokens_are_the_last_ones() {
        let tables = BlockTables {
            block_tables: vec![7, 1, 4, 5, 3, -9],
            max_blocks: 3,
            seq_lens: vec![5, 4],
            block_size: 2,
            num_blocks: 8,
        };
        assert_eq!(tables.slot_mapping(&[3, 1], 4), Ok(vec![2, 3, 8, 7]));
        let refused = tables.slot_mapping(&[3, 5], 8);
        assert_eq!(refused, Err(PagedRefusal::SeqLen { sample: 1, seq_len: 4, least: 5, most: 6 }));
    }
}
