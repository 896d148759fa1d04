//! Tests each hazard in a graph that has it and no other.

use kvscatter::{ElementType, Mode};
use kvscatter_onnx::decoder::{Hazard, InputRole, RuntimeBug, WriterStyle};

use super::made::Made;
use crate::support::{decoder, kinds, load};

const CACHE: &str = "float[batch, 2, 64, 16]";

/// Decoders without a hazard, except those of growth and of runtimes.
#[test]
fn sound_decoders_have_no_hazard() {
    let prefill = |made: Made| made.edit("(q, present_k, present_v", "(q, new_k, new_v");
    for (what, made) in [
        ("static", Made::fixed()),
        ("growing", Made::growing()),
        ("Attention with a past", Made::attention_past()),
        // Reading the shape of a cache is not reading its rows.
        ("shapes", Made::fixed().node("shape = Shape(past_k); n = Size(present_v)")),
        // A prefill starts with empty caches, so its attention reads the new rows alone.
        ("a prefill", prefill(Made::fixed())),
        ("a prefill of growing caches", prefill(Made::growing())),
        ("a second attention", Made::fixed().node("z = Attention(q, present_k, present_v)")),
        // A runtime removes nodes that pass on the tensor unchanged.
        ("the same value", Made::fixed().edit("(past_k", "(Cast(Identity(past_k)) {to=float}")),
        (
            "write indices under another name",
            Made::fixed().edit("new_v, write_indices", "new_v, Identity(write_indices)"),
        ),
        // A scale changes nothing if no output depends on it, or if it is the same in every step.
        ("an unused scale", Made::fixed().node("quantised = DynamicQuantizeLinear(q)")),
        (
            "a scale of which only the shape is read",
            Made::fixed()
                .node("quantised = DynamicQuantizeLinear(q)")
                .node("shape = Shape(quantised)")
                .output("shape: int64[4]"),
        ),
        (
            "a constant scale",
            Made::fixed().node("quantised = DynamicQuantizeLinear(Constant())").output("quantised: uint8[4]"),
        ),
        // An operator of this name in another domain may be anything.
        (
            "another operator",
            Made::fixed()
                .node("quantised = DynamicQuantizeLinear@com.microsoft(q)")
                .output("quantised: uint8[batch, tokens]"),
        ),
    ] {
        assert_eq!(made.hazards(), [], "{what}");
    }
    // The operator copies the whole cache unless past and present share memory.
    assert_eq!(kinds(&Made::group_query().hazards()), ["operator-writes"; 2]);
}

#[test]
fn caches_that_grow() {
    for (made, grows) in [
        (Made::growing(), 2),
        (Made::attention_past(), 2),
        (Made::fixed(), 0),
        // These grow only if past and present do not share memory.
        (Made::group_query(), 0),
    ] {
        let hazards = decoder(&made.model()).hazards();
        assert_eq!(hazards.iter().filter(|hazard| hazard.kind() == "grows").count(), grows, "{hazards:?}");
    }
}

