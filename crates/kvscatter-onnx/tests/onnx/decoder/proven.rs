//! Tests that an input has a role only if the graph proves it, or if it has the name that exporters use.

use kvscatter::ElementType::{self, Bool, Float32, Int64};
use kvscatter_onnx::Model;
use kvscatter_onnx::convert::convert;
use kvscatter_onnx::decoder::{Decoder, InputRole};
use kvscatter_onnx::proto::{FunctionProto, NodeProto, ValueInfoProto};

use super::made::Made;
use crate::fusion::Nodes;
use crate::support::{int, ints, model, node, opset, value};

/// A decoder of one layer with token ids and caches that grow, to which a test adds inputs.
struct Layer {
    inputs: Vec<ValueInfoProto>,
    nodes: Nodes,
    /// The hidden states, `[batch, tokens, 8]`.
    states: String,
    /// The mask of attention, or an empty string. Causality is an attribute without a mask.
    mask: String,
    /// The mask of a second attention over the same caches, or an empty string if there is none.
    second: String,
    /// The number of tokens in the vocabulary, or a symbol.
    vocabulary: &'static str,
}

impl Layer {
    fn new() -> Self {
        let mut nodes = Nodes { element: Float32, nodes: Vec::new(), initializers: Vec::new() };
        nodes.floats("embeddings", &[64, 8], 0.25);
        nodes.floats("head", &[8, 64], 0.25);
        for (name, numbers) in [("zero", &[0][..]), ("one", &[1]), ("last", &[-1]), ("two", &[2])] {
            nodes.ints(name, numbers);
        }
        nodes.called("embedded", "Gather", &["embeddings", "input_ids"]);
        let inputs = vec![value("input_ids", Int64, &["batch", "tokens"])];
        let (mask, second) = (String::new(), String::new());
        Self { inputs, nodes, states: "embedded".to_owned(), mask, second, vocabulary: "64" }
    }

    fn input(&mut self, name: &str, element: ElementType, dims: &[&str]) {
        self.inputs.push(value(name, element, dims));
    }

    /// Adds an input of one number for each token, and one row of a table for each number to the hidden states.
    fn picks(&mut self, name: &str) {
        self.input(name, Int64, &["batch", "tokens"]);
        self.adds_rows(name);
    }

    fn adds_rows(&mut self, index: &str) {
        let table = format!("table.{index}");
        self.nodes.floats(&table, &[64, 8], 0.5);
        let rows = self.nodes.add("Gather", &[&table, index]);
        self.states = self.nodes.add("Add", &[&self.states, &rows]);
    }

    /// Adds `slots`, `[total]`, and `places`, the slots of the new tokens, `[tokens, 1]`.
    fn counts_slots(&mut self) {
        for (of, axis, output) in [("past_k", 2, "past_size"), ("input_ids", 1, "new_size")] {
            self.nodes.called(output, "Shape", &[of]);
            self.nodes.attribute(int("start", axis));
            self.nodes.attribute(int("end", axis + 1));
        }
        self.nodes.called("total_size", "Add", &["past_size", "new_size"]);
        for (size, number) in
            [("past_size", "past"), ("total_size", "total"), ("zero", "from"), ("one", "by")]
        {
            self.nodes.called(number, "Squeeze", &[size]);
        }
        self.nodes.called("slots", "Range", &["from", "total", "by"]);
        self.nodes.called("new_slots", "Range", &["past", "total", "by"]);
        self.nodes.called("places", "Unsqueeze", &["new_slots", "last"]);
    }

    /// Adds `causal`, `[tokens, total]`.
    fn is_causal(&mut self) {
        self.counts_slots();
        self.nodes.called("causal", "LessOrEqual", &["slots", "places"]);
    }

    /// Adds an input of one number for each slot, as flags of `[batch, 1, total]`.
    fn flags(&mut self, name: &str) -> String {
        self.input(name, Int64, &["batch", "total"]);
        let flags = self.nodes.cast(name, Bool);
        self.nodes.add("Unsqueeze", &[&flags, "one"])
    }

    /// Gives attention a mask of `[batch, tokens, total]`, or of fewer dimensions.
    fn masks(&mut self, op_type: &str, inputs: &[&str]) {
        let mask = self.nodes.add(op_type, inputs);
        self.mask = self.nodes.add("Unsqueeze", &[&mask, "one"]);
    }

