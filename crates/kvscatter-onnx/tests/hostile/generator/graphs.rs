//! Changes of several fields that belong together. Most of them leave a valid model.

use kvscatter_onnx::internal::proto::tensor_proto::DataLocation;
use kvscatter_onnx::internal::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto,
    TrainingInfoProto, ValueInfoProto,
};

use super::Change;
use super::dice::Dice;
use super::words::{
    INSIDE, LOCAL_DOMAIN, MICROSOFT_DOMAIN, OUTSIDE, STRANGE, int, is_of_microsoft, one, text,
};
use crate::support::{entry, function, int64s, node, nodes_mut, opset, reroute, values as declared};

pub(super) const ALL: &[Change<ModelProto>] = &[
    ("a node in a body", 1, |dice, model| nest(dice, model, 1)),
    ("a node in nested bodies", 1, |dice, model| {
        let depth = 2 + dice.below(20);
        nest(dice, model, depth);
    }),
    ("bodies beyond every limit", 1, |dice, model| {
        let depth = 25 + dice.below(100);
        nest(dice, model, depth);
    }),
    ("everything in a branch", 2, merge),
    ("a body that reads a later value", 1, later),
    ("a node in a function", 2, extract),
    ("functions that call each other", 2, functions),
    ("a function with the name of an operator", 1, operator),
    ("values in another file", 3, external),
    ("values outside of the folder", 1, outside),
    ("many tensors in one file", 1, many_external),
    ("an earlier input", 2, rewire),
    ("a node less", 1, bypass),
    ("a layer twice", 1, copy_layer),
    ("a chain", 1, chain),
    ("a node of everything", 1, fan),
    ("a new operator between two nodes", 3, between),
    ("a large value between two nodes", 1, large),
    ("a write more", 1, write),
    ("a ring", 1, ring),
    ("a cache that is read elsewhere", 1, read_elsewhere),
    ("metadata of a converted model", 2, metadata),
];

/// Creates a body of `If`, `Loop` or `Scan`. Its outputs only have names.
fn body(name: &str, nodes: Vec<NodeProto>, outputs: &[String]) -> AttributeProto {
    let output = outputs.iter().map(|name| ValueInfoProto::new(name)).collect();
    AttributeProto::graph(name, GraphProto { node: nodes, output, ..GraphProto::default() })
}

fn bodies(graph: &mut GraphProto) -> impl Iterator<Item = &mut GraphProto> {
    let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    attributes.filter_map(|attribute| attribute.g.as_option_mut())
}

/// Chooses the graph of the model or, in some cases, a graph in it.
fn graph<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> &'m mut GraphProto {
    let mut graph = model.graph.get_or_insert_default();
    while dice.chance(40) {
        let count = bodies(graph).count();
        if count == 0 {
            break;
        }
        graph = bodies(graph).nth(dice.below(count)).unwrap();
    }
    graph
}

/// Chooses a graph and the place of a node in it.
fn place<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> Option<(&'m mut GraphProto, usize)> {
    let graph = graph(dice, model);
    let index = dice.below(graph.node.len());
    (!graph.node.is_empty()).then_some((graph, index))
}

/// Returns the names of the values of a graph that nodes before `end` make, or that are given.
fn values(graph: &GraphProto, end: usize) -> Vec<String> {
    let inputs = graph.input.iter().filter_map(|input| input.name.clone());
    let tensors = graph.initializer.iter().filter_map(|tensor| tensor.name.clone());
    let made = graph.node[..end].iter().flat_map(|node| node.output.clone());
    let names: Vec<_> = inputs.chain(tensors).chain(made).filter(|name| !name.is_empty()).collect();
    if names.is_empty() { vec!["none".to_owned()] } else { names }
}

fn all_values(graph: &GraphProto) -> Vec<String> {
    values(graph, graph.node.len())
}

/// Adds an output of the type that another value has.
fn add_output(graph: &mut GraphProto, like: Option<ValueInfoProto>, name: &str) {
    graph.output.push(ValueInfoProto { name: Some(name.to_owned()), ..like.unwrap_or_default() });
}

