//! Builds a call that writes a cache, from the few facts that a case names.

use super::case::{CorpusCall, CorpusCase, Form};
use crate::cases::{Call, Case, Element, Values};
use crate::onnx::TensorScatter;
use crate::size;

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
    /// A `TensorScatter` in linear mode over a float cache. `rows` replaces dimension -2 of the cache's shape.
    pub(super) fn linear(cache_shape: &[usize], rows: usize, write_indices: &[i64]) -> Self {
        let operator = TensorScatter::default();
        let write_indices = Some(write_indices.to_vec());
        let update_shape = with_rows(cache_shape, -2, rows);
        Self::new(Call::TensorScatter { operator, write_indices, lengths: None }, cache_shape, &update_shape)
    }

    /// The same in circular mode.
    pub(super) fn ring(cache_shape: &[usize], rows: usize, write_indices: &[i64]) -> Self {
        Self::linear(cache_shape, rows, write_indices).mode("circular")
    }

    /// A call over a float cache.
    pub(super) fn new(call: Call, cache_shape: &[usize], update_shape: &[usize]) -> Self {
        Self {
            call,
            elements: [element("float"); 2],
            cache_shape: cache_shape.to_vec(),
            update_shape: update_shape.to_vec(),
            values: None,
            form: Form::Plain,
        }
    }

    pub(super) fn mode(mut self, name: &str) -> Self {
        if let Call::TensorScatter { operator, .. } = &mut self.call {
            name.clone_into(&mut operator.mode);
        }
        self
    }

    /// Changes the axis. `rows` is then a number of that dimension.
    pub(super) fn axis(mut self, axis: i64) -> Self {
        if let Call::TensorScatter { operator, .. } = &mut self.call {
            let rows = with_rows_of(&self.update_shape, operator.axis);
            operator.axis = axis;
            self.update_shape = with_rows(&self.cache_shape, axis, rows);
        }
        self
    }

    pub(super) fn without_indices(mut self) -> Self {
        if let Call::TensorScatter { write_indices, .. } = &mut self.call {
            *write_indices = None;
        }
        self
    }

    pub(super) fn update_shape(mut self, shape: &[usize]) -> Self {
        self.update_shape = shape.to_vec();
        self
    }

    /// Changes the element types of the cache and of the update.
    pub(super) fn types(mut self, cache: &str, update: &str) -> Self {
        self.elements = [element(cache), element(update)];
        self
    }

    pub(super) fn element(self, name: &str) -> Self {
        self.types(name, name)
    }

    /// Changes the values of the cache and of the update.
    pub(super) fn values(mut self, cache: Values, update: Values) -> Self {
        self.values = Some([cache, update]);
        self
    }

    pub(super) fn form(mut self, form: Form) -> Self {
        self.form = form;
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

/// Returns the type with this ONNX name.
///
/// # Panics
/// Panics if there is none, because the corpus is then wrong.
#[expect(clippy::expect_used, reason = "the names are written in this module, and a test makes every case")]
pub(super) fn element(name: &str) -> &'static Element {
    Element::named(name).expect("the corpus names types of ONNX")
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

fn with_rows(cache_shape: &[usize], axis: i64, rows: usize) -> Vec<usize> {
    let mut shape = cache_shape.to_vec();
    if let Some(dimension) = place(axis, shape.len()).and_then(|place| shape.get_mut(place)) {
        *dimension = rows;
    }
    shape
}

fn with_rows_of(update_shape: &[usize], axis: i64) -> usize {
    place(axis, update_shape.len()).and_then(|place| update_shape.get(place)).copied().unwrap_or(1)
}

fn place(axis: i64, rank: usize) -> Option<usize> {
    usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok()
}