    /// Renames the input of token ids.
    fn rename_tokens(&mut self, name: &str) {
        self.inputs[0] = value(name, Int64, &["batch", "tokens"]);
        let reads = self.nodes.nodes.iter_mut().flat_map(|node| &mut node.input);
        reads.filter(|read| *read == "input_ids").for_each(|read| name.clone_into(read));
    }

    /// Adds keys that are rotated by the angles of a value, `[batch, tokens]`.
    fn is_rotated_by(&mut self, place: &str) {
        let place = self.nodes.cast(place, Float32);
        let column = self.nodes.add("Unsqueeze", &[&place, "last"]);
        let angles = self.nodes.number("Mul", &column, 0.1);
        // Some exporters scale the cosines and sines.
        self.nodes.floats("scale", &[], 1.5);
        for (op_type, name) in [("Cos", "cosines"), ("Sin", "sines")] {
            let pure = self.nodes.add(op_type, &[&angles]);
            self.nodes.called(name, "Mul", &["scale", &pure]);
        }
        self.projects_keys();
        self.nodes.called("scaled", "Mul", &["keys", "cosines"]);
        self.rotates();
    }

    fn projects_keys(&mut self) {
        self.nodes.floats("weights", &[8, 8], 0.5);
        self.nodes.called("keys", "MatMul", &["embedded", "weights"]);
    }

    /// Adds the second product of a rotation of `keys` to `scaled`.
    fn rotates(&mut self) {
        self.nodes.called("half", "Slice", &["keys", "zero", "two", "two"]);
        self.nodes.called("negative", "Neg", &["half"]);
        self.nodes.called("turned", "Concat", &["negative", "half"]);
        self.nodes.attribute(int("axis", -1));
        let other = self.nodes.add("Mul", &["turned", "sines"]);
        self.states = self.nodes.add("Add", &["scaled", &other]);
    }

    /// Adds `own`, `[batch, tokens, 1]`, and `all`, `[batch, 1, total]`, the numbers of an input of one number for each
    /// slot.
    fn compares_numbers(&mut self, name: &str) {
        self.nodes.called("of_new", "Gather", &[name, "new_slots"]);
        self.nodes.attribute(int("axis", 1));
        self.nodes.called("own", "Unsqueeze", &["of_new", "two"]);
        self.nodes.called("all", "Unsqueeze", &[name, "one"]);
    }

    /// Returns the role of each input except the caches.
    fn roles(self) -> Vec<(String, InputRole)> {
        super::roles(&Decoder::of(&self.model().graph().unwrap()).unwrap())
    }

    fn model(mut self) -> Model {
        let states = self.states.as_str();
        let mut attention = node("Attention", &[states, states, states, &self.mask, "past_k", "past_v"], "y");
        attention.output.extend(["present_k".to_owned(), "present_v".to_owned()]);
        attention.attribute = vec![int("q_num_heads", 2), int("kv_num_heads", 2)];
        attention.attribute.extend(self.mask.is_empty().then(|| int("is_causal", 1)));
        self.nodes.nodes.extend([attention, node("MatMul", &["y", "head"], "logits")]);
        if !self.second.is_empty() {
            let inputs = [&self.states, "present_k", "present_v", &self.second];
            self.nodes.nodes.push(node("Attention", &inputs, "z"));
        }
        let cache = |name, length| value(name, Float32, &["batch", "2", length, "4"]);
        self.inputs.extend(["past_k", "past_v"].map(|name| cache(name, "past")));
        let logits = value("logits", Float32, &["batch", "tokens", self.vocabulary]);
        let outputs = vec![logits, cache("present_k", "total"), cache("present_v", "total")];
        let mut model = model(self.inputs, self.nodes.nodes, outputs);
        model.proto_mut().graph.get_or_insert_default().initializer = self.nodes.initializers;
        model
    }
}

/// Checks the roles of the inputs that a test adds to a layer.
#[track_caller]
fn check(what: &str, add: impl FnOnce(&mut Layer), expected: &[(&str, InputRole)]) {
    let mut layer = Layer::new();
    add(&mut layer);
    let mut found = layer.roles();
    found.retain(|(name, role)| (name.as_str(), *role) != ("input_ids", InputRole::TokenIds));
    let expected: Vec<_> = expected.iter().map(|&(name, role)| (name.to_owned(), role)).collect();
    assert_eq!(found, expected, "{what}");
}

