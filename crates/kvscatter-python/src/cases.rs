//! The oracle's adversarial cases, limited to those that the Python functions can express.

use std::sync::{Mutex, PoisonError};

use kvscatter_oracle::cases::{Call, Case, Element, Values, cases};
use kvscatter_oracle::tensorrt::UpdateForm;
use kvscatter_oracle::{NegativeIndex, OutOfRange};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::reference::{Answer, TooLarge};

/// The number of rejected cases in a row after which the iterator ends, because no case seems to match. This
/// is several times the number of pairs of an idea and an element type.
const PATIENCE: usize = 16_000;

/// An endless iterator of cases. The caller ends it, or it ends if no case matches any more.
#[pyclass(frozen, module = "kvscatter._native")]
pub(crate) struct OracleCases {
    all: Mutex<Box<dyn Iterator<Item = Case> + Send>>,
    filter: CaseFilter,
}

/// The cases that are requested.
struct CaseFilter {
    /// The operators, by the names of their functions.
    operators: Vec<String>,
    /// The ONNX names of the cache's element types.
    elements: Vec<String>,
    /// The ONNX names of the types that have a NumPy type.
    available: Vec<String>,
    /// The arguments of kvscatter that may be used: `lengths`, `out_of_range` and `negative_index`.
    extensions: Vec<String>,
}

/// A case in the form that Python unpacks.
#[derive(IntoPyObject)]
struct PythonCase<'py> {
    name: String,
    operator: &'static str,
    elements: [&'static str; 2],
    cache_shape: Vec<usize>,
    update_shape: Vec<usize>,
    cache: Stored<'py>,
    update: Stored<'py>,
    axis: i64,
    mode: String,
    write_indices: Option<Vec<i64>>,
    update_lengths: Option<Vec<i32>>,
    layer_id: Option<Vec<i32>>,
    token_offset: Option<Vec<i32>>,
    seq_len: Option<Vec<i32>>,
    lengths: Option<Vec<i64>>,
    skip: bool,
    reject: bool,
    answer: Answer,
}

/// Elements as the oracle stores them, with 4-bit elements packed and the first in the low nibble.
#[derive(IntoPyObject)]
enum Stored<'py> {
    Bytes(Bound<'py, PyBytes>),
    Strings(Vec<String>),
}

#[pymethods]
impl OracleCases {
    #[new]
    fn new(
        seed: u64,
        operators: Vec<String>,
        elements: Vec<String>,
        available: Vec<String>,
        extensions: Vec<String>,
    ) -> Self {
        let filter = CaseFilter { operators, elements, available, extensions };
        Self { all: Mutex::new(Box::new(cases(seed, usize::MAX))), filter }
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> Option<PythonCase<'py>> {
        let next = py.detach(|| {
            // The iterator is still usable after a thread has panicked.
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            let case = all.by_ref().take(PATIENCE).find(|case| self.filter.takes(case))?;
            drop(all);
            let answer = Answer::of(&case.call, case.elements, &case.cache_shape, &case.update_shape);
            Some((case, answer))
        });
        match next? {
            (case, Ok(answer)) => Some(PythonCase::of(py, case, answer)),
            // This does not happen, because the oracle's own cases are small.
            (_, Err(TooLarge)) => None,
        }
    }
}

impl CaseFilter {
    fn takes(&self, case: &Case) -> bool {
        let has = |list: &[String], name: &str| list.iter().any(|listed| listed == name);
        let (operator, extensions) = match &case.call {
            Call::TensorScatter { operator, lengths, .. } => {
                let reject = operator.negative_index == NegativeIndex::Reject;
                ("tensor_scatter", (lengths.is_some(), skips(operator.out_of_range), reject))
            }
            Call::KvCacheUpdate { operator, update_lengths, lengths, .. } => {
                // The function sees from `updateLengths` whether the update is packed. It cannot express the
                // other combinations.
                if (operator.update_form == UpdateForm::Packed) != update_lengths.is_some() {
                    return false;
                }
                ("kv_cache_update", (lengths.is_some(), skips(operator.out_of_range), false))
            }
            Call::KvCacheOperation { operator, lengths, .. } => {
                ("kv_cache_operation", (lengths.is_some(), skips(operator.out_of_range), false))
            }
        };
        let (lengths, skip, reject) = extensions;
        let may = |used: bool, name: &str| !used || has(&self.extensions, name);
        has(&self.operators, operator)
            && has(&self.elements, case.elements[0].name)
            && case.elements.iter().all(|element: &&Element| has(&self.available, element.name))
            && may(lengths, "lengths")
            && may(skip, "out_of_range")
            && may(reject, "negative_index")
    }
}

fn skips(out_of_range: OutOfRange) -> bool {
    out_of_range == OutOfRange::SkipSample
}

impl<'py> PythonCase<'py> {
    fn of(py: Python<'py>, case: Case, answer: Answer) -> Self {
        let empty = PythonCase {
            name: case.name,
            operator: "",
            elements: case.elements.map(|element| element.name),
            cache_shape: case.cache_shape,
            update_shape: case.update_shape,
            cache: Stored::of(py, case.cache),
            update: Stored::of(py, case.update),
            axis: 0,
            mode: String::new(),
            write_indices: None,
            update_lengths: None,
            layer_id: None,
            token_offset: None,
            seq_len: None,
            lengths: None,
            skip: false,
            reject: false,
            answer,
        };
        match case.call {
            Call::TensorScatter { operator, write_indices, lengths } => PythonCase {
                operator: "tensor_scatter",
                axis: operator.axis,
                mode: operator.mode,
                write_indices,
                lengths,
                skip: skips(operator.out_of_range),
                reject: operator.negative_index == NegativeIndex::Reject,
                ..empty
            },
            Call::KvCacheUpdate { operator, write_indices, update_lengths, lengths } => PythonCase {
                operator: "kv_cache_update",
                write_indices: Some(write_indices),
                update_lengths,
                lengths,
                skip: skips(operator.out_of_range),
                ..empty
            },
            Call::KvCacheOperation { operator, layer_id, token_offset, seq_len, lengths } => PythonCase {
                operator: "kv_cache_operation",
                layer_id: Some(layer_id),
                token_offset: Some(token_offset),
                seq_len: Some(seq_len),
                lengths,
                skip: skips(operator.out_of_range),
                ..empty
            },
        }
    }
}

impl<'py> Stored<'py> {
    fn of(py: Python<'py>, values: Values) -> Self {
        match values {
            Values::Bytes(bytes) => Self::Bytes(PyBytes::new(py, &bytes)),
            Values::Strings(strings) => Self::Strings(strings),
        }
    }
}
