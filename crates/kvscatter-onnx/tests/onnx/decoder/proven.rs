//! Tests that an input has a role only if the graph proves it, or if it has the name that exporters use.

use kvscatter_onnx::Model;
use kvscatter_onnx::convert::convert;
use kvscatter_onnx::decoder::EncoderPart::{Keys, Mask, Values};
use kvscatter_onnx::decoder::InputRole::{
    self, AttentionMask, Embeddings, Encoder, Other, PositionIds, TokenIds, WriteIndices,
};

use super::made::Made;
use super::{check_roles, roles};
use crate::support::{Nodes, decoder, function, graph_mut, load, parsed};

/// Computes the slots, those of the new tokens, `[tokens, 1]`, and `causal`, `[tokens, total]`.
const SLOTS: &str = "
    past_size = Shape(past_k) {start=2, end=3}
    total = Squeeze(Add(past_size, Shape(input_ids) {start=1, end=2}))
    slots = Range(0, total, 1)
    new_slots = Range(Squeeze(past_size), total, 1)
    causal = LessOrEqual(slots, Unsqueeze(new_slots, [-1]))
";

/// Computes keys that are rotated by the angles of `place`. Some exporters scale the cosines and sines.
const ROTATED: &str = "
    angles = Mul(Unsqueeze(Cast(place) {to=float}, [-1]), 0.1)
    cosines = Mul(1.5, Cos(angles)); sines = Mul(1.5, Sin(angles))
    keys = MatMul(embedded, 0.5[8, 8])
    states = Add(Mul(keys, cosines), Mul(TURNED, sines))
";
const TURNED: &str = "Concat(Neg(Slice(keys, [0], [2], [2])), Slice(keys, [0], [2], [2])) {axis=-1}";

/// Creates a decoder of one layer whose caches grow.
///
/// The nodes may read `embedded`, `[batch, tokens, 8]`, and what [`SLOTS`] computes. They may compute the hidden states
/// `states`, the mask of attention `mask`, and the mask `second` of a second attention over the same caches. Causality
/// is an attribute without a mask.
fn layer(inputs: &str, nodes: &str, vocabulary: &str) -> Model {
    let has = |name: &str| nodes.contains(&format!("{name} = "));
    let states = if has("states") { "states" } else { "embedded" };
    let [mask, causal] = if has("mask") { ["mask", ""] } else { ["_", ", is_causal=1"] };
    let slots = if nodes.contains("slots") || nodes.contains("causal") { SLOTS } else { "" };
    let second = if has("second") {
        format!("z = Attention({states}, present_k, present_v, second)")
    } else {
        String::new()
    };
    parsed(
        &format!("{inputs}, past_k, past_v: float[batch, 2, past, 4]"),
        &format!(
            "embedded = Gather(0.25[64, 8], input_ids)
            {slots}
            {}
            y, present_k, present_v = Attention({states}, {states}, {states}, {mask}, past_k, past_v)
                {{q_num_heads=2, kv_num_heads=2{causal}}}
            logits = MatMul(y, 0.25[8, 64])
            {second}",
            nodes.replace("TURNED", TURNED)
        ),
        &format!(
            "logits: float[batch, tokens, {vocabulary}], present_k, present_v: float[batch, 2, total, 4]"
        ),
    )
}

/// Checks the roles of inputs that are added to a layer with token ids.
#[track_caller]
fn check(what: &str, inputs: &str, nodes: &str, expected: &[(&str, InputRole)]) {
    let model = layer(&format!("input_ids: int64[batch, tokens], {inputs}"), nodes, "64");
    check_roles(what, &model, &[&[("input_ids", TokenIds)], expected].concat());
}

/// Returns nodes that add rows of a table for each number of an input to the hidden states.
fn picks(name: &str) -> String {
    format!("states = Add(embedded, Gather(0.5[64, 8], {name}))")
}