#[test]
fn an_input_that_only_picks_rows_is_positions_by_its_name_alone() {
    use InputRole::{Other, PositionIds};
    for name in ["token_type_ids", "places", "cache_position"] {
        check(name, |layer| layer.picks(name), &[(name, Other)]);
    }
    check("positions", |layer| layer.picks("position_ids"), &[("position_ids", PositionIds)]);
    for names in [["token_type_ids", "position_ids"], ["position_ids", "token_type_ids"]] {
        let role = |name| if name == "position_ids" { PositionIds } else { Other };
        check(
            "both",
            |layer| names.iter().for_each(|name| layer.picks(name)),
            &names.map(|name| (name, role(name))),
        );
    }
    let language = |layer: &mut Layer| {
        layer.input("language_id", Int64, &["batch", "1"]);
        layer.adds_rows("language_id");
    };
    check("language", language, &[("language_id", Other)]);
}

#[test]
fn positions_are_proven_by_a_comparison_with_slots() {
    let compared = |op_type: &'static str| {
        move |layer: &mut Layer| {
            layer.counts_slots();
            layer.picks("at");
            let column = layer.nodes.add("Unsqueeze", &["at", "last"]);
            layer.masks(op_type, &["slots", &column]);
        }
    };
    check("last", compared("LessOrEqual"), &[("at", InputRole::PositionIds)]);
    // A token does not see its own slot, or only slots from its own on.
    check("before", compared("Less"), &[("at", InputRole::Other)]);
    check("after", compared("GreaterOrEqual"), &[("at", InputRole::Other)]);
    // The slots up to the number are visible in addition to those before the token.
    let prefix = |layer: &mut Layer| {
        layer.is_causal();
        layer.input("prefix", Int64, &["batch", "1"]);
        let column = layer.nodes.add("Unsqueeze", &["prefix", "last"]);
        let inside = layer.nodes.add("LessOrEqual", &["slots", &column]);
        layer.masks("Or", &["causal", &inside]);
    };
    check("prefix", prefix, &[("prefix", InputRole::Other)]);
}

#[test]
fn positions_are_proven_by_a_rotation_with_rows_of_tables() {
    let picked = |layer: &mut Layer| {
        layer.input("at", Int64, &["batch", "tokens"]);
        for table in ["cosines", "sines"] {
            layer.nodes.floats(&format!("table.{table}"), &[64, 8], 0.5);
            layer.nodes.called(table, "Gather", &[&format!("table.{table}"), "at"]);
        }
        layer.projects_keys();
        layer.nodes.called("scaled", "Mul", &["keys", "cosines"]);
    };
    let rotated = |layer: &mut Layer| {
        picked(layer);
        layer.rotates();
    };
    check("rotated", rotated, &[("at", InputRole::PositionIds)]);
    // The rows of an adapter may scale and shift the states.
    let adapted = |layer: &mut Layer| {
        picked(layer);
        layer.states = layer.nodes.add("Add", &["scaled", "sines"]);
    };
    check("adapted", adapted, &[("at", InputRole::Other)]);
}

#[test]
fn positions_are_proven_by_a_rotation_with_computed_angles() {
    use InputRole::{Other, PositionIds};
    let rotated = |layer: &mut Layer| {
        layer.input("at", Int64, &["batch", "tokens"]);
        layer.is_rotated_by("at");
    };
    check("rotated", rotated, &[("at", PositionIds)]);
    // A diffusion model embeds its time step as sines and cosines, too.
    let embedded = |layer: &mut Layer| {
        layer.input("timestep", Int64, &["batch", "tokens"]);
        let step = layer.nodes.cast("timestep", Float32);
        let column = layer.nodes.add("Unsqueeze", &[&step, "last"]);
        let angles = layer.nodes.number("Mul", &column, 0.1);
        let waves = ["Cos", "Sin"].map(|op_type| layer.nodes.add(op_type, &[&angles]));
        layer.nodes.called("waves", "Concat", &[&waves[0], &waves[1]]);
        layer.nodes.attribute(int("axis", -1));
        layer.nodes.floats("spread", &[2, 8], 0.5);
        let added = layer.nodes.add("MatMul", &["waves", "spread"]);
        layer.states = layer.nodes.add("Add", &["embedded", &added]);
    };
    check("embedded", embedded, &[("timestep", Other)]);
}

#[test]
fn a_mask_that_chooses_positions_is_none_itself() {
    use InputRole::{AttentionMask, Other, PositionIds};
    for (name, mask, role) in [("position_ids", "attention_mask", AttentionMask), ("at", "marks", Other)] {
        let chosen = |layer: &mut Layer| {
            layer.input(name, Int64, &["batch", "tokens"]);
            layer.input(mask, Int64, &["batch", "tokens"]);
            let is_real = layer.nodes.cast(mask, Bool);
            let place = layer.nodes.add("Where", &[&is_real, name, "zero"]);
            layer.is_rotated_by(&place);
        };
        check("chosen", chosen, &[(name, PositionIds), (mask, role)]);
    }
}