/// Replaces the input of a node by `new`, and returns the node's place and the name that it read.
fn cut<'m>(
    dice: &mut Dice,
    model: &'m mut ModelProto,
    new: &str,
) -> Option<(&'m mut GraphProto, usize, String)> {
    let (graph, at) = place(dice, model)?;
    let inputs = &mut graph.node[at].input;
    let slot = dice.below(inputs.len());
    let old = std::mem::replace(inputs.get_mut(slot)?, new.to_owned());
    Some((graph, at, old))
}

/// Replaces a node by a node with a body, whose innermost body has the node.
fn nest(dice: &mut Dice, model: &mut ModelProto, depth: usize) {
    let holders: [(&str, &[&str]); 4] = [
        ("If", &["then_branch", "else_branch"]),
        ("Loop", &["body"]),
        ("Scan", &["body"]),
        ("SequenceMap", &["body"]),
    ];
    let (operator, names) = *dice.pick(&holders);
    let Some((graph, at)) = place(dice, model) else { return };
    let condition = all_values(graph).swap_remove(0);
    let place = &mut graph.node[at];
    let outputs = place.output.clone();
    for level in 0..depth {
        let inner = std::mem::replace(place, node(operator, &[&condition], ""));
        place.output.clone_from(&outputs);
        place.attribute.push(body(names[0], vec![inner], &outputs));
        // Only the first body is nested, or the number of nodes would double in each level.
        for name in names.iter().skip(1).filter(|_| level < 12) {
            let first = outputs.first().map_or("", String::as_str);
            place.attribute.push(body(name, vec![node("Neg", &[&condition], first)], &outputs));
        }
    }
}

/// Moves all nodes into one branch of an `If`, as exporters of merged decoders do.
fn merge(dice: &mut Dice, model: &mut ModelProto) {
    let graph = model.graph.get_or_insert_default();
    let outputs: Vec<_> = graph.output.iter().filter_map(|output| output.name.clone()).collect();
    let first = all_values(graph).swap_remove(0);
    let nodes = std::mem::take(&mut graph.node);
    let other = match dice.below(3) {
        0 => nodes.clone(),
        _ => outputs.iter().map(|output| node("Neg", &[&first], output)).collect(),
    };
    let mut branches =
        [("then_branch", nodes), ("else_branch", other)].map(|(name, nodes)| body(name, nodes, &outputs));
    if dice.chance(30) {
        branches.swap(0, 1);
    }
    if dice.chance(20) {
        branches[0].g.get_or_insert_default().initializer = std::mem::take(&mut graph.initializer);
    }
    let mut choice = node("If", &["merged"], "");
    (choice.output, choice.attribute) = (outputs, branches.into());
    graph.node.push(choice);
    graph.input.extend(declared("merged: bool[1]"));
}

/// Puts a node with a body first. The body reads a value that a later node makes.
fn later(dice: &mut Dice, model: &mut ModelProto) {
    let graph = model.graph.get_or_insert_default();
    let known = all_values(graph);
    let mut choice = node("If", &[dice.pick(&known).as_str()], "choice");
    let inner = node("Neg", &[dice.pick(&known).as_str()], "inside");
    let branch = |name| body(name, vec![inner.clone()], &inner.output);
    choice.attribute = ["then_branch", "else_branch"].map(branch).into();
    graph.node.insert(0, choice);
}

fn import(model: &mut ModelProto, domain: &str) {
    if !model.opset_import.iter().any(|import| import.domain.as_deref() == Some(domain)) {
        model.opset_import.push(opset(domain, 1));
    }
}

fn call(name: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto { domain: Some(LOCAL_DOMAIN.to_owned()), ..node(name, inputs, output) }
}

/// Replaces a node by a call of a function with that node.
fn extract(dice: &mut Dice, model: &mut ModelProto) {
    import(model, LOCAL_DOMAIN);
    let (name, opset_import) = (format!("f{}", model.functions.len()), model.opset_import.clone());
    let Some((graph, at)) = place(dice, model) else { return };
    let place = &mut graph.node[at];
    let mut called = NodeProto { input: place.input.clone(), ..call(&name, &[], "") };
    called.input.retain(|input| !input.is_empty());
    called.input.dedup();
    called.output.clone_from(&place.output);
    let (input, output) = (called.input.clone(), called.output.clone());
    let node = vec![std::mem::replace(place, called)];
    model.functions.push(FunctionProto {
        input,
        output,
        node,
        opset_import,
        ..function(&format!("{name}(a) -> z"), "")
    });
}

