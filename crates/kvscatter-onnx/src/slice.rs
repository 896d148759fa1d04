//! The bounds of a `Slice`.

use crate::Node;

/// An axis along which a `Slice` cuts, and its bounds as the model has them. A bound is `None` if it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlicedAxis {
    pub(crate) axis: i64,
    pub(crate) start: Option<i64>,
    pub(crate) end: Option<i64>,
    pub(crate) step: Option<i64>,
}

impl<'m> Node<'m> {
    /// Returns the axes along which a `Slice` cuts, or `None` if they are unknown or not as many as the bounds.
    ///
    /// `read` returns the numbers of an input, or `None` if they are unknown.
    pub(crate) fn sliced_axes(
        &self,
        mut read: impl FnMut(&'m str) -> Option<Vec<i64>>,
    ) -> Option<Vec<SlicedAxis>> {
        let given = [("starts", 1), ("ends", 2), ("axes", 3), ("steps", 4)];
        let [starts, ends, axes, steps] = given.map(|(name, slot)| match self.attribute(name) {
            // Before operator set 10, attributes had the numbers.
            Some(attribute) => Some(Some(attribute.ints.clone())),
            None => self.input(slot).map(&mut read),
        });
        let axes = match axes {
            Some(axes) => axes?,
            None => (0..).take(starts.as_ref()?.as_ref()?.len()).collect(),
        };
        let len = |bounds: &Option<Option<Vec<i64>>>| bounds.as_ref().and_then(Option::as_ref).map(Vec::len);
        if [&starts, &ends, &steps].into_iter().filter_map(len).any(|bounds| bounds != axes.len()) {
            return None;
        }
        let bound = |bounds: &Option<Option<Vec<i64>>>, index| bounds.as_ref()?.as_ref()?.get(index).copied();
        let sliced = axes.into_iter().enumerate().map(|(index, axis)| SlicedAxis {
            axis,
            start: bound(&starts, index),
            end: bound(&ends, index),
            step: if steps.is_none() { Some(1) } else { bound(&steps, index) },
        });
        Some(sliced.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::SlicedAxis;
    use crate::support::{ints, nodes_mut, parsed};

    #[test]
    fn bounds_are_inputs_or_attributes() {
        let model = |slice| parsed("x: float[a, b, c], n: int64[1]", slice, "y: float[a, b, c]");
        let of_attributes = {
            let mut model = model("y = Slice(x)");
            let graph = model.proto_mut().graph.get_or_insert_default();
            let node = nodes_mut(graph, "Slice").next().unwrap();
            node.attribute = vec![ints("starts", &[2, 3]), ints("ends", &[4, 5]), ints("axes", &[2, 0])];
            model
        };
        let axis = |axis, start, end, step| SlicedAxis { axis, start, end, step };
        let two = vec![axis(2, Some(2), Some(4), Some(1)), axis(0, Some(3), Some(5), Some(1))];
        for (model, expected) in [
            (of_attributes, Some(two.clone())),
            (model("y = Slice(x, [2, 3], [4, 5], [2, 0])"), Some(two)),
            (model("y = Slice(x, [2], n)"), Some(vec![axis(0, Some(2), None, Some(1))])),
            (model("y = Slice(x, n, [4], [-1], n)"), Some(vec![axis(-1, None, Some(4), None)])),
            (model("y = Slice(x, n, [4])"), None),
            (model("y = Slice(x, [2, 3], [4], [1])"), None),
            (model("y = Slice(x, [2], [4], n)"), None),
        ] {
            let graph = model.graph().unwrap();
            let node = graph.nodes().iter().find(|node| node.is("Slice")).unwrap();
            assert_eq!(node.sliced_axes(|bound| graph.ints(bound)), expected);
        }
    }
}
