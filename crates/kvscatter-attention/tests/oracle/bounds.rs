//! How far a result may be from the oracle's.

use kvscatter_oracle::attention::{Array, Float, Inputs, Outputs};
use kvscatter_oracle::cases::attention::AttentionCase;

/// The error of a sum in float32, relative to the largest value.
const RELATIVE: f64 = 2e-6;

/// One rounding of a score in float32, relative to the sum of the magnitudes of its products. It changes the weight of
/// a row by the same share. A score has several roundings, but most of them cancel each other.
const OF_A_SCORE: f64 = f32::EPSILON as f64 / 2.0;

/// The expected outputs of a case, and their bounds.
pub(crate) struct Bounds {
    pub(crate) expected: Outputs,
    element: Float,
    /// The bound of each element of `Y`, before it is rounded to its type.
    tolerances: Vec<f64>,
    /// The sums of the magnitudes of the products, for each element of the scores.
    magnitudes: Vec<f64>,
    mode: i64,
}

impl Bounds {
    /// Runs the oracle. The case must not break a rule.
    pub(crate) fn new(case: &AttentionCase) -> Self {
        let expected = case.expected().unwrap_or_else(|refusal| panic!("{}: {refusal:?}", case.name));
        let magnitudes = magnitudes(case);
        Self {
            tolerances: tolerances(case, &expected, &magnitudes),
            magnitudes,
            element: case.inputs.element,
            mode: case.attention.qk_matmul_output_mode,
            expected,
        }
    }

    pub(crate) fn check_y(&self, got: &[f64], name: &dyn Fn() -> String) {
        self.check("Y", got, &self.expected.y.data, |at| self.tolerances[at], name);
    }

    /// Checks every element of `qk_matmul_output`.
    pub(crate) fn check_scores(&self, got: &[f64], name: &dyn Fn() -> String) {
        let expected = &self.expected.qk_matmul_output.data;
        let tolerance = |at: usize| {
            let magnitude = if self.mode == 3 { 1.0 } else { self.magnitudes[at] + expected[at].abs() };
            if magnitude.is_finite() { RELATIVE * magnitude } else { 0.0 }
        };
        self.check("QK", got, expected, tolerance, name);
    }

    fn check(
        &self,
        output: &str,
        got: &[f64],
        expected: &[f64],
        tolerance: impl Fn(usize) -> f64,
        name: &dyn Fn() -> String,
    ) {
        assert_eq!(got.len(), expected.len());
        for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
            let agree = self.agree(got, expected, tolerance(at));
            assert!(agree, "{}: {output}[{at}] is {got}, not {expected}", name());
        }
    }

    /// Returns whether a result is a number within the tolerance that was rounded to the element type.
    fn agree(&self, got: f64, expected: f64, tolerance: f64) -> bool {
        let element = self.element;
        if got == expected || got.is_nan() && expected.is_nan() {
            return true;
        }
        if !got.is_finite() || !expected.is_finite() {
            return got == element.round(expected);
        }
        let rounding = if element == Float::F32 {
            0.0
        } else {
            element.unit_in_the_last_place(got.abs().max(expected.abs())) / 2.0
        };
        (got - expected).abs() <= tolerance + rounding
    }
}

/// Returns the bound of each element of `Y`. It follows from the largest magnitudes that the element's query sees: of a
/// value, and of a score's products.
fn tolerances(case: &AttentionCase, expected: &Outputs, magnitudes: &[f64]) -> Vec<f64> {
    let attends = case.attention.attends(&case.inputs).unwrap();
    let &[batch, heads, queries, total] = attends.shape.as_slice() else { unreachable!("rank 4") };
    let values = &expected.present_value;
    let (value_heads, size) = (values.shape[1], values.shape[3]);
    let of_row = |sample: usize, head: usize, query: usize| {
        let scores = ((sample * heads + head) * queries + query) * total;
        let first = (sample * value_heads + head / (heads / value_heads)) * total;
        let (mut value, mut products) = (0.0, 0.0);
        for slot in (0..total).filter(|slot| attends.data[scores + slot]) {
            let row = &values.data[(first + slot) * size..][..size];
            value = row.iter().fold(value, |most: f64, value| most.max(value.abs()));
            products = magnitudes[scores + slot].abs().max(products);
        }
        // Some cases have large products, whose results are exact.
        (RELATIVE + RELATIVE.min(OF_A_SCORE * products)) * value
    };
    let mut tolerances = Vec::new();
    for sample in 0..batch {
        let rows = |(outer, inner): (usize, usize), row: &dyn Fn(usize, usize) -> f64| {
            (0..outer)
                .flat_map(|o| (0..inner).map(move |i| (o, i)))
                .map(|(o, i)| row(o, i))
                .collect::<Vec<_>>()
        };
        let rows = if expected.y.shape.len() == 3 {
            rows((queries, heads), &|query, head| of_row(sample, head, query))
        } else {
            rows((heads, queries), &|head, query| of_row(sample, head, query))
        };
        tolerances.extend(rows.into_iter().flat_map(|row| std::iter::repeat_n(row, size)));
    }
    tolerances
}

/// Returns the sum of the magnitudes of the products in each score.
fn magnitudes(case: &AttentionCase) -> Vec<f64> {
    let magnitude =
        |array: &Array<f64>| Array::new(array.data.iter().map(|x| x.abs()).collect(), &array.shape);
    let inputs = Inputs {
        q: magnitude(&case.inputs.q),
        k: magnitude(&case.inputs.k),
        past_key: case.inputs.past_key.as_ref().map(magnitude),
        mask: None,
        ..case.inputs.clone()
    };
    let mut attention = case.attention.clone();
    (attention.qk_matmul_output_mode, attention.softcap) = (0, 0.0);
    attention.run(&inputs).map(|outputs| outputs.qk_matmul_output.data).unwrap_or_default()
}
