//! The adversarial cases that every surface is run on, dense and strided: whole buffers, bit for bit, the right
//! error.

use std::cell::Cell;

use kvscatter::ElementType;
use kvscatter_capi::*;
use kvscatter_oracle::cases::{Call, Case, Element, Placed, Random, Values, View, cases};
use kvscatter_oracle::tensorrt::UpdateForm;
use kvscatter_oracle::{NegativeIndex, OutOfRange, Refusal, nibbles};

use crate::c::{
    CALL, KV_CACHE_OPERATION, KV_CACHE_UPDATE, Operator, Prepared, Refused, TENSOR_SCATTER, Tensor, narrow,
    wide,
};

#[test]
fn dense() {
    for case in cases(0, 8_000) {
        let placed = case.placed(View::dense(&case.cache_shape, 2), View::dense(&case.update_shape, 2));
        check(&case, &placed);
    }
}

#[test]
fn at_other_places_in_memory() {
    let mut random = Random::new(0xCA11, 1);
    for case in cases(2, 8_000) {
        if case.cache_shape.is_empty() || case.update_shape.is_empty() {
            continue;
        }
        let cache = addressable(&case, || View::strided(&case.cache_shape, 2, &mut random));
        let update = addressable(&case, || View::broadcast(&case.update_shape, 2, &mut random));
        check(&case, &case.placed(cache, update));
    }
}

/// A view whose element `[0, 0, …]` has an address: 4-bit ones have at even places.
fn addressable(case: &Case, mut make: impl FnMut() -> View) -> View {
    let bits = case.elements[0].bits;
    std::iter::repeat_with(&mut make).find(|view| bits != Some(4) || view.offset().is_multiple_of(2)).unwrap()
}

/// A case as C sees it.
struct Scene<'a> {
    case: &'a Case,
    placed: &'a Placed,
    cache: Tensor,
    update: Tensor,
}

fn check(case: &Case, placed: &Placed) {
    let tensor = |element: &Element, view: &View| Tensor {
        code: ElementType::from_name(element.name).unwrap().onnx_code(),
        shape: view.shape().iter().map(|&size| size as i64).collect(),
        strides: view.strides().map(|strides| strides.iter().map(|&stride| stride as i64).collect()),
    };
    let [cache, update] = case.elements;
    let scene =
        Scene { case, placed, cache: tensor(cache, &placed.cache), update: tensor(update, &placed.update) };
    let mut call = CALL;
    let operator = said(&case.call, &mut call);
    let prepared = match Prepared::new(&operator, &scene.cache.anywhere(), &scene.update.anywhere()) {
        // More than three strided loops behind the sequence are a layout that is refused.
        Err(refused) if refused.code == "KVS_ERROR_LAYOUT" => {
            return assert!(case.cache_shape.len() > 4 && placed.cache.strides().is_some(), "{case:?}");
        }
        Err(refused) => return scene.check_refused(&refused),
        Ok(prepared) => prepared,
    };
    match &placed.expected {
        Ok(_) if cache.bits.is_none() => scene.check_blocks(&prepared, &call),
        Ok(_) => {
            scene.check_in_place(&prepared, &call);
            scene.check_in_place_many(&prepared, &call);
            scene.check_into_present(&prepared, &call);
            scene.check_blocks(&prepared, &call);
        }
        Err(_) => {
            scene.check_refused(&prepared.blocks(&call).unwrap_err());
            let (cache, update) = (scene.cache_bytes(), scene.update_bytes());
            let (k, k_new) = (scene.at_cache(&cache), scene.at_update(&update));
            scene.check_refused(&prepared.in_place(&call, &k, &k_new).unwrap_err());
            assert!(cache.holds(&placed.past), "{case:?}");
        }
    }
}