#[test]
fn an_input_that_only_picks_rows_is_positions_by_its_name_alone() {
    for (name, role) in [
        ("token_type_ids", Other),
        ("places", Other),
        ("cache_position", Other),
        ("position_ids", PositionIds),
    ] {
        check(name, &format!("{name}: int64[batch, tokens]"), &picks(name), &[(name, role)]);
    }
    for [first, second] in [["token_type_ids", "position_ids"], ["position_ids", "token_type_ids"]] {
        let role = |name| if name == "position_ids" { PositionIds } else { Other };
        check(
            "both",
            &format!("{first}, {second}: int64[batch, tokens]"),
            &format!(
                "both = Add(embedded, Gather(0.4[64, 8], {first}))
                states = Add(both, Gather(0.5[64, 8], {second}))"
            ),
            &[(first, role(first)), (second, role(second))],
        );
    }
    check("language", "language_id: int64[batch, 1]", &picks("language_id"), &[("language_id", Other)]);
}

#[test]
fn positions_are_proven_by_a_comparison_or_a_rotation() {
    let at = "at: int64[batch, tokens]";
    let compared = |op_type: &str| {
        format!("{}; mask = Unsqueeze({op_type}(slots, Unsqueeze(at, [-1])), [1])", picks("at"))
    };
    check("last", at, &compared("LessOrEqual"), &[("at", PositionIds)]);
    // A token does not see its own slot, or only slots from its own on.
    check("before", at, &compared("Less"), &[("at", Other)]);
    check("after", at, &compared("GreaterOrEqual"), &[("at", Other)]);
    // The slots up to the number are visible in addition to those before the token.
    let prefix = "mask = Unsqueeze(Or(causal, LessOrEqual(slots, Unsqueeze(prefix, [-1]))), [1])";
    check("prefix", "prefix: int64[batch, 1]", prefix, &[("prefix", Other)]);

    let rows = "cosines = Gather(0.5[64, 8], at); sines = Gather(0.4[64, 8], at)
        keys = MatMul(embedded, 0.5[8, 8])";
    let rotated = format!("{rows}; states = Add(Mul(keys, cosines), Mul(TURNED, sines))");
    check("rotated by rows of tables", at, &rotated, &[("at", PositionIds)]);
    // The rows of an adapter may scale and shift the states.
    let adapted = format!("{rows}; states = Add(Mul(keys, cosines), sines)");
    check("adapted", at, &adapted, &[("at", Other)]);
    let computed = format!("place = Identity(at); {ROTATED}");
    check("rotated by computed angles", at, &computed, &[("at", PositionIds)]);
    // A diffusion model embeds its time step as sines and cosines, too.
    let embedded = "angles = Mul(Unsqueeze(Cast(timestep) {to=float}, [-1]), 0.1)
        waves = Concat(Cos(angles), Sin(angles)) {axis=-1}
        states = Add(embedded, MatMul(waves, 0.5[2, 8]))";
    check("embedded", "timestep: int64[batch, tokens]", embedded, &[("timestep", Other)]);
}

#[test]
fn a_mask_that_chooses_positions_is_none_itself() {
    for (name, mask, role) in [("position_ids", "attention_mask", AttentionMask), ("at", "marks", Other)] {
        let inputs = format!("{name}, {mask}: int64[batch, tokens]");
        let chosen = format!("place = Where(Cast({mask}) {{to=bool}}, {name}, [0]); {ROTATED}");
        check("chosen", &inputs, &chosen, &[(name, PositionIds), (mask, role)]);
    }
}

/// The numbers of an input of one number for each slot: those of the new tokens, those of all, and flags.
const NUMBERS: &str = "own = Unsqueeze(Gather(marks, new_slots) {axis=1}, [2]); all = Unsqueeze(marks, [1])
    flags = Unsqueeze(Cast(marks) {to=bool}, [1])";

#[test]
fn a_mask_is_proven_by_the_slots_that_it_hides() {
    for (what, visible, role) in [
        ("real tokens", "And(causal, flags)", AttentionMask),
        ("padding", "And(causal, Not(flags))", Other),
        ("seen by all", "Or(causal, flags)", Other),
        ("blocks", "Or(causal, Equal(own, all))", Other),
        ("documents", "And(causal, Equal(own, all))", Other),
        ("pairs of flags", "And(causal, And(Cast(own) {to=bool}, flags))", Other),
        ("kinds of tokens", "And(causal, Equal(all, [1]))", Other),
        ("nothing", "Identity(causal)", Other),
    ] {
        let nodes = format!("{NUMBERS}; mask = Unsqueeze({visible}, [1])");
        check(what, "marks: int64[batch, total]", &nodes, &[("marks", role)]);
    }
    let heads = "Concat(Unsqueeze(And(causal, flags), [1]), Unsqueeze(Or(causal, flags), [1])) {axis=1}";
    let one_head = format!("{NUMBERS}; mask = {heads}");
    check("one head", "marks: int64[batch, total]", &one_head, &[("marks", Other)]);
    // Numbers that are added to scores are not flags.
    let added = "mask = Unsqueeze(Unsqueeze(marks, [1]), [1])";
    check("added", "marks: float[batch, total]", added, &[("marks", Other)]);
    let mask = "attention_mask: int64[batch, total]";
    check("by name", mask, "", &[("attention_mask", AttentionMask)]);
}

