//! Masks in tract are computed for valid slots only. The results are the bits that whole masks give.

mod decoders;
mod made;
mod rings;

use std::collections::BTreeSet;

use tract_onnx::prelude::*;
use tract_onnx::tract_core::plan::eval;

const BOOL: i32 = 9;
const FLOAT: i32 = 1;
const INT64: i32 = 7;

/// A capacity that no other dimension of these models has.
const CAPACITY: usize = 47;

const BATCH: usize = 2;

/// What a run gave, and what it computed for all slots.
#[derive(Debug)]
struct Ran {
    outputs: TVec<TValue>,
    /// The number of columns of each mask that reached `Attention`.
    columns: Vec<usize>,
    /// The operators that returned a tensor with a dimension of the capacity.
    whole: BTreeSet<String>,
}

fn run(state: &mut TypedSimpleState, capacity: usize, inputs: TVec<TValue>) -> Ran {
    let (mut columns, mut whole) = (vec![], BTreeSet::new());
    let outputs = state.run_plan_with_eval(inputs, |context, state, node, inputs| {
        if node.op().name() == "Attention" {
            columns.extend(inputs[3].shape().last());
        }
        let outputs = eval(context, state, node, inputs)?;
        if outputs.iter().any(|output| output.shape().contains(&capacity)) {
            whole.insert(node.op().name().into_owned());
        }
        TractResult::Ok(outputs)
    });
    Ran { outputs: outputs.unwrap(), columns, whole }
}

fn bytes(outputs: &[TValue]) -> Vec<&[u8]> {
    outputs.iter().map(|output| output.as_bytes()).collect()
}

fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}