impl Scene<'_> {
    fn cache_bytes(&self) -> Words {
        Words::new(&self.placed.past)
    }

    fn update_bytes(&self) -> Words {
        Words::new(&self.placed.new)
    }

    fn at_cache(&self, buffer: &Words) -> kvs_tensor {
        self.cache.at(buffer.element(&self.placed.cache, self.placed.stored[0]))
    }

    fn at_update(&self, buffer: &Words) -> kvs_tensor {
        self.update.at(buffer.element(&self.placed.update, self.placed.stored[1]))
    }

    fn after(&self) -> &kvscatter_oracle::cases::After {
        self.placed.expected.as_ref().unwrap()
    }

    fn check_in_place(&self, prepared: &Prepared, call: &kvs_call) {
        let (cache, update) = (self.cache_bytes(), self.update_bytes());
        let skipped = prepared.in_place(call, &self.at_cache(&cache), &self.at_update(&update));
        assert_eq!(skipped, Ok(self.after().skipped), "{:?}", self.case);
        assert!(cache.holds(&self.after().in_place), "in place {:?}", self.placed);
    }

    fn check_in_place_many(&self, prepared: &Prepared, call: &kvs_call) {
        let (k, v, update) = (self.cache_bytes(), self.cache_bytes(), self.update_bytes());
        let pair = |cache| kvs_pair { cache: self.at_cache(cache), update: self.at_update(&update) };
        let skipped = prepared.in_place_many(call, &[pair(&k), pair(&v)]);
        assert_eq!(skipped, Ok(self.after().skipped), "{:?}", self.case);
        assert!([k, v].iter().all(|cache| cache.holds(&self.after().in_place)), "many {:?}", self.placed);
    }

    fn check_into_present(&self, prepared: &Prepared, call: &kvs_call) {
        let (past, update) = (self.cache_bytes(), self.update_bytes());
        let Values::Bytes(expected) = &self.after().present else { unreachable!() };
        let present = Words::guarded(expected.len());
        let dense = Tensor { strides: None, ..self.cache.clone() };
        let tensors = [&self.at_cache(&past), &self.at_update(&update), &dense.at(present.at(8))];
        assert_eq!(prepared.functional(call, tensors), Ok(self.after().skipped), "{:?}", self.case);
        let guard = [GUARD; 8];
        let whole = [guard.as_slice(), expected, &guard].concat();
        assert!(present.bytes() == whole, "functional {:?}", self.placed);
        assert!(past.holds(&self.placed.past), "the past {:?}", self.placed);
    }

    /// Executes the blocks element by element.
    fn check_blocks(&self, prepared: &Prepared, call: &kvs_call) {
        let bits = self.placed.stored[0].bits.unwrap();
        let elements = |values: &Values| -> Vec<Vec<u8>> {
            let Values::Bytes(bytes) = values else { unreachable!() };
            match bits {
                4 => nibbles::unpack(bytes, 2 * bytes.len()).into_iter().map(|nibble| vec![nibble]).collect(),
                _ => bytes.chunks(bits / 8).map(<[u8]>::to_vec).collect(),
            }
        };
        let origin = |view: &View| (view.buffer().start + view.offset()) as isize;
        let (to, from) = (origin(&self.placed.cache), origin(&self.placed.update));
        let (mut cache, update) = (elements(&self.placed.past), elements(&self.placed.new));
        for kvs_block { dst, src, len, loops: [a, b, c] } in prepared.blocks(call).unwrap() {
            for (i, j, k) in indices([a.count, b.count, c.count]) {
                let dst = to + dst + i * a.dst + j * b.dst + k * c.dst;
                let src = from + src + i * a.src + j * b.src + k * c.src;
                for at in 0..len as isize {
                    cache[(dst + at) as usize].clone_from(&update[(src + at) as usize]);
                }
            }
        }
        assert!(cache == elements(&self.after().in_place), "blocks {:?}", self.placed);
    }

    fn check_refused(&self, refused: &Refused) {
        let Err(refusal) = &self.placed.expected else { panic!("{refused:?}, {:?}", self.case) };
        assert_eq!(refused.code, code(refusal, &self.case.call, &self.case.cache_shape), "{:?}", self.case);
        let index = match *refusal {
            Refusal::Length { sample, .. }
            | Refusal::NegativeStart { sample, .. }
            | Refusal::OutOfRange { sample, .. }
            | Refusal::SeqLen { sample, .. } => Some(sample as i64),
            _ => refused.index,
        };
        assert_eq!(refused.index, index, "{:?}", self.case);
    }
}