/// A mask with the flags of `marks`.
const MASKED: &str = "mask = Unsqueeze(And(causal, Unsqueeze(Cast(marks) {to=bool}, [1])), [1])";

/// A table of biases that a caller computes is added to the mask of the second attention.
#[test]
fn a_mask_is_proven_only_if_all_masks_that_read_it_are_known() {
    for (name, role) in [("marks", Other), ("attention_mask", AttentionMask)] {
        let inputs = format!("{name}: int64[batch, total], bias: float[batch, 2, tokens, total]");
        let masked = MASKED.replace("marks", name);
        let nodes = format!("{masked}; second = Add(Where(mask, 0.0, {:?}), bias)", f32::MIN);
        check(name, &inputs, &nodes, &[(name, role), ("bias", Other)]);
    }
}

/// The evaluation of a hostile graph must not take gigabytes or minutes.
#[test]
fn proofs_have_bounds_on_memory_and_work() {
    let marks = "input_ids: int64[batch, tokens], marks: int64[batch, total]";
    let role = |model: &Model| role_in(model, "marks");
    // Each of the indices is small enough, but two of them are too large together.
    for (indices, expected) in [("indices0", AttentionMask), ("indices0, indices1", Other)] {
        let written =
            indices.split(", ").map(|name| format!("of_{name} = TensorScatter(embedded, embedded, {name});"));
        let nodes = format!("{MASKED}; {}", written.collect::<String>());
        let model = layer(&format!("{marks}, {indices}: int64[3000000]"), &nodes, "64");
        assert_eq!(role(&model), expected, "{indices}");
    }
    // Each trial calls a function. Each call takes less than the work of one trial, but all calls take too much.
    for (nodes, expected) in [(10, AttentionMask), (40_000, Other)] {
        let called = MASKED.replace("Cast(marks) {to=bool}", "Slow@local(Cast(marks) {to=bool})");
        let mut model = layer(marks, &called, "64");
        let unused: String = (0..nodes).map(|at| format!("unused{at} = Identity(x);")).collect();
        model.proto_mut().functions.push(function("Slow(x) -> y", &format!("{unused} y = Identity(x)")));
        assert_eq!(role(&model), expected, "{nodes}");
    }
}

/// The attention of a decoder to an encoder reads no cache.
#[test]
fn the_mask_of_an_encoder_is_no_attention_mask() {
    for length in ["encoder", "total"] {
        let inputs = format!(
            "encoder_k, encoder_v: float[batch, 2, {length}, 4], encoder_attention_mask: int64[batch, {length}]"
        );
        let cross = "flags = Unsqueeze(Cast(encoder_attention_mask) {to=bool}, [1, 2])
            queries = Transpose(Reshape(embedded, [0, 0, 2, 4])) {perm=[0, 2, 1, 3]}
            seen = Attention(queries, encoder_k, encoder_v, flags)
            states = Add(embedded, Reshape(seen, [0, -1, 8]))";
        let inputs_of = [("encoder_k", Keys), ("encoder_v", Values), ("encoder_attention_mask", Mask)];
        let expected = inputs_of.map(|(name, part)| (name, Encoder(part)));
        check(length, &inputs, cross, &expected);
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
        let mut model = load(name);
        let expected = roles(&model);
        rename_inputs(&mut model);
        assert_eq!(roles(&model), expected, "{name}");
    }
}