/// What the flags of an input mean, how attention uses them, and the role of the input.
type Case = (&'static str, fn(&mut Layer, &str), InputRole);

#[test]
fn a_mask_is_proven_by_the_slots_that_it_hides() {
    use InputRole::{AttentionMask, Other};
    let of = |add: fn(&mut Layer, &str)| {
        move |layer: &mut Layer| {
            layer.is_causal();
            let flags = layer.flags("marks");
            add(layer, &flags);
        }
    };
    let cases: [Case; 9] = [
        ("real tokens", |layer, flags| layer.masks("And", &["causal", flags]), AttentionMask),
        (
            "padding",
            |layer, flags| {
                let real = layer.nodes.add("Not", &[flags]);
                layer.masks("And", &["causal", &real]);
            },
            Other,
        ),
        ("seen by all", |layer, flags| layer.masks("Or", &["causal", flags]), Other),
        (
            "blocks",
            |layer, _| {
                layer.compares_numbers("marks");
                let same = layer.nodes.add("Equal", &["own", "all"]);
                layer.masks("Or", &["causal", &same]);
            },
            Other,
        ),
        (
            "documents",
            |layer, _| {
                layer.compares_numbers("marks");
                let same = layer.nodes.add("Equal", &["own", "all"]);
                layer.masks("And", &["causal", &same]);
            },
            Other,
        ),
        (
            "pairs of flags",
            |layer, flags| {
                layer.compares_numbers("marks");
                let own = layer.nodes.cast("own", Bool);
                let both = layer.nodes.add("And", &[&own, flags]);
                layer.masks("And", &["causal", &both]);
            },
            Other,
        ),
        (
            "kinds of tokens",
            |layer, _| {
                layer.compares_numbers("marks");
                let of_text = layer.nodes.add("Equal", &["all", "one"]);
                layer.masks("And", &["causal", &of_text]);
            },
            Other,
        ),
        (
            "one head",
            |layer, flags| {
                let some = layer.nodes.add("And", &["causal", flags]);
                let all = layer.nodes.add("Or", &["causal", flags]);
                let heads = [some, all].map(|head| layer.nodes.add("Unsqueeze", &[&head, "one"]));
                layer.mask = layer.nodes.add("Concat", &[&heads[0], &heads[1]]);
                layer.nodes.attribute(int("axis", 1));
            },
            Other,
        ),
        ("nothing", |layer, _| layer.masks("Identity", &["causal"]), Other),
    ];
    for (what, add, role) in cases {
        check(what, of(add), &[("marks", role)]);
    }
    // Numbers that are added to scores are not flags.
    let added = |layer: &mut Layer| {
        layer.input("marks", Float32, &["batch", "total"]);
        layer.masks("Unsqueeze", &["marks", "one"]);
    };
    check("added", added, &[("marks", Other)]);
    check(
        "by name",
        |layer| layer.input("attention_mask", Int64, &["batch", "total"]),
        &[("attention_mask", AttentionMask)],
    );
}

#[test]
fn a_mask_is_proven_only_if_all_masks_that_read_it_are_known() {
    use InputRole::{AttentionMask, Other};
    // A table of biases that a caller computes is added to the mask of the second attention.
    let biased = |name: &'static str| {
        move |layer: &mut Layer| {
            layer.is_causal();
            let flags = layer.flags(name);
            layer.masks("And", &["causal", &flags]);
            layer.input("bias", Float32, &["batch", "2", "tokens", "total"]);
            layer.nodes.floats("none", &[], 0.0);
            layer.nodes.floats("low", &[], f32::MIN);
            let added = layer.nodes.add("Where", &[&layer.mask, "none", "low"]);
            layer.second = layer.nodes.add("Add", &[&added, "bias"]);
        }
    };
    let bias = ("bias", Other);
    check("another name", biased("marks"), &[("marks", Other), bias]);
    check("the name of exporters", biased("attention_mask"), &[("attention_mask", AttentionMask), bias]);
}