fn indices(counts: [usize; 3]) -> impl Iterator<Item = (isize, isize, isize)> {
    let [a, b, c] = counts.map(|count| count as isize);
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k))))
}

/// The call in the words of the header; its indices are the case's own.
fn said(call: &Call, into: &mut kvs_call) -> Operator {
    let out_of_range = |policy| match policy {
        OutOfRange::Error => kvs_out_of_range::KVS_OUT_OF_RANGE_ERROR as i32,
        OutOfRange::SkipSample => kvs_out_of_range::KVS_OUT_OF_RANGE_SKIP_SAMPLE as i32,
    };
    match call {
        Call::TensorScatter { operator, write_indices, lengths } => {
            into.write_indices = write_indices.as_deref().map_or(into.write_indices, wide);
            into.lengths = lengths.as_deref().map_or(into.lengths, wide);
            Operator::TensorScatter(kvs_tensor_scatter_options {
                axis: operator.axis,
                mode: match operator.mode.as_str() {
                    "linear" => kvs_mode::KVS_MODE_LINEAR as i32,
                    "circular" => kvs_mode::KVS_MODE_CIRCULAR as i32,
                    _ => 2,
                },
                out_of_range: out_of_range(operator.out_of_range),
                negative_index: match operator.negative_index {
                    NegativeIndex::Modulo => kvs_negative_index::KVS_NEGATIVE_INDEX_MODULO as i32,
                    NegativeIndex::Reject => kvs_negative_index::KVS_NEGATIVE_INDEX_REJECT as i32,
                },
                ..TENSOR_SCATTER
            })
        }
        Call::KvCacheUpdate { operator, write_indices, update_lengths, lengths } => {
            into.write_indices = wide(write_indices);
            into.update_lengths = update_lengths.as_deref().map_or(into.update_lengths, narrow);
            into.lengths = lengths.as_deref().map_or(into.lengths, wide);
            Operator::KvCacheUpdate(kvs_kv_cache_update_options {
                update_form: match operator.update_form {
                    UpdateForm::Padded => kvs_update_form::KVS_UPDATE_FORM_PADDED as i32,
                    UpdateForm::Packed => kvs_update_form::KVS_UPDATE_FORM_PACKED_NHD as i32,
                },
                out_of_range: out_of_range(operator.out_of_range),
                ..KV_CACHE_UPDATE
            })
        }
        Call::KvCacheOperation { operator, layer_id, token_offset, seq_len, lengths } => {
            (into.layer_id, into.token_offset) = (narrow(layer_id), narrow(token_offset));
            into.seq_len = narrow(seq_len);
            into.lengths = lengths.as_deref().map_or(into.lengths, wide);
            let out_of_range = out_of_range(operator.out_of_range);
            Operator::KvCacheOperation(kvs_kv_cache_operation_options { out_of_range, ..KV_CACHE_OPERATION })
        }
    }
}