/// The mask of a ring has other columns than that of a cache with all slots.
#[test]
fn a_mask_is_proven_beside_rings() {
    let mut model = load("decoders/torch-2.15-gemma3");
    rename_inputs(&mut model);
    let converted = convert(&model, 128).unwrap().model;
    let decoder = decoder(&converted);
    let rings = decoder.caches.iter().filter(|cache| cache.is_ring()).count();
    assert!((1..decoder.caches.len()).contains(&rings));
    assert_eq!(decoder.input(AttentionMask).unwrap().name, "renamed.attention_mask");
}

/// Renames the inputs that are not caches.
fn rename_inputs(model: &mut Model) {
    let names = ["input_ids", "position_ids", "attention_mask", "write_indices", "nonpad_kv_seqlen"];
    rename(model, &names, |name| format!("renamed.{name}"));
}

/// Renames inputs of the graph.
fn rename(model: &mut Model, names: &[&str], new: impl Fn(&str) -> String) {
    let graph = graph_mut(model);
    let declared = graph.input.iter_mut().filter_map(|input| input.name.as_mut());
    let reads = graph.node.iter_mut().flat_map(|node| &mut node.input);
    for name in declared.chain(reads).filter(|name| names.contains(&name.as_str())) {
        *name = new(name);
    }
}

#[test]
fn a_mask_is_proven_by_the_lengths_that_are_counted_in_it() {
    for (sum, role) in [("ReduceSum", AttentionMask), ("ReduceMax", Other)] {
        let made = Made::fixed()
            .input("marks: int64[batch, 64]")
            .before(&format!("count = {sum}(marks, Constant() {{value_ints=[1]}}) {{keepdims=0}}"))
            .edit("nonpad", "count");
        assert_eq!(role_in(&made.model(), "marks"), role, "{sum}");
    }
}

#[test]
fn indices_are_proven_by_their_values() {
    let computed = |op_type: &str| {
        let mut made =
            Made::fixed().input("at: int64[batch]").before(&format!("computed = {op_type}(at, at)"));
        made.inputs.retain(|input| input.name.as_deref() != Some("write_indices"));
        role_in(&made.edit("write_indices", "computed").model(), "at")
    };
    assert_eq!(computed("Max"), WriteIndices);
    assert_eq!(computed("Add"), Other);
}

fn role_in(model: &Model, name: &str) -> InputRole {
    decoder(model).inputs.iter().find(|input| input.value.name == name).unwrap().role
}

#[test]
fn tokens_pick_rows_of_the_vocabulary_or_are_the_only_input_that_picks() {
    let types = picks("types");
    for (vocabulary, tokens, others, nodes, expected) in [
        ("64", "ids", "", "", &[TokenIds][..]),
        ("vocabulary", "ids", "", "", &[TokenIds]),
        ("60", "ids", "", "", &[TokenIds]),
        ("64", "ids", "types: int64[batch, tokens]", &types, &[Other, Other]),
        ("vocabulary", "ids", "types: int64[batch, tokens]", &types, &[Other, Other]),
        ("vocabulary", "input_ids", "types: int64[batch, tokens]", &types, &[TokenIds, Other]),
        // Features of each token are no embeddings if another input has the tokens.
        (
            "vocabulary",
            "ids",
            "features: float[batch, tokens, 8]",
            "states = Add(embedded, features)",
            &[TokenIds, Other],
        ),
    ] {
        let inputs = format!("input_ids: int64[batch, tokens], {others}");
        let mut model = layer(&inputs, nodes, vocabulary);
        rename(&mut model, &["input_ids"], |_| tokens.to_owned());
        assert_eq!(roles(&model), expected, "{vocabulary} {tokens} {others}");
    }
    // With embeddings, other inputs that pick rows are no tokens, even if there is a row for each token.
    for (name, role) in [("token_type_ids", Other), ("position_ids", PositionIds)] {
        let mut model = layer(
            &format!("input_ids: float[batch, tokens, 8], {name}: int64[batch, tokens]"),
            &picks(name),
            "64",
        );
        rename(&mut model, &["input_ids"], |_| "inputs_embeds".to_owned());
        let first = &mut graph_mut(&mut model).node[0];
        *first = Nodes::parse("embedded = Identity(inputs_embeds)").nodes.remove(0);
        check_roles(name, &model, &[("inputs_embeds", Embeddings), (name, role)]);
    }
}
