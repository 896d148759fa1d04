//! Proves that the nodes around a cache move its rows as its layout says.
//!
//! The exported nodes append new rows to a past in its exported layout. The new nodes append the same rows to the same
//! past with the expected axes, and return it in the exported layout. Both must be equal, on rows whose numbers all
//! differ. So each row is where the layout says: those of the past, which the layout places, and the new ones, which
//! the exported nodes place.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::OtherLayout;
use crate::fold::{MAX_VALUES, Value, Values, elements, strides, to_float, walk};
use crate::proto::TensorProto;
use crate::prove::{Case, Excerpt, Inequality, Prover, Question};
use crate::{Graph, Model, OnnxError};

// The sizes of the rows. They differ, so that no axis can take the place of another one.
const BATCH: usize = 2;
const PAST: usize = 4;
const NEW: usize = 3;
const HEAD_SIZE: usize = 5;

/// The number of heads if the layout does not depend on it.
const HEADS: usize = 6;

// The names of the past in both layouts, and of the new rows.
const EXPORTED_PAST: &str = "exported past";
const FORMED_PAST: &str = "formed past";
const UPDATE: &str = "update";

/// Checks that a changed model computes the value `exported`, a cache in its exported layout, as the exported nodes do.
///
/// # Errors
/// Returns the reason if it does not.
pub(super) fn prove(
    layout: &OtherLayout<'_, '_>,
    exported: &str,
    formed: &Model,
    graph: &Graph<'_>,
    prover: &mut Prover,
) -> Result<(), Inequality> {
    // The file may claim any number of heads.
    if elements(&[BATCH, layout.heads.unwrap_or(HEADS), PAST.max(NEW), HEAD_SIZE]) > MAX_VALUES {
        return Err(Inequality::Unknown { output: 0 });
    }
    let (past, update) = (layout.cache.past, layout.update);
    let operators = &formed.proto().opset_import;
    let new_names = |of_past: &str| [(past, of_past.to_owned()), (update, UPDATE.to_owned())];
    let writer = &layout.writer;
    let written: Vec<_> = writer.output(0).into_iter().collect();
    let before = Excerpt::new(&[writer.proto()], &written, new_names(EXPORTED_PAST), operators.clone());
    let mut nodes = BTreeMap::new();
    let mut open = vec![exported];
    while let Some(value) = open.pop() {
        if ![past, update].contains(&value)
            && let Some((node, _)) = graph.producer(value)
            && nodes.insert(node.index(), node.proto()).is_none()
        {
            open.extend(node.reads());
        }
    }
    let nodes: Vec<_> = nodes.into_values().collect();
    let mut after = Excerpt::new(&nodes, &[exported], new_names(FORMED_PAST), operators.clone());
    for (value, name) in after.inputs {
        let constant =
            graph.initializer(value).map(|constant| TensorProto { name: Some(name), ..constant.clone() });
        after.model.graph.get_or_insert_default().initializer.extend(constant);
    }
    let (before, after) = (before.model, after.model);
    let question = Question { before, after, known: Vec::new(), rounded: Some(ElementType::Float64) };
    prover.equal(question, |_| Ok(vec![Case { given: given(layout)?, rows: None }]))
}

/// Returns the past in both layouts, and the new rows.
fn given(layout: &OtherLayout<'_, '_>) -> Result<BTreeMap<String, Value>, OnnxError> {
    let heads = layout.heads.unwrap_or(HEADS);
    let numbered = |tokens: usize, sign: f64| {
        let shape = vec![BATCH, heads, tokens, HEAD_SIZE];
        let numbers = (1..=elements(&shape)).map(|number| sign * to_float(number));
        let numbers = Values::Floats(numbers.collect());
        Value::new(ElementType::Float64, shape, Some(numbers))
    };
    let (past, update) = (numbered(PAST, 1.0)?, numbered(NEW, -1.0)?);
    Ok([
        (EXPORTED_PAST.to_owned(), exported(layout, &past)?),
        (UPDATE.to_owned(), exported(layout, &update)?),
        (FORMED_PAST.to_owned(), past),
    ]
    .into())
}

/// Returns a value with the expected axes in the exported layout.
fn exported(layout: &OtherLayout<'_, '_>, value: &Value) -> Result<Value, OnnxError> {
    let in_order = |list: &[usize]| layout.order.map(|axis| list.get(axis).copied().unwrap_or_default());
    let steps = strides(&value.shape);
    let steps = layout.order.map(|axis| steps.get(axis).copied().unwrap_or_default());
    let shape = in_order(&value.shape);
    let moved = value.data.as_ref().map(|data| data.pick(&walk(&shape, 0, &steps))).transpose()?;
    let [samples, heads, inner @ ..] = shape;
    let merged = || [samples.saturating_mul(heads)].into_iter().chain(inner).collect();
    let shape = if layout.heads.is_some() { merged() } else { shape.to_vec() };
    Value::new(value.element, shape, moved)
}

#[cfg(test)]
mod tests {
    use super::prove;
    use crate::Model;
    use crate::convert::form::layout::OtherLayout;
    use crate::decoder::Decoder;
    use crate::edit::Editor;
    use crate::prove::Prover;
    use crate::support::{Nodes, graph_mut, parsed};

    /// Creates a decoder of one cache with a head after the tokens, and forms it. `after` changes the formed nodes.
    fn proves(after: impl Fn(&mut Model)) -> bool {
        let exported = parsed(
            "ids: int64[batch, new], past: float[batch, past, 6, 4]",
            "row = Unsqueeze(Gather(0.5[16, 4], ids), [2])
            rows = Expand(row, [1, 1, 6, 1])
            present = Concat(past, rows) {axis=1}
            y = ReduceSum(present)",
            "y: float[], present: float[batch, all, 6, 4]",
        );
        let graph = exported.graph().unwrap();
        let decoder = Decoder::from_graph(&graph).unwrap();
        let layout = OtherLayout::find(&decoder.caches[0], &graph).unwrap();
        let mut formed = exported.clone();
        let mut editor = Editor::new(formed.proto_mut()).unwrap();
        let name = layout.form(graph.inputs().unwrap()[0].shape.as_ref().unwrap()[0], &mut editor).unwrap();
        editor.finish().unwrap();
        after(&mut formed);
        prove(&layout, &name, &formed, &formed.graph().unwrap(), &mut Prover::new(0)).is_ok()
    }

    #[test]
    fn nodes_that_move_rows_elsewhere_are_not_proved() {
        assert!(proves(|_| ()));
        let replaced = |old: &str, new: &str| {
            let nodes = Nodes::parse(new).nodes;
            proves(|model| {
                let mut found = 0;
                for node in
                    graph_mut(model).node.iter_mut().filter(|node| node.op_type.as_deref() == Some(old))
                {
                    node.attribute.clone_from(&nodes[0].attribute);
                    found += 1;
                }
                assert!(found > 0, "{old}");
            })
        };
        assert!(!replaced("Transpose", "y = Transpose(x) {perm=[0, 1, 2, 3]}"));
        assert!(!replaced("Transpose", "y = Transpose(x) {perm=[0, 2, 3, 1]}"));
        assert!(!replaced("Concat", "y = Concat(x) {axis=1}"));
    }
}