/// The status for a rule that the oracle says is broken.
fn code(refusal: &Refusal, call: &Call, cache_shape: &[usize]) -> &'static str {
    let (onnx, ascend) =
        (matches!(call, Call::TensorScatter { .. }), matches!(call, Call::KvCacheOperation { .. }));
    match *refusal {
        Refusal::TypesDiffer { .. } => "KVS_ERROR_ELEMENT_TYPE_MISMATCH",
        Refusal::UnsupportedType { .. } => "KVS_ERROR_ELEMENT_TYPE",
        Refusal::Mode { .. } => "KVS_ERROR_UNKNOWN_OPTION",
        Refusal::CacheRank { .. } if onnx => "KVS_ERROR_RANK_TOO_LOW",
        Refusal::UpdateRank { .. } if onnx => "KVS_ERROR_RANK_MISMATCH",
        Refusal::CacheRank { .. } | Refusal::UpdateRank { .. } => "KVS_ERROR_RANK",
        Refusal::Axis { axis, .. } if axis == 0 || axis == -(cache_shape.len() as i64) => {
            "KVS_ERROR_AXIS_IS_BATCH"
        }
        Refusal::Axis { .. } => "KVS_ERROR_AXIS_OUT_OF_RANGE",
        Refusal::Dimension { dimension: 3, .. } if ascend => "KVS_ERROR_HIDDEN_SIZE",
        Refusal::Dimension { .. } => "KVS_ERROR_DIMENSION_MISMATCH",
        Refusal::UpdateBatch { .. } => "KVS_ERROR_BATCH_TOO_LARGE",
        Refusal::UpdateTooLong { .. } => "KVS_ERROR_UPDATE_LONGER_THAN_CACHE",
        Refusal::IndexCount { .. } | Refusal::UpdateLengthsMissing => "KVS_ERROR_COUNT",
        Refusal::Length { .. } | Refusal::SeqLen { .. } => "KVS_ERROR_LENGTH_OUT_OF_RANGE",
        Refusal::NegativeStart { .. } | Refusal::OutOfRange { .. } if ascend => "KVS_ERROR_END_OUT_OF_RANGE",
        Refusal::NegativeStart { .. } => "KVS_ERROR_NEGATIVE_START",
        Refusal::OutOfRange { .. } => "KVS_ERROR_START_OUT_OF_RANGE",
        Refusal::UpdateLengthsUnexpected => "KVS_ERROR_UNEXPECTED_ARGUMENT",
        Refusal::UpdateLengthsFirst { .. } => "KVS_ERROR_CUMULATIVE_START",
        Refusal::UpdateLengthsDecrease { .. } => "KVS_ERROR_CUMULATIVE_ORDER",
        Refusal::UpdateLengthsTooLong { .. } => "KVS_ERROR_CUMULATIVE_LENGTH",
        Refusal::UpdateLengthsTotal { .. } | Refusal::SeqLenTotal { .. } => "KVS_ERROR_TOKEN_SUM",
        Refusal::LayerId { .. } => "KVS_ERROR_LAYER_OUT_OF_RANGE",
    }
}

/// What surrounds a present.
const GUARD: u8 = 0xA5;

/// Bytes that begin where every element may, and that the library writes through their address.
struct Words {
    words: Vec<Cell<u64>>,
    len: usize,
}

impl Words {
    fn new(values: &Values) -> Self {
        let Values::Bytes(bytes) = values else { panic!("strings are placed as handles") };
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            Cell::new(u64::from_ne_bytes(word))
        };
        Self { words: bytes.chunks(8).map(word).collect(), len: bytes.len() }
    }

    /// So many bytes between eight and eight others.
    fn guarded(len: usize) -> Self {
        Self::new(&Values::Bytes(vec![GUARD; len + 16]))
    }

    fn at(&self, byte: usize) -> *mut u8 {
        self.words.as_ptr().cast_mut().cast::<u8>().wrapping_add(byte)
    }

    fn element(&self, view: &View, stored: &Element) -> *mut u8 {
        self.at((view.buffer().start + view.offset()) * stored.bits.unwrap() / 8)
    }

    fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.get().to_ne_bytes()).take(self.len).collect()
    }

    fn holds(&self, values: &Values) -> bool {
        matches!(values, Values::Bytes(bytes) if *bytes == self.bytes())
    }
}