/// The evaluation of a hostile graph must not take gigabytes or minutes.
#[test]
fn proofs_have_bounds_on_memory_and_work() {
    let masked = |layer: &mut Layer| {
        layer.is_causal();
        let flags = layer.flags("marks");
        layer.masks("And", &["causal", &flags]);
    };
    // Each of the indices is small enough, but two of them are too large together.
    for (indices, role) in [(1, InputRole::AttentionMask), (2, InputRole::Other)] {
        let mut layer = Layer::new();
        masked(&mut layer);
        for at in 0..indices {
            let name = format!("indices{at}");
            layer.input(&name, Int64, &["3000000"]);
            layer.nodes.called(&format!("written{at}"), "TensorScatter", &["embedded", "embedded", &name]);
        }
        let roles = layer.roles();
        assert_eq!(roles.iter().find(|(name, _)| name == "marks").unwrap().1, role, "{indices}");
    }
    // Each trial calls a function. Each call takes less than the work of one trial, but all calls take too much.
    for (nodes, role) in [(10, InputRole::AttentionMask), (40_000, InputRole::Other)] {
        let mut layer = Layer::new();
        layer.is_causal();
        let flags = layer.flags("marks");
        let called = layer.nodes.add("Slow", &[&flags]);
        layer.nodes.nodes.last_mut().unwrap().domain = Some("local".to_owned());
        layer.masks("And", &["causal", &called]);
        let mut model = layer.model();
        let unused = (0..nodes).map(|at| node("Identity", &["x"], &format!("unused{at}")));
        model.proto_mut().functions.push(FunctionProto {
            name: Some("Slow".to_owned()),
            domain: Some("local".to_owned()),
            input: vec!["x".to_owned()],
            output: vec!["y".to_owned()],
            node: unused.chain([node("Identity", &["x"], "y")]).collect(),
            opset_import: vec![opset("", 24)],
            ..FunctionProto::default()
        });
        model.proto_mut().opset_import.push(opset("local", 1));
        let roles = super::roles(&Decoder::of(&model.graph().unwrap()).unwrap());
        assert_eq!(roles.iter().find(|(name, _)| name == "marks").unwrap().1, role, "{nodes}");
    }
}

/// The attention of a decoder to an encoder reads no cache.
#[test]
fn the_mask_of_an_encoder_is_no_attention_mask() {
    for length in ["encoder", "total"] {
        let cross = |layer: &mut Layer| {
            for name in ["encoder_k", "encoder_v"] {
                layer.input(name, Float32, &["batch", "2", length, "4"]);
            }
            layer.input("encoder_attention_mask", Int64, &["batch", length]);
            let flags = layer.nodes.cast("encoder_attention_mask", Bool);
            let mask = layer.nodes.add("Unsqueeze", &[&flags, "middle"]);
            layer.nodes.ints("middle", &[1, 2]);
            layer.nodes.ints("by_head", &[0, 0, 2, 4]);
            let queries = layer.nodes.add("Reshape", &["embedded", "by_head"]);
            let queries = layer.nodes.add("Transpose", &[&queries]);
            layer.nodes.attribute(ints("perm", &[0, 2, 1, 3]));
            let result = layer.nodes.add("Attention", &[&queries, "encoder_k", "encoder_v", &mask]);
            layer.nodes.ints("flat", &[0, -1, 8]);
            let result = layer.nodes.add("Reshape", &[&result, "flat"]);
            layer.states = layer.nodes.add("Add", &["embedded", &result]);
        };
        let expected =
            ["encoder_k", "encoder_v", "encoder_attention_mask"].map(|name| (name, InputRole::Other));
        check(length, cross, &expected);
    }
}

#[test]
fn proofs_find_the_roles_of_real_exports_under_other_names() {
    for name in [
        "optimum-llama",
        "mobius-llama-static",
        "genai-llama-gqa",
        "decoders/mobius-0.1-qwen3-float16",
        "decoders/optimum-0.1-mistral-window",
        "decoders/torch-2.15-llama",
        "decoders/torch-2.15-gemma3",
    ] {
        let mut model = super::load(name);
        let expected = super::roles_of(&Decoder::of(&model.graph().unwrap()).unwrap());
        rename_inputs(&mut model);
        assert_eq!(super::roles_of(&Decoder::of(&model.graph().unwrap()).unwrap()), expected, "{name}");
    }
}

