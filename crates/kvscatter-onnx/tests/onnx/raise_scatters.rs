//! Tests the conversion of decoders whose caches have a fixed size and are written by scatters.

use kvscatter_onnx::convert::{Claim, ConvertOptions, ConvertRefusal, convert};
use kvscatter_onnx::decoder::{Decoder, InputRole};
use kvscatter_onnx::{DecoderError, LowerTarget, Model, lower};

use crate::support::{
    Nodes, assert_refused, count, declare, extend, fix_dim, graph_mut, insert, load, parsed, refusal, values,
};

const CAPACITY: usize = 8;

/// The indices of elements, for positions of all samples.
const INDICES: &str = "index = Expand(Unsqueeze(positions, [0, 1, 3]), Shape(rows))";

/// The scatter that reads them.
const SCATTER: &str = "present = ScatterElements(past, index, rows) {axis=2}";

/// The scatter of rows between two transpositions, as PyTorch's exporter writes `index_copy_`.
const ROWS: &str = "index = Unsqueeze(positions, [-1])
    before = Transpose(past) {perm=[2, 0, 1, 3]}
    moved = Transpose(rows) {perm=[2, 0, 1, 3]}
    after = ScatterND(before, index, moved)
    present = Transpose(after) {perm=[1, 2, 0, 3]}";

/// Creates a decoder of one cache, which is read as keys and as values. `at` has the positions of all samples.
fn decoder(index: &str, write: &str) -> Model {
    fed("int64[new]", "positions = Identity(at)", index, write)
}

/// Creates a decoder whose positions are computed from an input of another type.
fn fed(at: &str, positions: &str, index: &str, write: &str) -> Model {
    let nodes = format!(
        "tokens = Gather(0.5[16, 4], ids)
        one = Unsqueeze(tokens, [1])
        rows = Concat(one, Neg(one)) {{axis=1}}
        {positions}
        {index}
        {write}
        visible = LessOrEqual(Range(0, 8, 1), Unsqueeze(positions, [1]))
        scores = MatMul(rows, Transpose(present) {{perm=[0, 1, 3, 2]}})
        weights = Softmax(Where(visible, scores, -10000.0)) {{axis=-1}}
        logits = Gather(MatMul(weights, present), 0) {{axis=1}}"
    );
    let inputs = format!("ids: int64[batch, new], at: {at}, past: float[batch, 2, 8, 4]");
    parsed(&inputs, &nodes, "logits: float[batch, new, 4], present: float[batch, 2, 8, 4]")
}

fn exports() -> [Model; 2] {
    ["torch-2.15-llama-static", "torchscript-2.15-llama-static"].map(|name| load(&format!("decoders/{name}")))
}

#[test]
fn exports_of_static_caches_get_tensor_scatter() {
    for (model, layers) in exports().into_iter().zip([2, 1]) {
        let converted = convert(&model, 16).unwrap();
        let report = converted.report;
        let passes: Vec<_> = report.passes.iter().map(|pass| (pass.name, pass.claim)).collect();
        assert_eq!(passes.last(), Some(&("raise scatters", Claim::Consecutive)));
        assert_eq!((report.caches.count, report.attention.count), (2 * layers, layers));
        assert_eq!(report.inputs.write_indices, "write_indices");
        assert_eq!(report.inputs.attention_mask.as_deref(), Some("attention_mask"));
        assert!(report.inputs.unknown.is_empty(), "{:?}", report.inputs.unknown);
        // Two heads of 4 floats, for keys and for values.
        assert_eq!(report.caches.bytes_per_sample, Some(16 * 2 * 2 * 4 * 4 * layers as u64));
        let graph = converted.model.graph().unwrap();
        let decoder = Decoder::from_graph(&graph).unwrap();
        assert!(decoder.caches.iter().all(|cache| cache.is_static() && cache.between.is_empty()));
        assert!(decoder.caches.iter().all(|cache| cache.fixed_capacity() == Some(16)));
        assert!(graph.input_names().all(|name| name != "cached"));
        assert_eq!(decoder.input(InputRole::WriteIndices).unwrap().name, "write_indices");
        assert_eq!(converted.model.metadata("kvscatter.max_seq"), Some("16"));
        assert!(converted.model.metadata("kvscatter.write_indices").unwrap().contains("consecutive"));
        assert_eq!(count(&converted.model, "ScatterND"), 0);
        assert_refused!(convert(&converted.model, 16), ConvertRefusal::AlreadyStatic { .. });
    }
}

#[test]
fn other_capacities_than_that_of_the_model_are_refused() {
    for model in exports() {
        for max_seq in [15, 17] {
            let past = "past_key_values.0.key".to_owned();
            assert_eq!(refusal(&model, max_seq), ConvertRefusal::PastFixed { past, length: 16, max_seq });
        }
    }
}

