//! Moves the values of tensors to other files. [`Scene`](crate::scene::Scene) has the files that are named here.

use kvscatter_onnx::proto::tensor_proto::DataLocation;
use kvscatter_onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, TrainingInfoProto,
};

use super::Trick;
use super::extras::entry;
use crate::dice::Dice;
use crate::parts::{main_graph, tensor};
use crate::scatters::tensor as of_tensor;
use crate::support::int64s;

pub(super) const ALL: &[Trick] = &[
    ("values in another file", valid),
    ("values in another file", valid),
    ("values in a strange file", strange),
    ("values outside of the folder", outside),
    ("values beyond the end of a file", beyond),
    ("external data with strange entries", entries),
    ("many tensors in one file", many),
    ("external data in a corner", corner),
];

/// Locations that lead out of the folder of the model.
const OUTSIDE: [&str; 11] = [
    "../secret.bin",
    "sub/../../secret.bin",
    "/etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "link_out",
    "link_up/secret.bin",
    "sub/../data.bin",
    "..",
    "/",
    "link_absolute",
];

/// Locations in the folder that are no file with values, or that cannot be written.
const STRANGE: [&str; 13] = [
    "",
    ".",
    "sub",
    "pipe",
    "missing.bin",
    "dangling",
    "loop",
    "model.onnx",
    "data.bin/more",
    "link_in",
    "a\nb",
    "./data.bin",
    "sub//data.bin",
];

/// Returns `true` if a tensor with values in another file names a location outside of the folder.
pub(crate) fn leads_out(model: &ModelProto) -> bool {
    let mut found = false;
    let mut check = |tensor: &TensorProto| {
        let location = tensor.external_data.iter().find(|it| it.key.as_deref() == Some("location"));
        let location = location.and_then(|it| it.value.as_deref()).unwrap_or_default();
        found |= tensor.data_location == Some(DataLocation::EXTERNAL) && OUTSIDE.contains(&location);
    };
    of_graph(&model.graph, &mut check);
    for training in &model.training_info {
        of_graph(&training.initialization, &mut check);
        of_graph(&training.algorithm, &mut check);
    }
    for function in &model.functions {
        function.attribute_proto.iter().for_each(|it| of_attribute(it, &mut check));
        of_nodes(&function.node, &mut check);
    }
    found
}

fn of_graph(graph: &GraphProto, check: &mut impl FnMut(&TensorProto)) {
    graph.initializer.iter().for_each(&mut *check);
    graph.sparse_initializer.iter().for_each(|sparse| of_sparse(sparse, check));
    of_nodes(&graph.node, check);
}

fn of_nodes(nodes: &[NodeProto], check: &mut impl FnMut(&TensorProto)) {
    nodes.iter().flat_map(|node| &node.attribute).for_each(|it| of_attribute(it, check));
}

fn of_attribute(attribute: &AttributeProto, check: &mut impl FnMut(&TensorProto)) {
    attribute.t.as_option().into_iter().chain(&attribute.tensors).for_each(&mut *check);
    let sparse = attribute.sparse_tensor.as_option().into_iter().chain(&attribute.sparse_tensors);
    sparse.for_each(|sparse| of_sparse(sparse, check));
    attribute.g.as_option().into_iter().chain(&attribute.graphs).for_each(|graph| of_graph(graph, check));
}

fn of_sparse(sparse: &SparseTensorProto, check: &mut impl FnMut(&TensorProto)) {
    check(&sparse.values);
    check(&sparse.indices);
}

fn refer(tensor: &mut TensorProto, location: &str, offset: &str, length: Option<&str>) {
    tensor.raw_data = None;
    tensor.int64_data.clear();
    tensor.float_data.clear();
    tensor.data_location = Some(DataLocation::EXTERNAL);
    tensor.external_data = vec![entry("location", location), entry("offset", offset)];
    tensor.external_data.extend(length.map(|length| entry("length", length)));
}