/// Adds functions that call the next one once or twice. The last one calls the first, or none.
fn functions(dice: &mut Dice, model: &mut ModelProto) {
    import(model, LOCAL_DOMAIN);
    let count: usize = *dice.pick(&[1, 2, 3, 4, 10, 14, 15, 30, 40, 200]);
    let (is_cycle, is_twice) = (dice.chance(40), dice.chance(50));
    for at in 0..count {
        let next = format!("m{}@{LOCAL_DOMAIN}", (at + 1) % count);
        let nodes = match is_twice {
            _ if at + 1 == count && !is_cycle => "z = Identity(a)".to_owned(),
            true => format!("b = {next}(a); z = {next}(b)"),
            false => format!("z = {next}(a)"),
        };
        let opset_import = model.opset_import.clone();
        let made = FunctionProto { opset_import, ..function(&format!("m{at}(a) -> z"), &nodes) };
        model.functions.push(made);
    }
    if let Some((graph, at, read)) = cut(dice, model, "called") {
        graph.node.insert(at, call("m0", &[&read], "called"));
    }
}

/// Adds a function that has the name of an operator of the model.
fn operator(dice: &mut Dice, model: &mut ModelProto) {
    let opset_import = model.opset_import.clone();
    let Some((graph, at)) = place(dice, model) else { return };
    let (name, domain) = (graph.node[at].op_type.clone(), graph.node[at].domain.clone());
    let same = function("same(a) -> z", "z = Identity(a)");
    model.functions.push(FunctionProto { name, domain, opset_import, ..same });
}

/// Makes a tensor refer to bytes of another file.
fn refer(tensor: &mut TensorProto, location: &str, offset: &str, length: Option<&str>) {
    (tensor.raw_data, tensor.int64_data, tensor.float_data) = Default::default();
    tensor.data_location = Some(DataLocation::EXTERNAL);
    let entries = [("location", Some(location)), ("offset", Some(offset)), ("length", length)];
    tensor.external_data = entries.into_iter().filter_map(|(key, value)| Some(entry(key, value?))).collect();
}

/// Chooses an initializer or a constant.
fn tensor<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> Option<&'m mut TensorProto> {
    let graph = graph(dice, model);
    let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    let constants = attributes.filter_map(|attribute| attribute.t.as_option_mut());
    let mut tensors: Vec<_> = graph.initializer.iter_mut().chain(constants).collect();
    let index = dice.below(tensors.len());
    (!tensors.is_empty()).then(|| tensors.swap_remove(index))
}

/// Refers to as many bytes as a tensor has in most cases. [`Scene`](crate::scene::Scene) has the files.
fn external(dice: &mut Dice, model: &mut ModelProto) {
    let numbers = ["0", "4090", "4096", "18446744073709551615", "9223372036854775807", "1099511627776"];
    for _ in 0..=dice.below(3) {
        let is_valid = dice.chance(70);
        let Some(tensor) = tensor(dice, model) else { return };
        let length = tensor.raw_data.as_ref().map_or(8 * tensor.int64_data.len(), |bytes| bytes.len());
        if is_valid && (1..=1024).contains(&length) {
            let offset = 8 * dice.below(16);
            refer(tensor, one(dice, INSIDE), &offset.to_string(), Some(&length.to_string()));
        } else if !is_valid {
            let (offset, length) = (*dice.pick(&numbers), *dice.pick(&numbers));
            let location = if dice.chance(50) { one(dice, STRANGE) } else { "data.bin" };
            refer(tensor, location, offset, Some(length).filter(|_| dice.chance(70)));
        }
    }
}

