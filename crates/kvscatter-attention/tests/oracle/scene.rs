//! Runs a case of the oracle with several variants, in every way that must give the same bits, and compares it with
//! the oracle.

use half::{bf16, f16};
use kvscatter::Executor;
use kvscatter_attention::{Attention, Scores, Softmax};
use kvscatter_oracle::attention::{Float, Positions};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::cases::attention::{AttentionCase, paint_for_row};

use super::bounds::Bounds;
use super::call::{Operands, Results, operator};
use super::element::{Element, bits, elements};
use super::executors::{Threads, Times};
use super::variants::Variant;

/// How a case is run, besides once on the calling thread with a new scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ways {
    /// On an executor that calls the work twice, with scratch for two threads.
    Two,
    /// On executors, with scratch for several numbers of threads.
    All,
}

/// Checks a case that breaks no rule, in its element type.
pub(crate) fn check(case: &AttentionCase, ways: Ways, variants: &[Variant]) {
    match case.inputs.element {
        Float::F32 => check_as::<f32>(case, ways, variants),
        Float::F16 => check_as::<f16>(case, ways, variants),
        Float::Bf16 => check_as::<bf16>(case, ways, variants),
    }
}

fn check_as<T: Element>(case: &AttentionCase, ways: Ways, variants: &[Variant]) {
    assert_eq!(case.inputs.element, T::TYPE);
    let bounds = Bounds::new(case);
    let operands = Operands::<T>::new(&case.inputs).unwrap();
    let op = operator(&case.attention, &case.inputs.positions).unwrap();
    let is_ring = matches!(case.inputs.positions, Positions::Ring(_));
    let scored = op.scores(Scores::from_mode(case.attention.qk_matmul_output_mode).unwrap());
    let ops = [Some(op), Some(op.softmax(Softmax::Float64)), (!is_ring).then_some(scored)];
    let painted = PaintedRow::some(case, if ways == Ways::All { 3 } else { 1 });
    for (op, &variant) in
        ops.iter().flatten().flat_map(|op| variants.iter().map(move |variant| (op, variant)))
    {
        let name = || format!("{} {variant:?} {op:?}", case.name);
        let results = operands.run_as(variant, op).unwrap_or_else(|error| panic!("{}: {error}", name()));
        compare(&bounds, &results, &name);
        painted.iter().for_each(|painted| painted.check(variant, op, &results, &name));
        let ways: &[(&dyn Executor, usize)] = match ways {
            Ways::Two => &[(&Times(2), 2)],
            Ways::All => {
                &[(&Times(0), 1), (&Times(1), 2), (&Times(3), 2), (&Threads(3), 3), (&Threads(4), 8)]
            }
        };
        check_ways(&operands, (variant, op), &results, ways, &name);
    }
}

/// A row of a case, and the operands with NaN or infinity in every key and value that this row does not see. Other rows
/// see some of them.
struct PaintedRow<T> {
    /// The sample, the query head and the query.
    at: [usize; 3],
    /// The numbers of query heads and of queries.
    counts: [usize; 2],
    is_rank_3: bool,
    /// Whether `qk_matmul_output` contains no score of a hidden slot.
    has_masked_scores: bool,
    operands: Operands<T>,
}

impl<T: Element> PaintedRow<T> {
    /// Chooses a number of rows of a case.
    fn some(case: &AttentionCase, count: usize) -> Vec<Self> {
        let &[batch, heads, queries, _] = case.attention.attends(&case.inputs).unwrap().shape.as_slice()
        else {
            unreachable!("rank 4")
        };
        if batch * heads * queries == 0 {
            return Vec::new();
        }
        let r = &mut Random::new(91, case.name.bytes().map(usize::from).sum());
        let row = |r: &mut Random| {
            let (mut case, at) = (case.clone(), [r.below(batch), r.below(heads), r.below(queries)]);
            paint_for_row(r, &mut case, at);
            let operands = Operands::new(&case.inputs).unwrap();
            Self {
                at,
                counts: [heads, queries],
                is_rank_3: case.inputs.q.shape.len() == 3,
                has_masked_scores: case.attention.qk_matmul_output_mode >= 2,
                operands,
            }
        };
        r.many(count, row)
    }

    /// Checks that the row has the bits of `expected`.
    fn check(&self, variant: Variant, op: &Attention, expected: &Results<T>, name: &dyn Fn() -> String) {
        let ([sample, head, query], [heads, queries]) = (self.at, self.counts);
        let results = self.operands.run_as(variant, op).unwrap();
        let by_head = (sample * heads + head) * queries + query;
        let at = if self.is_rank_3 { (sample * queries + query) * heads + head } else { by_head };
        let batch = self.operands.query.shape[0];
        let bits_of = |list: &[T], at: usize| {
            let size = list.len() / (batch * heads * queries);
            bits(&list[at * size..][..size])
        };
        let row = || format!("{}: hidden from the row {:?}", name(), self.at);
        assert!(bits_of(&results.y, at) == bits_of(&expected.y, at), "Y, {}", row());
        if self.has_masked_scores {
            let scores = |results: &Results<T>| results.scores.as_deref().map(|all| bits_of(all, by_head));
            assert!(scores(&results) == scores(expected), "QK, {}", row());
        }
    }
}

/// Compares results with the oracle's.
pub(crate) fn compare<T: Element>(bounds: &Bounds, results: &Results<T>, name: &dyn Fn() -> String) {
    let numbers = |results: &[T]| results.iter().map(|number| f64::from(number.to_f32())).collect::<Vec<_>>();
    bounds.check_y(&numbers(&results.y), name);
    if let Some([key, value]) = &results.present {
        // Bits of NaN may differ, because the oracle's numbers are float64.
        let same = |got: &[T], expected: &[f64]| {
            let expected = elements::<T>(expected);
            got.len() == expected.len()
                && got.iter().zip(expected).all(|(got, expected)| {
                    got.bits() == expected.bits() || got.to_f32().is_nan() && expected.to_f32().is_nan()
                })
        };
        assert!(same(key, &bounds.expected.present_key.data), "{}: present_key", name());
        assert!(same(value, &bounds.expected.present_value.data), "{}: present_value", name());
    }
    if let Some(scores) = &results.scores {
        bounds.check_scores(&numbers(scores), name);
    }
}

/// Runs a call on executors, with several numbers of threads, with and without a present, and again and again
/// with the same scratch. All results must have the same bits.
fn check_ways<T: Element>(
    operands: &Operands<T>,
    (variant, op): (Variant, &Attention),
    expected: &Results<T>,
    executors: &[(&dyn Executor, usize)],
    name: &dyn Fn() -> String,
) {
    let prepared = variant.apply(operands.prepare(op).unwrap());
    for &(executor, threads) in executors {
        let mut scratch = prepared.scratch(threads);
        for with_present in [true, false] {
            let results = operands.run_on(&prepared, op, with_present, &mut scratch, Some(executor)).unwrap();
            assert!(bits(&results.y) == bits(&expected.y), "{}: Y on {threads} threads", name());
            let score_bits = |results: &Results<T>| results.scores.as_deref().map(bits);
            assert!(score_bits(&results) == score_bits(expected), "{}: QK on {threads} threads", name());
        }
    }
}
