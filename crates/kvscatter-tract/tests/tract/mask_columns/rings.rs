//! A circular write and attention over the ring, compared with a linear cache.

use kvscatter_onnx::internal::proto::{AttributeProto, ModelProto, NodeProto};
use kvscatter_oracle::cases::Random;
use kvscatter_tract::cache_copy_counts;
use tract_onnx::prelude::*;

use super::{BATCH, FLOAT, INT64, run};
use crate::replay::protos::int64s;
use crate::support::{model, node, plan, value};

const WINDOW: i64 = 20;
const MAX_WIDTH: usize = 3;

/// The number of slots of the ring, `WINDOW - 1 + MAX_WIDTH`. Its mask has fewer columns at first.
const RING: usize = 22;

/// The number of slots of the linear cache, which has room for three turns of the ring.
const LINEAR: usize = 80;

/// Returns the nodes of the mask `[batch, 1, width, slots]`: slot `s` is visible to the query at position `q` if
/// `(q - s) mod slots <= min(q, WINDOW - 1)`.
fn mask() -> Vec<NodeProto> {
    vec![
        node("Unsqueeze", "starts", &["write_indices", "one"], &["starts"]),
        node("Add", "positions", &["starts", "steps"], &["positions"]),
        node("Unsqueeze", "rows", &["positions", "one_three"], &["rows"]),
        node("Sub", "distances", &["rows", "slots"], &["distances"]),
        node("Mod", "ages", &["distances", "capacity"], &["ages"]),
        node("Min", "oldest", &["rows", "most"], &["oldest"]),
        node("LessOrEqual", "mask", &["ages", "oldest"], &["mask"]),
    ]
}

/// Returns a layer that writes caches of `slots` slots and reads them.
fn layer(slots: usize, mode: &str) -> ModelProto {
    let mut nodes = mask();
    for part in ["key", "value"] {
        let (past, new, present) = (format!("past_{part}"), format!("new_{part}"), format!("present_{part}"));
        let write = node("TensorScatter", &present, &[&past, &new, "write_indices"], &[&present]);
        let attribute = vec![AttributeProto::string("mode", mode), AttributeProto::int("axis", -2)];
        nodes.push(NodeProto { attribute, ..write });
    }
    nodes.push(node("Add", "ends", &["write_indices", "width"], &["ends"]));
    nodes.push(node("Min", "lengths", &["ends", "capacity"], &["lengths"]));
    let inputs = ["query", "present_key", "present_value", "mask", "", "", "lengths"];
    nodes.push(node("Attention", "attend", &inputs, &["y"]));
    let cache = |name: &str| value(name, FLOAT, &["batch", "2", &slots.to_string(), "8"]);
    let new = |name: &str| value(name, FLOAT, &["batch", "2", "tokens", "8"]);
    let inputs = vec![
        value("query", FLOAT, &["batch", "4", "tokens", "8"]),
        cache("past_key"),
        cache("past_value"),
        new("new_key"),
        new("new_value"),
        value("write_indices", INT64, &["batch"]),
        value("steps", INT64, &["tokens"]),
        value("width", INT64, &["1"]),
    ];
    let outputs = vec![value("y", FLOAT, &[]), cache("present_key"), cache("present_value")];
    let mut made = model(nodes, inputs, outputs);
    made.graph.get_or_insert_default().initializer = vec![
        int64s("slots", &[slots], 0..slots as i64),
        int64s("capacity", &[1], [slots as i64]),
        int64s("most", &[1], [WINDOW - 1]),
        int64s("one", &[1], [1]),
        int64s("one_three", &[2], [1, 3]),
    ];
    made
}

/// A layer with its caches, which contain NaN where nothing was written.
struct Layer {
    state: TypedSimpleState,
    slots: usize,
    caches: Vec<Tensor>,
}

impl Layer {
    fn new(slots: usize, mode: &str) -> Self {
        let state = plan(layer(slots, mode)).unwrap().spawn().unwrap();
        let count = BATCH * 2 * slots * 8;
        let cache = || Tensor::from_shape(&[BATCH, 2, slots, 8], &vec![f32::NAN; count]).unwrap();
        Self { state, slots, caches: vec![cache(), cache()] }
    }

    /// Runs a step, checks that the caches stay at their addresses, and returns `y` and the columns of the mask.
    fn step(&mut self, [query, key, value]: &[Tensor; 3], starts: &[i64; BATCH]) -> (TValue, Vec<usize>) {
        let width = query.shape()[2] as i64;
        let addresses: Vec<_> = self.caches.iter().map(|cache| cache.as_bytes().as_ptr()).collect();
        let mut caches = std::mem::take(&mut self.caches).into_iter().map(TValue::from);
        let (past_key, past_value) = (caches.next().unwrap(), caches.next().unwrap());
        let steps: Vec<i64> = (0..width).collect();
        let ran = run(
            &mut self.state,
            self.slots,
            tvec![
                query.clone().into(),
                past_key,
                past_value,
                key.clone().into(),
                value.clone().into(),
                tensor1(starts).into(),
                tensor1(&steps).into(),
                tensor1(&[width]).into(),
            ],
        );
        let mut outputs = ran.outputs.into_iter();
        let y = outputs.next().unwrap();
        self.caches = outputs.map(TValue::into_tensor).collect();
        let after: Vec<_> = self.caches.iter().map(|cache| cache.as_bytes().as_ptr()).collect();
        assert_eq!(after, addresses, "a cache was copied");
        (y, ran.columns)
    }
}

#[test]
fn a_ring_gives_the_bits_of_a_linear_cache() {
    let random = &mut Random::new(9, 0);
    let (mut ring, mut linear) = (Layer::new(RING, "circular"), Layer::new(LINEAR, "linear"));
    let (mut starts, mut widths) = ([0_i64; BATCH], Vec::new());
    while starts[0] < 3 * RING as i64 {
        // The first sample starts over, so the samples have different lengths.
        if starts == [9, 9] {
            starts[0] = 0;
        }
        let width = if starts[1] < 9 { MAX_WIDTH } else { random.between(1, MAX_WIDTH) };
        let mut tensor = |heads: usize| {
            let shape = [BATCH, heads, width, 8];
            let values = random.many(shape.iter().product(), |random| random.below(99) as f32 / 33.0 - 1.0);
            Tensor::from_shape(&shape, &values).unwrap()
        };
        let given = [tensor(4), tensor(2), tensor(2)];
        let ((of_ring, columns), (of_linear, _)) = (ring.step(&given, &starts), linear.step(&given, &starts));
        assert_eq!(of_ring.as_bytes(), of_linear.as_bytes(), "{starts:?} {width}");
        let numbers = of_ring.try_as_plain_ram().unwrap();
        assert!(
            numbers.as_slice::<f32>().unwrap().iter().all(|number| number.is_finite()),
            "{starts:?} {width}"
        );
        let longest = starts[1] as usize + width;
        assert_eq!(columns, [if longest <= 16 { 16 } else { RING }], "{starts:?} {width}");
        starts.iter_mut().for_each(|start| *start += width as i64);
        widths.push(width);
    }
    assert!((1..=MAX_WIDTH).all(|width| widths.contains(&width)));
    assert_eq!([cache_copy_counts(&ring.state), cache_copy_counts(&linear.state)], [[], []]);
}
