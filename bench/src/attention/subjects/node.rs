//! Models of one node in ONNX Runtime, with the scene's memory bound to inputs and outputs.

use std::time::Duration;

use kvscatter::ElementType;
use kvscatter_attention::Float;
use kvscatter_onnx::{Dimension, Model};
use kvscatter_session::{InPlaceCache, Session, Step, Tensor};

use super::run::settle;
use crate::attention::case::Attention;
use crate::attention::scene::{Layout, Scene, elements};
use crate::graph::{Builder, INT32, INT64, MICROSOFT, Versions, int, value};
use crate::measure::{Failed, Prepared, Subject};
use crate::runtimes::{Runtime, Runtimes};

/// Prepares ONNX's `Attention`, which reads the caches as its keys and values.
pub(super) fn attention<T: Float>(scene: &Scene, runtime: Runtime<'_>) -> Prepared<Scene> {
    let case = &scene.case;
    let element = case.element.onnx().onnx_code();
    let mut builder = Builder::default();
    let query = dims(&[case.batch(), case.query_heads, case.queries, case.head_size]);
    let cache = dims(&[case.batch(), case.heads, case.capacity, case.head_size]);
    builder.graph.input = vec![
        value("query", element, &query),
        value("key", element, &cache),
        value("value", element, &cache),
        value("lengths", INT64, &dims(&[case.batch()])),
    ];
    builder.graph.output = vec![value("output", element, &query)];
    let inputs = ["query", "key", "value", "", "", "", "lengths"];
    builder.node("Attention", &inputs, "output", vec![int("is_causal", 1)]);
    let lengths = Tensor::int64s(&[case.batch()], &scene.lengths).map_err(|error| error.to_string())?;
    Ok(Box::new(Node {
        session: load(builder, runtime, case)?,
        output: output(case, &[case.batch(), case.query_heads, case.queries, case.head_size])?,
        kind: Kind::Attention { lengths },
        element: std::marker::PhantomData::<T>,
    }))
}

/// Prepares ONNX Runtime's `GroupQueryAttention` with past and present in one buffer. It also writes the rows of
/// the new tokens.
pub(super) fn group_query<T: Float>(scene: &Scene, runtimes: &Runtimes) -> Prepared<Scene> {
    let case = &scene.case;
    let element = case.element.onnx().onnx_code();
    let mut builder = Builder::default();
    let query = dims(&[case.batch(), case.queries, case.query_heads * case.head_size]);
    let update = dims(&[case.batch(), case.queries, case.heads * case.head_size]);
    let cache = dims(&[case.batch(), case.heads, case.capacity, case.head_size]);
    builder.graph.input = vec![
        value("query", element, &query),
        value("key", element, &update),
        value("value", element, &update),
        value("past_key", element, &cache),
        value("past_value", element, &cache),
        value("last", INT32, &dims(&[case.batch()])),
        value("total", INT32, &dims(&[1])),
    ];
    builder.graph.output = vec![
        value("output", element, &query),
        value("present_key", element, &cache),
        value("present_value", element, &cache),
    ];
    builder.node_of(
        MICROSOFT,
        "GroupQueryAttention",
        &["query", "key", "value", "past_key", "past_value", "last", "total"],
        &["output", "present_key", "present_value"],
        vec![int("num_heads", case.query_heads as i64), int("kv_num_heads", case.heads as i64)],
    );
    let ints = |values: &[i64]| {
        Tensor::integers(ElementType::Int32, &[values.len()], values).map_err(|error| error.to_string())
    };
    let last: Vec<_> = scene.lengths.iter().map(|length| length - 1).collect();
    let total = scene.lengths.iter().copied().max().unwrap_or_default();
    Ok(Box::new(Node {
        session: load(builder, runtimes.stock()?, case)?,
        output: output(case, &[case.batch(), case.queries, case.query_heads * case.head_size])?,
        kind: Kind::GroupQuery { last: ints(&last)?, total: ints(&[total])? },
        element: std::marker::PhantomData::<T>,
    }))
}

/// The versions that introduced `Attention` with `nonpad_kv_seqlen`.
const VERSIONS: Versions = Versions { ir: 12, opset: 24 };

fn load(builder: Builder, runtime: Runtime<'_>, case: &Attention) -> Result<Box<dyn Session>, String> {
    let model: Model = builder.finish("node", VERSIONS);
    runtime.load(&model, case.threads)
}

fn output(case: &Attention, shape: &[usize]) -> Result<Tensor, String> {
    Tensor::zeros(case.element.onnx(), shape).map_err(|error| error.to_string())
}

fn dims(sizes: &[usize]) -> Vec<Dimension<'static>> {
    sizes.iter().map(|&size| Dimension::Known(size)).collect()
}

struct Node<T> {
    session: Box<dyn Session>,
    output: Tensor,
    kind: Kind,
    element: std::marker::PhantomData<T>,
}

enum Kind {
    Attention { lengths: Tensor },
    GroupQuery { last: Tensor, total: Tensor },
}

impl<T: Float> Subject<Scene> for Node<T> {
    fn time(&mut self, scene: &mut Scene, calls: usize) -> Result<Duration, Failed> {
        settle(&scene.case);
        let mut elapsed = Duration::ZERO;
        for _ in 0..calls {
            let step = match &self.kind {
                Kind::Attention { lengths } => Step {
                    inputs: vec![
                        ("query", &scene.query),
                        ("key", &scene.key),
                        ("value", &scene.value),
                        ("lengths", lengths),
                    ],
                    outputs: vec![("output", &mut self.output)],
                    ..Step::default()
                },
                Kind::GroupQuery { last, total } => Step {
                    inputs: vec![
                        ("query", &scene.flat_query),
                        ("key", &scene.updates[0]),
                        ("value", &scene.updates[1]),
                        ("last", last),
                        ("total", total),
                    ],
                    shared: vec![
                        InPlaceCache { past: "past_key", present: "present_key", cache: &mut scene.key },
                        InPlaceCache {
                            past: "past_value",
                            present: "present_value",
                            cache: &mut scene.value,
                        },
                    ],
                    outputs: vec![("output", &mut self.output)],
                    ..Step::default()
                },
            };
            elapsed += self.session.run(step)?.elapsed;
        }
        Ok(elapsed)
    }

    fn check(&mut self, scene: &mut Scene) -> Result<(), String> {
        self.time(scene, 1).map_err(|error| error.to_string())?;
        let layout = match self.kind {
            Kind::Attention { .. } => Layout::Heads,
            Kind::GroupQuery { .. } => Layout::Flat,
        };
        scene.check(elements::<T>(self.output.bytes()), layout)
    }
}