/// Each hazard is its kind, its node and its cache.
#[test]
fn hazards_of_nodes() {
    let old = format!("old: {CACHE}");
    let choice = "either = If(is_first) {then_branch={inside = Neg(past_k)}}";
    let quantised = |operator: &str| {
        let made = Made::fixed().node(&format!("quantised = {operator}(q)"));
        made.output("quantised: uint8[batch, tokens]")
    };
    let sum = "past-read-elsewhere nsum past_k";
    for (made, expected) in [
        (Made::fixed().node("sum = ReduceSum(past_k) {keepdims=0}"), &[sum][..]),
        (Made::growing().node("sum = ReduceSum(past_k) {keepdims=0}"), &[sum]),
        // Nodes that pass on the past do not hide its reader.
        (Made::fixed().node("sum = ReduceSum(Neg(past_k))"), &[sum]),
        // The caller of the model reads its outputs.
        (Made::fixed().node("old = Identity(past_k)").output(&old), &["past-read-elsewhere nold past_k"]),
        (Made::fixed().node("old = Abs(Neg(past_k))").output(&old), &["past-read-elsewhere nold past_k"]),
        (Made::fixed().edit("(q", "(past_k"), &["past-read-elsewhere ny past_k"]),
        (Made::fixed().input("is_first: bool[]").node(choice), &["past-read-elsewhere neither past_k"]),
        // It is no attention that reads the present.
        (Made::fixed().node("most = ReduceMax(present_v)"), &["present-read-elsewhere nmost present_v"]),
        // The pointers are equal and the rows are right, but the whole cache is copied twice.
        (
            Made::fixed().edit("(past_k", "(twice").before("once = Neg(past_k); twice = Neg(once)"),
            &["node-between nonce past_k", "node-between ntwice past_k"],
        ),
        // The node is after the writer.
        (
            Made::fixed().edit("present_k", "raw").node("present_k = Neg(raw)"),
            &["node-between npresent_k past_k"],
        ),
        (
            Made::fixed().edit(", write_indices", ""),
            &["no-write-indices npresent_k past_k", "no-write-indices npresent_v past_v"],
        ),
        (quantised("DynamicQuantizeLinear"), &["tensor-wide-scale nquantised -"]),
        (quantised("DynamicQuantizeMatMul@com.microsoft"), &["tensor-wide-scale nquantised -"]),
    ] {
        let hazards = made.hazards();
        let line = |hazard: &Hazard| {
            let node = hazard.node().map_or("-", |node| &node.name);
            format!("{} {node} {}", hazard.kind(), hazard.cache().unwrap_or("-"))
        };
        assert_eq!(hazards.iter().map(line).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn present_is_given_twice() {
    for op_type in ["Identity", "Neg"] {
        let made =
            Made::fixed().node(&format!("copy = {op_type}(present_k)")).output(&format!("copy: {CACHE}"));
        let expected =
            Hazard::PresentGivenTwice { present: "present_k".to_owned(), copies: vec!["copy".to_owned()] };
        assert_eq!(made.hazards(), [expected], "{op_type}");
    }
}

#[test]
fn one_cache_is_written_twice() {
    // Two nodes write the same past.
    let other = "other = TensorScatter(past_k, new_v, write_indices)";
    let hazards = Made::fixed().node(other).output(&format!("other: {CACHE}")).hazards();
    assert!(
        matches!(&hazards[..], [Hazard::WrittenTwice { past, first, second }]
            if past == "past_k" && first.name == "npresent_k" && second.name == "nother"),
        "{hazards:?}"
    );
    // Two nodes write one after the other, or a node writes after the present.
    let half = Made::fixed().edit("present_k", "half");
    for (made, name) in [
        (half.node("present_k = TensorScatter(half, new_k, write_indices)"), "npresent_k"),
        (Made::fixed().node("later = TensorScatter(present_v, new_v, write_indices)"), "nlater"),
    ] {
        let hazards = made.hazards();
        assert!(
            matches!(&hazards[..], [Hazard::WrittenInTurn { first, second, .. }]
                if first.index < 2 && second.index == 3 && second.name == name),
            "{hazards:?}"
        );
    }
}

#[test]
fn turned_caches_keep_their_sequence() {
    let made = Made::fixed()
        .input("past_k: float[batch, 64, 2, 16]")
        .output("present_k: float[batch, 64, 2, 16]")
        .edit("(past_k", "(Transpose(past_k) {perm=[0, 2, 1, 3]}")
        .edit("present_k", "raw")
        .node("present_k = Transpose(raw) {perm=[0, 2, 1, 3]}");
    let model = made.model();
    let decoder = decoder(&model);
    let key = decoder.caches.iter().find(|cache| cache.past == "past_k").unwrap();
    assert_eq!((key.axis, key.between.len(), &key.style), (1, 2, &WriterStyle::TensorScatter(Mode::Linear)));
    assert_eq!(decoder.hazards().iter().filter(|hazard| hazard.kind() == "node-between").count(), 2);
}

#[test]
fn pasts_presents_and_caches_that_differ() {
    let expected = Hazard::TypesDiffer {
        past: "past_k".to_owned(),
        present: "present_k".to_owned(),
        past_type: ElementType::Float32,
        present_type: ElementType::Float16,
    };
    assert_eq!(Made::growing().output("present_k: float16[batch, 2, all, 16]").hazards(), [expected]);

    let made = Made::fixed()
        .input("past_v: float[batch, 2, past, 16]")
        .output("present_v: float[batch, 2, all, 16]")
        .edit("TensorScatter(past_v, new_v, write_indices)", "Concat(past_v, new_v) {axis=2}");
    let styles = vec![
        (WriterStyle::Concat, "past_v".to_owned(), 1),
        (WriterStyle::TensorScatter(Mode::Linear), "past_k".to_owned(), 1),
    ];
    assert_eq!(made.hazards(), [Hazard::MixedStyles { styles }]);

    let wide = "float[batch, 2, 128, 16]";
    let made = Made::fixed().input(&format!("past_v: {wide}")).output(&format!("present_v: {wide}"));
    let capacities = vec![(64, "past_k".to_owned(), 1), (128, "past_v".to_owned(), 1)];
    assert_eq!(made.hazards(), [Hazard::MixedCapacities { capacities }]);
}

#[test]
fn positions_that_differ() {
    let made =
        Made::fixed().input("elsewhere: int64[batch]").edit("new_v, write_indices", "new_v, elsewhere");
    let expected = Hazard::MixedWriteIndices {
        past: "past_v".to_owned(),
        write_indices: Some("elsewhere".to_owned()),
        other: "past_k".to_owned(),
        other_write_indices: Some("write_indices".to_owned()),
    };
    assert_eq!(made.hazards(), [expected]);
}

#[test]
fn one_input_for_two_conventions() {
    // `nonpad_kv_seqlen` is used in place of `seqlens_k`.
    let last = "z = GroupQueryAttention@com.microsoft(q, new_k, new_v, _, _, nonpad)";
    for (made, name, roles) in [
        (
            Made::fixed().edit("nonpad", "write_indices"),
            "write_indices",
            (InputRole::WriteIndices, InputRole::NonpadKvSeqlen),
        ),
        (Made::fixed().node(last), "nonpad", (InputRole::NonpadKvSeqlen, InputRole::SeqlensK)),
    ] {
        let hazards = made.hazards();
        assert!(
            matches!(&hazards[..], [Hazard::TwoConventions { input, first, second, .. }]
                if input == name && (*first, *second) == roles),
            "{hazards:?}"
        );
    }
}

#[test]
fn known_bugs_of_runtimes_are_reported() {
    let all = [RuntimeBug::NoKernel, RuntimeBug::RowsLeftWritten, RuntimeBug::IndexClamped];
    let with = |bug| [&all[..], &[bug]].concat();
    let capped = |made: Made| made.with_attributes("y", "softcap=2.0");
    let masked = Made::growing().edit("present_v)", "present_v, mask)").input("mask: bool[batch, 1, s, all]");
    let odd = "float8e4m3fn[batch, 2, 64, 16]";
    let narrow = Made::fixed().input(&format!("past_v: {odd}")).output(&format!("present_v: {odd}"));
    let no_kernel = RuntimeBug::NoKernelForType(ElementType::Float8E4M3Fn);
    for (what, made, expected) in [
        ("static", Made::fixed(), all.to_vec()),
        ("growing", Made::growing(), vec![]),
        ("causal", Made::fixed().with_attributes("y", "is_causal=1"), with(RuntimeBug::MaskTopLeft)),
        ("capped", capped(Made::fixed()), with(RuntimeBug::CapAfterMask)),
        ("a cap of 0", Made::fixed().with_attributes("y", "softcap=0.0"), all.to_vec()),
        ("capped and growing", capped(Made::growing()), vec![]),
        ("capped with a mask", capped(masked), vec![RuntimeBug::CapAfterMask]),
        (
            "circular",
            Made::fixed().with_attributes("present_v", r#"mode="circular""#),
            with(RuntimeBug::ModuloEverywhere),
        ),
        ("float8", narrow, vec![all[0], no_kernel, all[1], all[2]]),
    ] {
        let hazards = decoder(&made.model()).hazards();
        let bug = |hazard: &Hazard| match hazard {
            Hazard::RuntimeBug { bug, .. } => Some(*bug),
            _ => None,
        };
        assert_eq!(hazards.iter().filter_map(bug).collect::<Vec<_>>(), expected, "{what}");
    }
    assert_eq!(kinds(&decoder(&load("mobius-llama-static")).hazards()), ["runtime"; 4]);
}

#[test]
fn one_scale_for_the_activations_of_all_samples() {
    let hazards =
        Made::fixed().node("quantised = DynamicQuantizeLinear(q)").output("quantised: uint8[4]").hazards();
    assert!(hazards[0].to_string().contains("one scale for a whole tensor"), "{hazards:?}");
    // Positions are a range whose end is the number of tokens, which padding changes.
    let made = Made::fixed().node("quantised = DynamicQuantizeLinear(Cast(Shape(q)) {to=float})");
    assert_eq!(kinds(&made.output("quantised: uint8[4]").hazards()), ["tensor-wide-scale"]);
    let hazards = decoder(&load("decoders/optimum-llama-int8")).hazards();
    assert_eq!(kinds(&hazards).iter().filter(|kind| **kind == "tensor-wide-scale").count(), 9);
}