/// Refers to a file outside of the folder, from a tensor that may be where few programs look.
fn outside(dice: &mut Dice, model: &mut ModelProto) {
    let location = one(dice, OUTSIDE);
    if dice.chance(50) {
        if let Some(tensor) = tensor(dice, model) {
            refer(tensor, location, "0", Some("8"));
        }
        return;
    }
    let mut corner = int64s("corner", &[1], &[]);
    refer(&mut corner, location, "0", Some("8"));
    let sparse = SparseTensorProto { values: corner.clone().into(), ..SparseTensorProto::default() };
    let inner = GraphProto { initializer: vec![corner.clone()], ..GraphProto::default() };
    let none = AttributeProto::default();
    let attribute = match dice.below(6) {
        0 => {
            let algorithm = inner.into();
            return model.training_info.push(TrainingInfoProto { algorithm, ..TrainingInfoProto::default() });
        }
        1 => return model.graph.get_or_insert_default().sparse_initializer.push(sparse),
        2 => AttributeProto { g: inner.into(), ..none },
        3 => AttributeProto { tensors: vec![corner], ..none },
        4 => AttributeProto { sparse_tensors: vec![sparse], ..none },
        _ => AttributeProto { t: corner.into(), ..none },
    };
    if let Some(function) = model.functions.first_mut().filter(|_| dice.chance(50)) {
        function.attribute_proto.push(attribute);
    } else if let Some((graph, at)) = place(dice, model) {
        graph.node[at].attribute.push(attribute);
    }
}

/// Adds tensors that share all or most of their bytes.
fn many_external(dice: &mut Dice, model: &mut ModelProto) {
    let (count, step) = (*dice.pick(&[5, 100, 1000]), *dice.pick(&[0, 1, 8]));
    for at in 0..count {
        let mut tensor = int64s(&format!("external{at}"), &[64], &[]);
        refer(&mut tensor, "data.bin", &(at * step).to_string(), Some("512"));
        model.graph.get_or_insert_default().initializer.push(tensor);
    }
}

/// Makes a node read another value that is made before it.
fn rewire(dice: &mut Dice, model: &mut ModelProto) {
    if let Some((graph, at, _)) = cut(dice, model, "rewired") {
        let known = values(graph, at);
        reroute(graph, "rewired", dice.pick(&known).as_str());
    }
}

/// Removes a node. Its readers read its first input instead in most cases.
fn bypass(dice: &mut Dice, model: &mut ModelProto) {
    let Some((graph, at)) = place(dice, model) else { return };
    let node = graph.node.remove(at);
    if let (Some(from), Some(to)) = (node.output.first(), node.input.first())
        && dice.chance(80)
    {
        reroute(graph, from, to);
    }
}

/// Appends the nodes again, with other names of their values.
fn copy_layer(dice: &mut Dice, model: &mut ModelProto) {
    let graph = model.graph.get_or_insert_default();
    if graph.node.len() > 200 {
        return;
    }
    let mut copies = graph.node.clone();
    let made: Vec<_> = graph.node.iter().flat_map(|node| &node.output).collect();
    let names = copies.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output));
    names.filter(|name| made.contains(&&**name)).for_each(|name| name.push_str("_2"));
    graph.node.extend(copies);
    if dice.chance(50) {
        for output in graph.output.clone() {
            let name = format!("{}_2", output.name.as_deref().unwrap_or_default());
            add_output(graph, Some(output), &name);
        }
    }
}

fn chain(dice: &mut Dice, model: &mut ModelProto) {
    let operator = *dice.pick(&["Identity", "Neg", "Cast", "Unsqueeze", "Shape"]);
    let count = *dice.pick(&[3, 50, 2000]);
    let graph = graph(dice, model);
    let mut last = dice.pick(&all_values(graph)).clone();
    for at in 0..count {
        let next = format!("chain{at}");
        graph.node.push(node(operator, &[&last], &next));
        last = next;
    }
    if let Some(output) = graph.output.first_mut() {
        output.name = Some(last);
    }
}

fn fan(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    let operator = *dice.pick(&["Sum", "Concat", "Attention", "Max", "Odd"]);
    let input = all_values(graph);
    graph.node.push(NodeProto { input, ..node(operator, &[], "fan") });
    let like = graph.output.first().cloned();
    add_output(graph, like, "fan");
}

