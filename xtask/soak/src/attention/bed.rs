//! A prepared operator, and calls of it.

use kvscatter::Executor;
use kvscatter_attention::{Attention, Prepared, Scores, Scratch, Softmax};
use kvscatter_oracle::attention::Positions;
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::cases::attention::{AttentionCase, paint};

use super::bounds::Bounds;
use super::call::{Operands, operator};
use super::element::Element;
use super::executors::Times;
use super::scene::compare;
use super::shapes::Shapes;
use crate::tally::Tally;

pub(super) struct Bed<T> {
    shapes: Shapes,
    /// The operator as it is, with another softmax, and with an output of scores unless it reads a ring.
    operators: Vec<(Attention, Prepared, Scratch)>,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Bed<T> {
    /// Prepares a random operator.
    pub(super) fn random(r: &mut Random) -> Self {
        let shapes = Shapes::random(r);
        let is_ring = matches!(shapes.positions, Positions::Ring(_));
        let (op, scores) = (
            operator(&shapes.attention, &shapes.positions),
            Scores::from_mode(shapes.attention.qk_matmul_output_mode),
        );
        let (Some(op), Some(scores)) = (op, scores) else { panic!("{:?}", shapes.attention) };
        let operands = Operands::<T>::new(&shapes.inputs(r, T::TYPE));
        let operators = [Some(op), Some(op.softmax(Softmax::Float64)), (!is_ring).then(|| op.scores(scores))];
        let prepare = |op: Attention| match operands.as_ref().map(|operands| operands.prepare(&op)) {
            Some(Ok(prepared)) => {
                let scratch = prepared.scratch(2);
                (op, prepared, scratch)
            }
            refused => panic!("a call that breaks no rule gives {refused:?}: {op:?}"),
        };
        Self {
            operators: operators.into_iter().flatten().map(prepare).collect(),
            shapes,
            element: Default::default(),
        }
    }

    /// Runs the operators on new inputs, and compares every result with the oracle.
    pub(super) fn run(&mut self, r: &mut Random, inputs: usize, tally: &mut Tally) {
        for n in 0..inputs {
            let inputs = self.shapes.inputs(r, T::TYPE);
            let attention = self.shapes.attention.clone();
            let mut case = AttentionCase { name: String::new(), attention, inputs, painted: false };
            if r.below(4) != 0 {
                paint(r, &mut case);
            }
            let bounds = case.expected().is_ok().then(|| Bounds::new(&case));
            let Some(operands) = Operands::<T>::new(&case.inputs) else { panic!("{case:?}") };
            for (op, prepared, scratch) in &mut self.operators {
                // An executor that calls the work twice must not change a result.
                let executor: Option<&dyn Executor> = if n % 2 == 0 { None } else { Some(&Times(2)) };
                let result = operands.run_on(prepared, op, n % 3 == 0, scratch, executor);
                match (result, &bounds) {
                    (Ok(results), Some(bounds)) => {
                        compare(bounds, &results, &|| format!("{op:?} {case:?}"));
                        tally.accepted += 1;
                    }
                    (Err(_), None) => tally.refused += 1,
                    (result, _) => panic!("{result:?}, expected {:?}: {op:?} {case:?}", case.expected()),
                }
            }
        }
    }
}