/// transformers' `StaticCache` has smaller caches in layers with windows.
#[test]
fn caches_of_several_capacities_are_refused_for_any_slots() {
    let mut model = decoder(INDICES, SCATTER);
    let short = "narrow = ScatterElements(window, index, rows) {axis=2}";
    let [past, present] = ["window", "narrow"].map(|name| format!("{name}: float[batch, 2, 4, 4]"));
    extend(&mut model, &past, short, &present);
    for max_seq in [4, CAPACITY] {
        let (past, other) = ("window".to_owned(), "past".to_owned());
        let expected = ConvertRefusal::PastsDiffer { past, length: 4, other, expected: CAPACITY };
        assert_eq!(refusal(&model, max_seq), expected);
    }
}

#[test]
fn positions_of_all_samples_have_their_role() {
    for (at, role) in [
        ("int64[]", InputRole::SharedPositions),
        ("int64[new]", InputRole::SharedPositions),
        ("int64[batch]", InputRole::Other),
        ("float[]", InputRole::Other),
    ] {
        let model = fed(at, "positions = Cast(at) {to=int64}", INDICES, SCATTER);
        let graph = model.graph().unwrap();
        let decoder = Decoder::from_graph(&graph).unwrap();
        let found = decoder.inputs.iter().find(|input| input.value.name == "at").unwrap();
        assert_eq!(found.role, role, "{at}");
    }
}

#[test]
fn every_form_of_a_scatter_is_converted() {
    let negative = "present = ScatterElements(past, index, rows) {axis=-2, reduction=\"none\"}";
    for (index, write) in [(INDICES, SCATTER), (INDICES, negative), ("", ROWS)] {
        let model = decoder(index, write);
        let converted = convert(&model, CAPACITY).unwrap_or_else(|error| panic!("{write}: {error}")).model;
        assert_eq!(count(&converted, "TensorScatter"), 1);
        assert_eq!(count(&converted, "Transpose"), 1, "that of the keys");
    }
    let mut fixed = decoder("", ROWS);
    fix_dim(&mut fixed, "batch", 1);
    fix_dim(&mut fixed, "new", 1);
    assert_eq!(convert(&fixed, CAPACITY).unwrap().report.caches.count, 1);
}

#[test]
fn positions_of_every_form_become_those_of_each_sample() {
    let steps = "Range(0, Squeeze(Shape(ids) {start=1}), 1)";
    let from_first = format!("positions = Add(at, {steps})");
    for (at, positions) in [
        ("int32[new]", "positions = Cast(at) {to=int64}"),
        ("int64[]", &*from_first),
        ("int64[1]", &*from_first),
        // `TorchExportableModuleWithStaticCache` takes the first one.
        ("int64[new]", &*format!("positions = Add(Gather(at, 0), {steps})")),
        ("int64[new]", &*format!("positions = Add(Slice(at, [0], [1]), {steps})")),
        ("int64[new]", &*format!("positions = Sub(Add(at, {steps}), Range(0, Squeeze(Shape(at)), 1))")),
    ] {
        let converted = convert(&fed(at, positions, "", ROWS), CAPACITY);
        let inputs = converted.unwrap_or_else(|error| panic!("{positions}: {error}")).report.inputs;
        assert_eq!((&*inputs.write_indices, inputs.unknown), ("write_indices", Vec::new()));
    }
    // The axis of the samples cannot be followed through these nodes.
    let flat = fed("int64[new]", "positions = Reshape(Unsqueeze(at, [0, 1]), [-1])", "", ROWS);
    assert!(convert(&flat, CAPACITY).is_err());
    let largest = "Transpose(Add(rows, Cast(ReduceMax(positions)) {to=float}))";
    let summed = decoder("", &ROWS.replace("Transpose(rows)", largest));
    assert_refused!(convert(&summed, CAPACITY), ConvertRefusal::LengthDependence { .. });
}

#[test]
fn an_output_with_one_row_for_all_samples_is_refused() {
    let mut model = decoder(INDICES, SCATTER);
    extend(&mut model, "", "places = Unsqueeze(positions, [0])", "places: int64[1, new]");
    assert_eq!(refusal(&model, CAPACITY), ConvertRefusal::LengthDependence { value: "places".to_owned() });
}

/// They get another order of axes, in which they are not compared with the exported rows.
#[test]
fn known_new_rows_are_refused() {
    let known = "Expand(0.5, Shape(Transpose(rows) {perm=[2, 0, 1, 3]}))";
    let model = decoder("", &ROWS.replace("Transpose(rows) {perm=[2, 0, 1, 3]}", known));
    assert!(matches!(refusal(&model, CAPACITY), ConvertRefusal::LengthDependence { .. }));
}