/// Puts a node between a value and one of its readers.
fn between(dice: &mut Dice, model: &mut ModelProto) {
    import(model, MICROSOFT_DOMAIN);
    let (operator, numbers) = (text(dice, "Node", "op_type"), [int(dice, "i"), int(dice, "i")]);
    let Some((graph, at, read)) = cut(dice, model, "between") else { return };
    let known = all_values(graph);
    let mut new = node(&operator, &[&read], "between");
    for _ in 0..*dice.pick(&[0, 0, 1, 2, 4]) {
        new.input.push(if dice.chance(50) { read.clone() } else { dice.pick(&known).clone() });
    }
    if is_of_microsoft(&operator) {
        new.domain = Some(MICROSOFT_DOMAIN.to_owned());
    }
    let names = *dice.pick(&[["axis", "to"], ["to", "num_heads"], ["num_heads", "kv_num_heads"]]);
    if dice.chance(75) {
        new.attribute.extend(names.into_iter().zip(numbers).map(|(name, it)| AttributeProto::int(name, it)));
    }
    graph.node.insert(at, new);
}

/// Puts a value of many elements between a value and one of its readers, by a few bytes in the file.
fn large(dice: &mut Dice, model: &mut ModelProto) {
    let side = *dice.pick(&[1000, 2048, 4096, 1 << 20, 1 << 40]);
    let Some((graph, at, read)) = cut(dice, model, "large") else { return };
    let zeros = |output| node("ConstantOfShape", &["large_shape"], output);
    let new = match dice.below(5) {
        0 => vec![zeros("large")],
        1 => vec![node("Expand", &[&read, "large_shape"], "large")],
        2 => vec![node("Tile", &[&read, "large_shape"], "large")],
        3 => {
            let link = |at: usize| format!("large{at}");
            let negs = (0..40).map(|at| node("Neg", &[&link(at)], &link(at + 1)));
            let sum = node("Add", &[&read, "large40"], "large");
            std::iter::once(zeros("large0")).chain(negs).chain([sum]).collect()
        }
        _ => vec![
            zeros("large_zeros"),
            node("MatMul", &["large_zeros", "large_zeros"], "large_product"),
            node("ReduceSum", &["large_product"], "large_sum"),
            node("Add", &[&read, "large_sum"], "large"),
        ],
    };
    graph.node.splice(at..at, new);
    graph.initializer.push(int64s("large_shape", &[2], &[side, side]));
}

/// Writes rows into an input that returns as an output.
fn write(dice: &mut Dice, model: &mut ModelProto) {
    let graph = model.graph.get_or_insert_default();
    let known = all_values(graph);
    let Some(past) = graph.input.get(dice.below(graph.input.len())).cloned() else { return };
    let name = past.name.as_deref().unwrap_or_default();
    let mut scatter =
        node("TensorScatter", &[name, dice.pick(&known).as_str(), dice.pick(&known).as_str()], "written");
    if dice.chance(60) {
        let axis = i64::try_from(dice.below(7)).unwrap() - 3;
        scatter.attribute.push(AttributeProto::int("axis", axis));
    }
    if dice.chance(40) {
        scatter.attribute.push(AttributeProto::string("mode", "circular"));
    }
    graph.node.push(scatter);
    add_output(graph, Some(past), "written");
}

fn ring(dice: &mut Dice, model: &mut ModelProto) {
    let value = *dice.pick(&["circular", "circular", "linear", "Circular", ""]);
    for node in nodes_mut(model.graph.get_or_insert_default(), "TensorScatter") {
        node.attribute.retain(|attribute| attribute.name.as_deref() != Some("mode"));
        node.attribute.push(AttributeProto::string("mode", value));
    }
}

fn read_elsewhere(dice: &mut Dice, model: &mut ModelProto) {
    let graph = model.graph.get_or_insert_default();
    let Some(input) = graph.input.get(dice.below(graph.input.len())).cloned() else { return };
    let operator = *dice.pick(&["Identity", "Shape", "Cast", "MatMul", "ReduceSum"]);
    let name = input.name.as_deref().unwrap_or_default();
    graph.node.insert(0, node(operator, &[name], "elsewhere"));
    if dice.chance(50) {
        add_output(graph, Some(input), "elsewhere");
    }
}

fn metadata(dice: &mut Dice, model: &mut ModelProto) {
    let [key, value] = ["key", "value"].map(|field| text(dice, "Entry", field));
    model.metadata_props.push(entry(&key, &value));
}
