//! The result of a session's step: logits that NumPy reads without a copy.

use kvscatter_session::{Logits, Sample};
use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyIndexError, PyKeyError};
use pyo3::prelude::*;

use crate::options;

/// A sample of a running batch, as `KvSession.add` returns it.
///
/// It identifies one sample until that sample is removed. A sample that is added later at the same index is
/// a different one.
#[pyclass(frozen, eq, hash, name = "Sample", module = "kvscatter")]
#[derive(PartialEq, Hash)]
pub(crate) struct PySample(pub(crate) Sample);

#[pymethods]
impl PySample {
    /// The index of the sample in the batch.
    #[getter]
    fn batch_index(&self) -> usize {
        self.0.batch_index()
    }

    fn __repr__(&self) -> String {
        format!("<kvscatter.Sample: batch index {}>", self.0.batch_index())
    }
}

/// The logits after the tokens of a step: `vocabulary` float32 numbers after each token.
///
/// The arrays are read-only views of the memory of this object, and they keep it alive.
#[pyclass(frozen, name = "Logits", module = "kvscatter")]
pub(crate) struct PyLogits(pub(crate) Logits);

#[pymethods]
impl PyLogits {
    /// The number of logits after a token.
    #[getter]
    fn vocabulary(&self) -> usize {
        self.0.vocabulary()
    }

    /// The samples that got tokens, in the order of the step.
    #[getter]
    fn samples(&self) -> Vec<PySample> {
        self.0.samples().map(PySample).collect()
    }

    /// Returns the logits after the token with this index in the step, `[vocabulary]` of float32.
    ///
    /// Negative indices do not count from the end.
    ///
    /// Raises:
    ///     IndexError: The index is negative, the sample has no such token, or the logits after the token
    ///         were not kept. `prefill`, and models that score only the last token, keep only the logits
    ///         after the last token.
    ///     KeyError: The sample had no tokens in this step.
    fn after<'py>(
        slf: &Bound<'py, Self>,
        sample: &PySample,
        #[pyo3(from_py_with = options::token)] token: usize,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        slf.get().check(sample)?;
        let none = || PyIndexError::new_err(format!("{}: no logits after token {token}", sample.0));
        slf.get().0.after(sample.0, token).map(|values| view(slf, values)).ok_or_else(none)
    }

    /// Returns the logits after the sample's last token, `[vocabulary]` of float32.
    ///
    /// Raises:
    ///     KeyError: The sample had no tokens in this step.
    fn last<'py>(slf: &Bound<'py, Self>, sample: &PySample) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let none = || PyKeyError::new_err(format!("{} had no tokens in this step", sample.0));
        slf.get().0.last(sample.0).map(|values| view(slf, values)).ok_or_else(none)
    }

    fn __repr__(&self) -> String {
        let samples = self.0.samples().count();
        format!("<kvscatter.Logits: {samples} samples, vocabulary {}>", self.0.vocabulary())
    }
}

impl PyLogits {
    fn check(&self, sample: &PySample) -> PyResult<()> {
        if self.0.samples().any(|of| of == sample.0) {
            return Ok(());
        }
        Err(PyKeyError::new_err(format!("{} had no tokens in this step", sample.0)))
    }
}

/// Returns an array that is a view of the values.
fn view<'py>(owner: &Bound<'py, PyLogits>, values: &[f32]) -> Bound<'py, PyArray1<f32>> {
    let values = ArrayView1::from(values);
    // SAFETY: The values belong to `owner`, which the array keeps alive. `PyLogits` is frozen and nothing in
    // it ever changes, so the values stay where they are.
    let array = unsafe { PyArray1::borrow_from_array(&values, owner.clone().into_any()) };
    // The array is new, so it is not borrowed.
    array.readwrite().make_nonwriteable();
    array
}
