//! Changes the attributes of nodes.

use kvscatter_onnx::proto::attribute_proto::AttributeType;
use kvscatter_onnx::proto::{AttributeProto, ModelProto, NodeProto};

use super::Trick;
use crate::dice::Dice;
use crate::parts::node;
use crate::support::{float, int, ints, string};

pub(super) const ALL: &[Trick] = &[
    ("another value of an attribute", value),
    ("another value of an attribute", value),
    ("another value of an attribute", value),
    ("another type of an attribute", kind),
    ("an attribute twice", twice),
    ("an attribute less", less),
    ("a known attribute more", more),
    ("a known attribute more", more),
    ("an unknown attribute", unknown),
    ("a reference to an attribute of a function", reference),
    ("a long attribute", long),
    ("another name of an attribute", rename),
];

/// Attributes of operators that the code under test reads.
const KNOWN: [&str; 26] = [
    "axis",
    "axes",
    "perm",
    "to",
    "is_causal",
    "num_heads",
    "kv_num_heads",
    "q_num_heads",
    "scale",
    "softcap",
    "local_window_size",
    "do_rotary",
    "rotary_interleaved",
    "mode",
    "start",
    "end",
    "transA",
    "transB",
    "value",
    "value_ints",
    "allowzero",
    "keepdims",
    "bits",
    "block_size",
    "qk_matmul_output_mode",
    "equation",
];

/// Chooses a node with attributes, if there is one.
fn with_attributes<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> Option<&'m mut NodeProto> {
    let nodes = &model.graph.node;
    let some: Vec<_> = (0..nodes.len()).filter(|&at| !nodes[at].attribute.is_empty()).collect();
    if some.is_empty() || dice.chance(20) {
        return node(dice, model);
    }
    let at = *dice.pick(&some);
    model.graph.get_or_insert_default().node.get_mut(at)
}

fn attribute<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> Option<&'m mut AttributeProto> {
    let node = with_attributes(dice, model)?;
    dice.pick_mut(&mut node.attribute)
}

fn value(dice: &mut Dice, model: &mut ModelProto) {
    let (new_int, new_float) = (dice.int(), dice.float());
    let Some(attribute) = attribute(dice, model) else { return };
    if let Some(number) = &mut attribute.i {
        *number = new_int;
    }
    if let Some(number) = &mut attribute.f {
        *number = new_float;
    }
    if let Some(number) = dice.pick_mut(&mut attribute.ints) {
        *number = new_int;
    }
    if let Some(text) = &mut attribute.s {
        *text = dice.pick(&[&b"circular"[..], b"", b"\xFF\xFE", b"linear", b"ij,jk->ik", b"a\nb"]).to_vec();
    }
}

fn kind(dice: &mut Dice, model: &mut ModelProto) {
    let all = [
        None,
        Some(AttributeType::UNDEFINED),
        Some(AttributeType::FLOAT),
        Some(AttributeType::INTS),
        Some(AttributeType::STRING),
        Some(AttributeType::GRAPH),
        Some(AttributeType::TENSOR),
        Some(AttributeType::TYPE_PROTO),
    ];
    let kind = *dice.pick(&all);
    if let Some(attribute) = attribute(dice, model) {
        attribute.r#type = kind;
        if dice.chance(50) {
            (attribute.i, attribute.f, attribute.s) = (None, Some(1.5), Some(vec![0xFF]));
        }
    }
}

fn twice(dice: &mut Dice, model: &mut ModelProto) {
    let other = dice.int();
    let Some(node) = with_attributes(dice, model) else { return };
    if let Some(mut copy) = dice.pick_mut(&mut node.attribute).cloned() {
        copy.i = copy.i.map(|_| other);
        node.attribute.push(copy);
    }
}

fn less(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(node) = with_attributes(dice, model)
        && !node.attribute.is_empty()
    {
        node.attribute.remove(dice.below(node.attribute.len()));
    }
}

fn more(dice: &mut Dice, model: &mut ModelProto) {
    let name = *dice.pick(&KNOWN);
    let attribute = match name {
        "axes" | "perm" | "value_ints" => ints(name, &[dice.int(), dice.int()]),
        "scale" | "softcap" => float(name, dice.float()),
        "mode" | "equation" => string(name, "circular"),
        _ => int(name, dice.int()),
    };
    if let Some(node) = node(dice, model) {
        node.attribute.retain(|it| it.name.as_deref() != Some(name));
        node.attribute.push(attribute);
    }
}

fn unknown(dice: &mut Dice, model: &mut ModelProto) {
    let attribute = int(&dice.name(), dice.int());
    if let Some(node) = node(dice, model) {
        node.attribute.push(attribute);
    }
}

fn reference(dice: &mut Dice, model: &mut ModelProto) {
    let name = dice.name();
    if let Some(attribute) = attribute(dice, model) {
        attribute.ref_attr_name = Some(name);
    }
}

fn long(dice: &mut Dice, model: &mut ModelProto) {
    let count = *dice.pick(&[10, 1000, 20_000]);
    let number = dice.int();
    if let Some(attribute) = attribute(dice, model) {
        match dice.below(3) {
            0 => attribute.ints = vec![number; count],
            1 => attribute.s = Some(vec![b'a'; count]),
            _ => attribute.strings = vec![vec![b'a']; count],
        }
    }
}

fn rename(dice: &mut Dice, model: &mut ModelProto) {
    let name = if dice.chance(80) { (*dice.pick(&KNOWN)).to_owned() } else { dice.name() };
    if let Some(attribute) = attribute(dice, model) {
        attribute.name = Some(name);
    }
}
