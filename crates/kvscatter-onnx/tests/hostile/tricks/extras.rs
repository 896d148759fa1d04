//! Changes what a model has beside its graph.

use kvscatter_onnx::proto::{
    DeviceConfigurationProto, GraphProto, ModelProto, StringStringEntryProto, TrainingInfoProto,
};

use super::Trick;
use crate::dice::Dice;
use crate::parts::{graph, main_graph, node};

pub(super) const ALL: &[Trick] = &[
    ("metadata of a converted model", converted),
    ("metadata of a converted model", converted),
    ("metadata twice", twice),
    ("long metadata", long),
    ("training", training),
    ("another version of the format", version),
    ("documentation", documentation),
    ("no graph", no_graph),
    ("an empty graph", empty_graph),
    ("names of nodes", node_names),
    ("devices", devices),
];

pub(super) fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
        ..StringStringEntryProto::default()
    }
}

/// Adds an entry that the code under test reads, with any contents.
fn converted(dice: &mut Dice, model: &mut ModelProto) {
    let keys = ["rings", "most_tokens", "source", "max_seq", "windows", "caches", "write_indices", "version"];
    let values = [
        "",
        "0",
        "-1",
        "18446744073709551615",
        "2147483647",
        "capacity=16 window=4 chunk=8 rewind=5",
        "capacity=18446744073709551615 window=18446744073709551615 chunk=1 rewind=0",
        "capacity=0 window=0 chunk=0 rewind=0; capacity=1 window=1 chunk=1 rewind=1",
        "capacity=16 window=4",
        "exported=00000000000000000000000000000000 converted=00000000000000000000000000000000",
        "exported=0123456789abcdef0123456789abcdef converted=",
        "exported= ",
        "a; b; c",
        "past_k0 -> k0; past_k0 -> k0",
        "; ;;",
        "é\n",
    ];
    let key = format!("kvscatter.{}", dice.pick(&keys));
    let value = *dice.pick(&values);
    model.metadata_props.push(entry(&key, value));
}

fn twice(dice: &mut Dice, model: &mut ModelProto) {
    let (key, value) = (dice.name(), dice.name());
    let count = *dice.pick(&[2, 3, 1000]);
    model.metadata_props.extend(std::iter::repeat_n(entry(&key, &value), count));
}

fn long(dice: &mut Dice, model: &mut ModelProto) {
    let key = *dice.pick(&["", "kvscatter.rings", "kvscatter.source", "kvscatter.most_tokens"]);
    let part = *dice.pick(&["a", ";", "1;", "exported=0 converted=", "0"]);
    model.metadata_props.push(entry(key, &part.repeat(5000)));
}

fn training(dice: &mut Dice, model: &mut ModelProto) {
    let copy = if dice.chance(50) { main_graph(model).clone() } else { GraphProto::default() };
    let name = dice.name();
    model.training_info.push(TrainingInfoProto {
        algorithm: copy.into(),
        update_binding: vec![entry(&name, &name); 2],
        ..TrainingInfoProto::default()
    });
}

fn version(dice: &mut Dice, model: &mut ModelProto) {
    model.ir_version = if dice.chance(20) { None } else { Some(dice.int()) };
    model.model_version = Some(dice.int());
}

fn documentation(dice: &mut Dice, model: &mut ModelProto) {
    let text = dice.name().repeat(3);
    model.producer_name = Some(text.clone());
    if let Some(node) = node(dice, model) {
        node.doc_string = Some(text.clone());
    }
    graph(dice, model).name = Some(text);
}

fn no_graph(dice: &mut Dice, model: &mut ModelProto) {
    if dice.chance(20) {
        model.graph = None.into();
    }
}

fn empty_graph(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    match dice.below(8) {
        0 => graph.node.clear(),
        1 => graph.input.clear(),
        2 => graph.output.clear(),
        3 => graph.initializer.clear(),
        _ => graph.value_info.clear(),
    }
}

fn node_names(dice: &mut Dice, model: &mut ModelProto) {
    let name = dice.name();
    for node in &mut main_graph(model).node {
        node.name = if dice.chance(50) { Some(name.clone()) } else { None };
    }
}

fn devices(dice: &mut Dice, model: &mut ModelProto) {
    model.configuration.push(DeviceConfigurationProto {
        num_devices: Some(i32::MAX),
        device: vec![dice.name(); 3],
        ..DeviceConfigurationProto::default()
    });
}