/// The mask of a ring has other columns than that of a cache with all slots.
#[test]
fn a_mask_is_proven_beside_rings() {
    let mut model = super::load("decoders/torch-2.15-gemma3");
    rename_inputs(&mut model);
    let graph = convert(&model, 128).unwrap().model;
    let graph = graph.graph().unwrap();
    let decoder = Decoder::of(&graph).unwrap();
    assert!(
        decoder.caches.iter().any(|cache| cache.is_ring())
            && !decoder.caches.iter().all(|cache| cache.is_ring())
    );
    let mask = decoder.input(InputRole::AttentionMask).unwrap();
    assert_eq!(mask.name, "renamed.attention_mask");
}

/// Renames the inputs that are not caches.
fn rename_inputs(model: &mut Model) {
    let graph = model.proto_mut().graph.get_or_insert_default();
    let names = ["input_ids", "position_ids", "attention_mask", "write_indices", "nonpad_kv_seqlen"];
    let declared = graph.input.iter_mut().filter_map(|input| input.name.as_mut());
    let reads = graph.node.iter_mut().flat_map(|node| &mut node.input);
    for name in declared.chain(reads).filter(|name| names.contains(&name.as_str())) {
        *name = format!("renamed.{name}");
    }
}

#[test]
fn a_mask_is_proven_by_the_lengths_that_are_counted_in_it() {
    for (sum, role) in [("ReduceSum", InputRole::AttentionMask), ("ReduceMax", InputRole::Other)] {
        let mut axes = node("Constant", &[], "axes");
        axes.attribute = vec![ints("value_ints", &[1])];
        let mut count = node(sum, &["marks", "axes"], "count");
        count.attribute = vec![int("keepdims", 0)];
        let made = Made::fixed()
            .input(value("marks", Int64, &["batch", "64"]))
            .before(vec![axes, count])
            .reading("nonpad", "count");
        assert_eq!(role_in(made, "marks"), role, "{sum}");
    }
}

#[test]
fn indices_are_proven_by_their_values() {
    let computed = |op_type: &str| {
        let indices: NodeProto = node(op_type, &["at", "at"], "computed");
        let mut made = Made::fixed().input(value("at", Int64, &["batch"])).before(vec![indices]);
        made.inputs.retain(|input| input.name.as_deref() != Some("write_indices"));
        role_in(made.reading("write_indices", "computed"), "at")
    };
    assert_eq!(computed("Max"), InputRole::WriteIndices);
    assert_eq!(computed("Add"), InputRole::Other);
}

fn role_in(made: Made, name: &str) -> InputRole {
    let model = made.model();
    let roles = super::roles(&Decoder::of(&model.graph().unwrap()).unwrap());
    roles.into_iter().find(|(input, _)| input == name).unwrap().1
}

#[test]
fn tokens_pick_rows_of_the_vocabulary_or_are_the_only_input_that_picks() {
    use InputRole::{Other, TokenIds};
    let roles = |vocabulary, names: &[&str]| {
        let mut layer = Layer::new();
        layer.vocabulary = vocabulary;
        names[1..].iter().for_each(|name| layer.picks(name));
        layer.rename_tokens(names[0]);
        layer.roles().into_iter().map(|(_, role)| role).collect::<Vec<_>>()
    };
    assert_eq!(roles("64", &["ids"]), [TokenIds]);
    assert_eq!(roles("vocabulary", &["ids"]), [TokenIds]);
    assert_eq!(roles("60", &["ids"]), [TokenIds]);
    assert_eq!(roles("64", &["ids", "types"]), [Other, Other]);
    assert_eq!(roles("vocabulary", &["ids", "types"]), [Other, Other]);
    assert_eq!(roles("vocabulary", &["input_ids", "types"]), [TokenIds, Other]);
    // Features of each token are no embeddings if another input has the tokens.
    let features = |layer: &mut Layer| {
        layer.vocabulary = "vocabulary";
        layer.rename_tokens("ids");
        layer.input("features", Float32, &["batch", "tokens", "8"]);
        layer.states = layer.nodes.add("Add", &["embedded", "features"]);
    };
    check("features", features, &[("ids", TokenIds), ("features", Other)]);
    // With embeddings, other inputs that pick rows are no tokens, even if there is a row for each token.
    for (name, role) in [("token_type_ids", Other), ("position_ids", InputRole::PositionIds)] {
        let mut layer = Layer::new();
        layer.inputs[0] = value("inputs_embeds", Float32, &["batch", "tokens", "8"]);
        layer.nodes.nodes[0] = node("Identity", &["inputs_embeds"], "embedded");
        layer.picks(name);
        let expected = [("inputs_embeds", InputRole::Embeddings), (name, role)];
        assert_eq!(layer.roles(), expected.map(|(name, role)| (name.to_owned(), role)));
    }
}