#[test]
fn other_decoders_are_refused() {
    // The indices depend on two inputs.
    let mut two = decoder("", &ROWS.replace("positions", "Add(at, other)"));
    graph_mut(&mut two).input.extend(values("other: int64[new]"));
    let mut open = decoder(INDICES, SCATTER);
    declare(&mut open, "past, present: float[batch, 2, slots, 4]");
    let mut mixed = decoder(INDICES, SCATTER);
    let (other, grown) = ("other: float[batch, 2, cached, 4]", "grown: float[batch, 2, all, 4]");
    extend(&mut mixed, other, "grown = Concat(other, rows) {axis=2}", grown);
    for model in [two, open, mixed] {
        assert_refused!(convert(&model, CAPACITY), ConvertRefusal::Writer { past, .. } if past == "past");
    }
    let mut read = decoder(INDICES, SCATTER);
    extend(&mut read, "", "extra = Neg(past)", "extra: float[batch, 2, 8, 4]");
    assert_eq!(refusal(&read, CAPACITY), ConvertRefusal::PastRead { past: "past".into() });
    let mut constant = decoder(INDICES, SCATTER);
    graph_mut(&mut constant).input.retain(|input| input.name.as_deref() != Some("past"));
    graph_mut(&mut constant).output.truncate(1);
    insert(&mut constant, 0, Nodes::parse("past = 0.5[1, 2, 8, 4]"));
    assert_refused!(convert(&constant, CAPACITY), DecoderError::CacheNone);
    let options = ConvertOptions::new(16).onnxruntime("1.20".parse().unwrap());
    assert_refused!(convert(&exports()[0], options), ConvertRefusal::OnnxRuntime { .. });
}

#[test]
fn huge_and_empty_sizes_are_refused_before_they_are_allocated() {
    for (symbol, size) in
        [("batch", 1 << 40), ("batch", i64::MAX), ("batch", 0), ("new", 1 << 40), ("new", 9), ("new", 0)]
    {
        let mut model = decoder(INDICES, SCATTER);
        fix_dim(&mut model, symbol, size);
        assert!(convert(&model, CAPACITY).is_err(), "{symbol}");
    }
    let positions = fed("int64[1099511627776]", "positions = Identity(at)", INDICES, SCATTER);
    assert!(convert(&positions, CAPACITY).is_err());
    for slots in ["1099511627776", "2147483647", "0"] {
        let mut model = decoder(INDICES, SCATTER);
        declare(&mut model, &format!("past, present: float[batch, 2, {slots}, 4]"));
        assert!(convert(&model, slots.parse::<usize>().unwrap()).is_err(), "{slots}");
    }
}

#[test]
fn a_lowered_decoder_is_raised_again() {
    for target in [LowerTarget::ScatterElements, LowerTarget::ScatterNd] {
        for model in exports() {
            let converted = convert(&model, 16).unwrap();
            let lowered = lower(&converted.model, target).unwrap().model;
            assert_eq!(count(&lowered, "TensorScatter"), 0);
            let raised = convert(&lowered, 16).unwrap();
            assert_eq!(raised.report.caches, converted.report.caches);
            assert_eq!(raised.report.inputs, converted.report.inputs);
            assert_eq!(raised.model.proto().graph.node.len(), converted.model.proto().graph.node.len());
        }
    }
}

#[test]
fn writes_of_other_slots_are_refused() {
    let elements = |slots: &str| INDICES.replace("positions", slots);
    let of_samples = "Unsqueeze(Range(0, Squeeze(Shape(ids) {end=1}), 1), [1, 2, 3])";
    for (index, write) in [
        // The positions are not consecutive, not from the first one on, or those of other samples.
        (&*elements("Mul(positions, 2)"), SCATTER),
        (&*elements("Sub(7, positions)"), SCATTER),
        (&*elements("Add(positions, 1)"), SCATTER),
        (&*elements("Min(positions, 6)"), SCATTER),
        (&*elements("[0, 1]"), SCATTER),
        (
            &*format!("index = Add(Expand(Unsqueeze(positions, [0, 1, 3]), Shape(rows)), {of_samples})"),
            SCATTER,
        ),
        // The operator does something else.
        (INDICES, "present = ScatterElements(past, index, rows) {axis=2, reduction=\"add\"}"),
        (INDICES, "present = ScatterElements(past, index, rows) {axis=1}"),
        (INDICES, "present = ScatterElements(past, index, rows) {axis=9}"),
        (INDICES, "present = ScatterElements(past, index, rows)"),
        ("", &*ROWS.replace("index, moved)", "index, moved) {reduction=\"max\"}")),
        // The cache returns with other axes, or only a part of its rows is written.
        ("", &*ROWS.replace("[1, 2, 0, 3]", "[2, 1, 0, 3]")),
        (
            "part = Slice(rows, [0], [1], [1]); index = Expand(Unsqueeze(positions, [0, 1, 3]), Shape(part))",
            "present = ScatterElements(past, index, part) {axis=2}",
        ),
    ] {
        let refused = refusal(&decoder(index, write), CAPACITY);
        assert!(matches!(refused, ConvertRefusal::Writer { .. }), "{index}; {write}: {refused}");
    }
}
