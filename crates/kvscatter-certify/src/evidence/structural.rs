//! Claims that the graph proves. They are true for every input on a runtime that runs the graph unchanged.

use std::collections::BTreeSet;

use kvscatter_onnx::decoder::{Cache, Decoder, WriterStyle};
use kvscatter_onnx::{Dimension, Graph, Node};

use crate::certificate::{Check, Failure};

/// The operator that writes the caches.
struct Writer(&'static str);

/// Examines all claims about the caches that the graph alone can prove.
pub(crate) fn examine(graph: &Graph<'_>, decoder: &Decoder<'_>) -> Vec<Check> {
    let caches = &decoder.caches;
    let count = caches.len();
    let by_operator = caches.iter().any(|cache| cache.style == WriterStyle::GroupQueryAttention);
    let op_type = if by_operator { "GroupQueryAttention" } else { "TensorScatter" };
    let writer = Writer(op_type);
    let each = |of: &dyn Fn(&Cache<'_>) -> Option<String>| {
        caches
            .iter()
            .filter_map(|cache| {
                of(cache)
                    .map(|message| Failure { cache: Some(cache.past.to_owned()), ..Failure::new(message) })
            })
            .collect::<Vec<_>>()
    };
    vec![
        Check::unless(
            &format!("written-by-{}", op_type.to_lowercase()),
            &format!("Every cache is written by one {op_type}."),
            format!("{count} caches followed from past to present"),
            each(&|cache| writer.is_only(cache)),
        ),
        Check::unless(
            "nothing-in-between",
            &format!(
                "No other tensor of the cache's size is between past and {op_type}, or between {op_type} and present."
            ),
            format!("past is {op_type}'s input and its output is present, {count} times"),
            each(&|cache| writer.in_between(cache)),
        ),
        Check::unless(
            "past-read-once",
            "No node except the write reads the elements of past, which the write overwrites.",
            format!("{} nodes and their subgraphs searched for reads of {count} pasts", graph.nodes().len()),
            each(&|cache| second_reader(graph, cache)),
        ),
        Check::unless(
            "present-named-once",
            "Every present is one output.",
            format!("{count} presents"),
            each(&|cache| {
                let copy = cache.copies.first()?;
                Some(format!(
                    "output {copy:?} is the same tensor as {:?}, so one of them is a copy",
                    cache.present
                ))
            }),
        ),
        shapes(each(&|cache| shape_changes(cache)), count, by_operator),
        positions(graph, decoder),
    ]
}

impl Writer {
    fn writes(&self, cache: &Cache<'_>) -> bool {
        cache.writer.is_some_and(|node| node.op_type() == self.0)
    }

    fn is_only(&self, cache: &Cache<'_>) -> Option<String> {
        if let Some(earlier) = cache.earlier.first() {
            return Some(format!("{} writes the cache before the last write", earlier.label()));
        }
        (!self.writes(cache)).then(|| format!("its style is {}", cache.style))
    }

    fn in_between(&self, cache: &Cache<'_>) -> Option<String> {
        cache.writer.filter(|_| self.writes(cache)).and_then(|writer| in_between(cache, writer))
    }
}

fn in_between(cache: &Cache<'_>, writer: Node<'_>) -> Option<String> {
    if !cache.between.is_empty() {
        let nodes: Vec<String> = cache.between.iter().map(|node| node.label().to_string()).collect();
        let verb = if nodes.len() == 1 { "is" } else { "are" };
        return Some(format!("{} {verb} between past and present", nodes.join(", ")));
    }
    // A node such as `Identity` also fails this check. Most runtimes do not copy anything for it, but no rule
    // requires them to remove it.
    let first = cache.earlier.first().copied().unwrap_or(writer);
    let reads = |name: &str| first.inputs().any(|input| input == Some(name));
    let makes = |name: &str| writer.outputs().any(|output| output == name);
    match (reads(cache.past), makes(cache.present)) {
        (true, true) => None,
        (false, _) => {
            Some(format!("{} reads {:?}, not past itself", first.label(), first.input(0).unwrap_or("")))
        }
        (true, false) => Some(format!("{} makes {:?}, not present itself", writer.label(), cache.written)),
    }
}

/// Returns the message if past is read more than once. Nodes that read only its shape do not count.
fn second_reader(graph: &Graph<'_>, cache: &Cache<'_>) -> Option<String> {
    // The first node on the way to the write must be the only one that reads past.
    let uses = graph.uses(cache.past).map(|(node, _)| node);
    let mut readers = uses.filter(|node| !node.is("Shape") && !node.is("Size"));
    let (first, second) = (readers.next()?, readers.next()?);
    let writer = cache.writer.map(|writer| writer.index());
    let other = if Some(second.index()) == writer { first } else { second };
    Some(format!("{} reads it too", other.label()))
}

fn shapes(failures: Vec<Failure>, count: usize, by_operator: bool) -> Check {
    const ID: &str = "shape-is-kept";
    const CLAIM: &str = "Present has the shape and the type of past.";
    if by_operator && failures.is_empty() {
        let why = "the graph leaves the lengths of past and present open, and the operator keeps those of the buffer";
        return Check::not_applicable(ID, CLAIM, why);
    }
    Check::unless(ID, CLAIM, format!("{count} declared shapes compared"), failures)
}

fn shape_changes(cache: &Cache<'_>) -> Option<String> {
    let present = &cache.present_info;
    if present.element != cache.element {
        return Some(format!("past is {}, present is {}", cache.element, present.element));
    }
    let shape = present.shape.as_ref()?;
    let differ = |(past, present): (&Dimension<'_>, &Dimension<'_>)| matches!((past, present), (Dimension::Known(past), Dimension::Known(present)) if past != present);
    let is_unlike = shape.len() != cache.past_shape.len() || cache.past_shape.iter().zip(shape).any(differ);
    is_unlike.then(|| format!("past is {:?}, present is {shape:?}", cache.past_shape))
}

/// Checks that the write indices that a caller feeds reach the write unchanged.
fn positions(graph: &Graph<'_>, decoder: &Decoder<'_>) -> Check {
    const ID: &str = "write-indices-unchanged";
    const CLAIM: &str = "The write indices that a caller feeds reach every TensorScatter unchanged.";
    let inputs: BTreeSet<_> = graph.input_names().collect();
    let mut computed = None;
    for cache in &decoder.caches {
        if cache.style == WriterStyle::GroupQueryAttention {
            return Check::not_applicable(
                ID,
                CLAIM,
                "GroupQueryAttention takes the length after the step instead",
            );
        }
        let Some(writer) = cache.writer.filter(|_| cache.is_static()) else { continue };
        match writer.input(2) {
            Some(name) if inputs.contains(name) => {}
            Some(name) => {
                computed.get_or_insert_with(|| {
                    format!("{} gets {name:?}, which the graph computes", writer.label())
                });
            }
            None => {
                computed.get_or_insert_with(|| format!("{} always writes from slot 0", writer.label()));
            }
        }
    }
    match computed {
        // This is not a fault by itself. The runs show whether the positions are right.
        Some(why) => Check::not_applicable(ID, CLAIM, why),
        None => Check::passed(ID, CLAIM, format!("{} caches", decoder.caches.len())),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kvscatter_onnx::Model;
    use kvscatter_onnx::decoder::Decoder;
    use kvscatter_onnx::internal::proto::{GraphProto, NodeProto};

    use super::examine;
    use crate::certificate::Verdict;

    /// Returns the claims that fail for a static export whose graph was changed.
    fn failed(change: impl FnOnce(&mut GraphProto)) -> Vec<String> {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/mobius-llama-static/model.onnx");
        let mut model = Model::load(&path).unwrap();
        change(model.proto_mut().graph.get_or_insert_default());
        let graph = model.graph().unwrap();
        let checks = examine(&graph, &Decoder::from_graph(&graph).unwrap());
        checks.into_iter().filter(|check| check.verdict == Verdict::Failed).map(|check| check.id).collect()
    }

    fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
        NodeProto::new(op_type, inputs, &[output])
    }

    /// Returns the index of the first write.
    fn writer(graph: &GraphProto) -> usize {
        graph.node.iter().position(|node| node.op_type.as_deref() == Some("TensorScatter")).unwrap()
    }

    /// Puts nodes between past and the write. The last node's output is `changed`.
    fn before(graph: &mut GraphProto, nodes: Vec<NodeProto>) {
        let at = writer(graph);
        graph.node[at].input[0] = "changed".to_owned();
        graph.node.splice(at..at, nodes);
    }

    /// Puts a node that reads `written` between the write and present.
    fn after(graph: &mut GraphProto, op_type: &str) {
        let at = writer(graph);
        let present = std::mem::replace(&mut graph.node[at].output[0], "written".to_owned());
        graph.node.insert(at + 1, node(op_type, &["written"], &present));
    }

    #[test]
    fn an_export_passes() {
        assert!(failed(|_| {}).is_empty());
    }

    #[test]
    fn a_node_between_past_and_present_fails() {
        let twice = || vec![node("Neg", &["key_cache.0"], "negative"), node("Neg", &["negative"], "changed")];
        assert_eq!(failed(|graph| before(graph, twice())), ["nothing-in-between"]);
        for op_type in ["Identity", "Neg"] {
            let one = || vec![node(op_type, &["key_cache.0"], "changed")];
            assert_eq!(failed(|graph| before(graph, one())), ["nothing-in-between"], "{op_type}");
            assert_eq!(failed(|graph| after(graph, op_type)), ["nothing-in-between"], "{op_type}");
        }
    }

    #[test]
    fn a_second_reader_of_past_fails_unless_it_asks_for_the_shape_only() {
        let read_by = |op_type| failed(|graph| graph.node.insert(0, node(op_type, &["key_cache.0"], "read")));
        assert_eq!(read_by("Abs"), ["past-read-once"]);
        assert!(read_by("Shape").is_empty());
    }
}
