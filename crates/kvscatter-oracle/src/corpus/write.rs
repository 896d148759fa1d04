//! Builds a call that writes a cache, from the few facts that a case names.

use super::case::{CorpusCall, CorpusCase, Fault, Form};
use super::fields::{Fields, wrong};
use crate::OutOfRange;
use crate::ascend::KvCacheOperation;
use crate::cases::{Call, Case, Element, Values};
use crate::onnx::TensorScatter;
use crate::size;
use crate::tensorrt::{KvCacheUpdate, UpdateForm};

/// A call that writes a cache.
#[derive(Clone)]
pub(super) struct Write {
    call: Call,
    elements: [&'static Element; 2],
    cache_shape: Vec<usize>,
    update_shape: Vec<usize>,
    values: Option<[Values; 2]>,
    form: Form,
}

impl Write {
    /// Reads a call, which `rules.txt` describes.
    pub(super) fn read(text: &str) -> Self {
        let mut fields = Fields::new(text);
        let cache_shape: Vec<usize> = fields.list("cache").unwrap_or_default();
        let (call, update_shape, usual_type) = match fields.kind {
            "padded" => (kv_cache_update(UpdateForm::Padded, &mut fields), None, "float"),
            "packed" => (kv_cache_update(UpdateForm::Packed, &mut fields), None, "float"),
            "operation" => {
                let seq_len: Vec<i32> = fields.list("rows").unwrap_or_default();
                let tokens = seq_len.iter().map(|&rows| rows as usize).sum();
                let call = Call::KvCacheOperation {
                    operator: KvCacheOperation::default(),
                    layer_id: fields.list("layer").unwrap_or_default(),
                    token_offset: fields.list("ends").unwrap_or_default(),
                    seq_len,
                    lengths: None,
                };
                (call, cache_shape.last().map(|&hidden| vec![tokens, hidden]), "float16")
            }
            kind => {
                let mode = match kind {
                    "linear" => "linear",
                    "ring" => "circular",
                    _ => wrong(text),
                };
                let mode = fields.text("mode").unwrap_or(mode).to_owned();
                let axis = fields.value("axis").unwrap_or(-2);
                let operator = TensorScatter { axis, mode, ..TensorScatter::default() };
                let rows = fields.value("rows").map(|rows| with_rows(&cache_shape, axis, rows));
                let write_indices = fields.list("at");
                (Call::TensorScatter { operator, write_indices, lengths: None }, rows, "float")
            }
        };
        let update_shape = fields.list("update").or(update_shape).unwrap_or_else(|| wrong(text));
        let cache_type = fields.text("type").unwrap_or(usual_type);
        let types = [cache_type, fields.text("update_type").unwrap_or(cache_type)];
        let elements = types.map(|name| Element::named(name).unwrap_or_else(|| wrong(text)));
        let form = fields.text("form").map_or(Form::Plain, form);
        fields.finish();
        Self { call, elements, cache_shape, update_shape, values: None, form }
    }

    /// Changes the values of the cache and of the update.
    pub(super) fn values(mut self, cache: Values, update: Values) -> Self {
        self.values = Some([cache, update]);
        self
    }

    /// Runs the oracle and makes the case.
    pub(super) fn case(self, rule: &'static str, name: &'static str, what: &'static str) -> CorpusCase {
        let form = self.form;
        CorpusCase { rule, name, what, call: CorpusCall::Write(Box::new(self.finish(rule, name)), form) }
    }

    pub(super) fn finish(self, rule: &str, name: &str) -> Case {
        let Self { call, elements, cache_shape, update_shape, values, .. } = self;
        let [cache, update] = values.unwrap_or_else(|| {
            let (cache_len, update_len) = (size(&cache_shape), size(&update_shape));
            [readable(elements[0], 0, cache_len, 1), readable(elements[1], cache_len, update_len, -1)]
        });
        Case::new(format!("{rule}/{name}"), call, elements, [cache_shape, update_shape], [cache, update])
    }
}

fn kv_cache_update(update_form: UpdateForm, fields: &mut Fields<'_>) -> Call {
    Call::KvCacheUpdate {
        operator: KvCacheUpdate { update_form, out_of_range: OutOfRange::Error },
        write_indices: fields.list("at").unwrap_or_default(),
        update_lengths: fields.list("lengths"),
        lengths: None,
    }
}

fn form(name: &str) -> Form {
    let fault = match name {
        "symbols" => return Form::Symbols,
        "typed-fields" => return Form::TypedFields,
        "empty-indices-name" => return Form::EmptyIndicesName,
        "past-is-output" => return Form::PastIsOutput,
        "update-is-past" => return Form::UpdateIsPast,
        "operator-set-23" => Fault::OperatorSet(23),
        "unknown-attribute" => Fault::UnknownAttribute,
        "axis-is-string" => Fault::AxisIsString,
        "one-input" => Fault::OneInput,
        "four-inputs" => Fault::FourInputs,
        "two-outputs" => Fault::TwoOutputs,
        "circular-cache-mode" => Fault::CircularCacheMode,
        "int32-indices" => Fault::Int32Indices,
        "indices-of-rank-2" => Fault::IndicesOfRank2,
        _ => wrong(name),
    };
    Form::Fault(fault)
}

/// Returns the numbers 1, 2, 3 and so on, times `sign`, for the type float. Other types are painted, with
/// `first` as the number of the first element.
fn readable(element: &Element, first: usize, count: usize, sign: i8) -> Values {
    match element.name {
        "float" => {
            Values::Bytes((1..=count).flat_map(|n| (n as f32 * f32::from(sign)).to_le_bytes()).collect())
        }
        _ => Values::painted(element, first, count),
    }
}

/// Returns the shape with `rows` along the axis, if the axis exists.
fn with_rows(cache_shape: &[usize], axis: i64, rows: usize) -> Vec<usize> {
    let mut shape = cache_shape.to_vec();
    let place = usize::try_from(if axis < 0 { axis + shape.len() as i64 } else { axis });
    if let Some(dimension) = place.ok().and_then(|place| shape.get_mut(place)) {
        *dimension = rows;
    }
    shape
}