/// Refers to as many bytes as a tensor has, if the file has so many.
fn valid(dice: &mut Dice, model: &mut ModelProto) {
    let location = *dice.pick(&["data.bin", "sub/data.bin", "link_in", "link_to_sub/data.bin"]);
    let count = 1 + dice.below(3);
    for _ in 0..count {
        let Some(tensor) = tensor(dice, model) else { return };
        let length = tensor.raw_data.as_ref().map_or(8 * tensor.int64_data.len(), Vec::len);
        if length > 0 && length <= 1024 {
            let offset = 8 * dice.below(16);
            refer(tensor, location, &offset.to_string(), Some(&length.to_string()));
        }
    }
}

fn strange(dice: &mut Dice, model: &mut ModelProto) {
    let location = *dice.pick(&STRANGE);
    if let Some(tensor) = tensor(dice, model) {
        refer(tensor, location, "0", None);
    }
}

fn outside(dice: &mut Dice, model: &mut ModelProto) {
    let location = *dice.pick(&OUTSIDE);
    if let Some(tensor) = tensor(dice, model) {
        refer(tensor, location, "0", Some("8"));
    }
}

fn beyond(dice: &mut Dice, model: &mut ModelProto) {
    let size = dice.int();
    let numbers = ["0", "4090", "4096", "18446744073709551615", "9223372036854775807", "1099511627776"];
    let (offset, length) = (*dice.pick(&numbers), *dice.pick(&numbers));
    if let Some(tensor) = tensor(dice, model) {
        refer(tensor, "data.bin", offset, Some(length).filter(|_| dice.chance(70)));
        if dice.chance(50) {
            tensor.dims = vec![size];
        }
    }
}

fn entries(dice: &mut Dice, model: &mut ModelProto) {
    let texts = ["-1", "", "x", "1e3", " 0", "+8", "0x10", "18446744073709551616", "8", "é", "00"];
    let key = *dice.pick(&["location", "offset", "length", "checksum", "unknown", ""]);
    let text = *dice.pick(&texts);
    let count = *dice.pick(&[1, 1, 1, 2, 500]);
    let Some(tensor) = tensor(dice, model) else { return };
    refer(tensor, "data.bin", "0", Some("8"));
    if dice.chance(70) {
        tensor.external_data.retain(|it| it.key.as_deref() != Some(key));
    }
    tensor.external_data.extend(std::iter::repeat_n(entry(key, text), count));
}

/// Adds tensors that share all or most of their bytes.
fn many(dice: &mut Dice, model: &mut ModelProto) {
    let (count, step) = (*dice.pick(&[5, 100, 1000]), *dice.pick(&[0, 1, 8]));
    let graph = main_graph(model);
    for at in 0..count {
        let mut tensor = int64s(&format!("external{at}"), &[64], &[]);
        refer(&mut tensor, "data.bin", &(at * step).to_string(), Some("512"));
        graph.initializer.push(tensor);
    }
}

/// Puts a tensor with values in another file where few programs look.
fn corner(dice: &mut Dice, model: &mut ModelProto) {
    let location =
        if dice.chance(40) { *dice.pick(&OUTSIDE) } else { *dice.pick(&["data.bin", "missing.bin"]) };
    let mut tensor = int64s("corner", &[1], &[]);
    refer(&mut tensor, location, "0", Some("8"));
    let sparse = SparseTensorProto { values: tensor.clone().into(), ..SparseTensorProto::default() };
    let inner = GraphProto { initializer: vec![tensor.clone()], ..GraphProto::default() };
    let unused = match dice.below(6) {
        0 => {
            return model
                .training_info
                .push(TrainingInfoProto { algorithm: inner.into(), ..TrainingInfoProto::default() });
        }
        1 => return main_graph(model).sparse_initializer.push(sparse),
        2 => AttributeProto { g: inner.into(), ..AttributeProto::default() },
        3 => AttributeProto { tensors: vec![tensor.clone(), tensor], ..AttributeProto::default() },
        4 => AttributeProto { sparse_tensors: vec![sparse], ..AttributeProto::default() },
        _ => of_tensor("unused", tensor),
    };
    if let Some(function) = dice.pick_mut(&mut model.functions)
        && dice.chance(50)
    {
        function.attribute_proto.push(unused);
    } else if let Some(node) = dice.pick_mut(&mut main_graph(model).node) {
        node.attribute.push(unused);
    }
}
