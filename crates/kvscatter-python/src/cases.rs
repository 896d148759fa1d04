//! The oracle's adversarial cases, limited to those that the Python functions can express.

use std::sync::{Mutex, PoisonError};

use kvscatter_oracle::cases::{Call, Case, Element, Values, cases};
use kvscatter_oracle::tensorrt::UpdateForm;
use kvscatter_oracle::{NegativeIndex, OutOfRange};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::reference::Answer;

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
    elements: [&'static str; 2],
    shapes: [Vec<usize>; 2],
    cache: Stored<'py>,
    update: Stored<'py>,
    call: Arguments,
    answer: Answer,
}

/// The arguments after the two tensors, by the names of the Python functions.
#[derive(IntoPyObject)]
struct Arguments {
    operator: &'static str,
    /// The positions. The last part is whether they have 32 bits.
    indices: Vec<(&'static str, Option<Vec<i64>>, bool)>,
    axis_and_mode: Option<(i64, String)>,
    lengths: Option<Vec<i64>>,
    /// The policies that are not the default.
    policies: Vec<(&'static str, &'static str)>,
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
            let answer = Answer::compute(&case.call, case.elements, &case.cache_shape, &case.update_shape);
            Some((case, answer))
        });
        let (case, answer) = next?;
        Some(PythonCase {
            name: case.name,
            elements: case.elements.map(|element| element.name),
            shapes: [case.cache_shape, case.update_shape],
            cache: Stored::new(py, case.cache),
            update: Stored::new(py, case.update),
            call: Arguments::from(&case.call),
            // The oracle's own cases are small, so this is never `None`.
            answer: answer.ok()?,
        })
    }
}

impl CaseFilter {
    fn takes(&self, case: &Case) -> bool {
        // The function sees from `updateLengths` whether the update is packed. It cannot express the other
        // combinations.
        if let Call::KvCacheUpdate { operator, update_lengths, .. } = &case.call
            && (operator.update_form == UpdateForm::Packed) != update_lengths.is_some()
        {
            return false;
        }
        let has = |list: &[String], name: &str| list.iter().any(|listed| listed == name);
        let Arguments { operator, lengths, policies, .. } = Arguments::from(&case.call);
        has(&self.operators, operator)
            && has(&self.elements, case.elements[0].name)
            && case.elements.iter().all(|element: &&Element| has(&self.available, element.name))
            && (lengths.is_none() || has(&self.extensions, "lengths"))
            && policies.iter().all(|(policy, _)| has(&self.extensions, policy))
    }
}

impl From<&Call> for Arguments {
    fn from(call: &Call) -> Self {
        let narrow =
            |name, values: &[i32]| (name, Some(values.iter().copied().map(i64::from).collect()), true);
        let (operator, indices, lengths, out_of_range) = match call {
            Call::TensorScatter { operator, write_indices, lengths } => {
                let indices = vec![("write_indices", write_indices.clone(), false)];
                ("tensor_scatter", indices, lengths, operator.out_of_range)
            }
            Call::KvCacheUpdate { operator, write_indices, update_lengths, lengths } => {
                let ends = update_lengths.as_deref().map(|ends| narrow("updateLengths", ends));
                let indices = vec![
                    ("writeIndices", Some(write_indices.clone()), true),
                    ends.unwrap_or(("updateLengths", None, true)),
                ];
                ("kv_cache_update", indices, lengths, operator.out_of_range)
            }
            Call::KvCacheOperation { operator, layer_id, token_offset, seq_len, lengths } => {
                let lists = [("layerId", layer_id), ("tokenOffset", token_offset), ("seqLen", seq_len)];
                let indices = lists.map(|(name, values)| narrow(name, values)).into();
                ("kv_cache_operation", indices, lengths, operator.out_of_range)
            }
        };
        let mut policies = vec![];
        if out_of_range == OutOfRange::SkipSample {
            policies.push(("out_of_range", "skip"));
        }
        let mut axis_and_mode = None;
        if let Call::TensorScatter { operator, .. } = call {
            axis_and_mode = Some((operator.axis, operator.mode.clone()));
            if operator.negative_index == NegativeIndex::Reject {
                policies.push(("negative_index", "reject"));
            }
        }
        Self { operator, indices, axis_and_mode, lengths: lengths.clone(), policies }
    }
}

impl<'py> Stored<'py> {
    fn new(py: Python<'py>, values: Values) -> Self {
        match values {
            Values::Bytes(bytes) => Self::Bytes(PyBytes::new(py, &bytes)),
            Values::Strings(strings) => Self::Strings(strings),
        }
    }
}
