//! Changes of several fields that belong together. Most of them leave a valid model.

use super::Change;
use super::dice::Dice;
use super::tree::{Field, Message, Value};
use super::words::{INSIDE, LOCAL_DOMAIN, MICROSOFT_DOMAIN, OUTSIDE, STRANGE, int, is_of_microsoft, text};

pub(super) const ALL: &[Change] = &[
    ("a node in a body", |dice, root| nest(dice, root, 1)),
    ("a node in nested bodies", |dice, root| {
        let depth = 2 + dice.below(20);
        nest(dice, root, depth);
    }),
    ("bodies beyond every limit", |dice, root| {
        let depth = 25 + dice.below(100);
        nest(dice, root, depth);
    }),
    ("everything in a branch", merge),
    ("everything in a branch", merge),
    ("a body that reads a later value", later),
    ("a node in a function", extract),
    ("a node in a function", extract),
    ("functions that call each other", functions),
    ("functions that call each other", functions),
    ("a function with the name of an operator", operator),
    ("values in another file", external),
    ("values in another file", external),
    ("values in another file", external),
    ("values outside of the folder", outside),
    ("many tensors in one file", many_external),
    ("an earlier input", rewire),
    ("an earlier input", rewire),
    ("a node less", bypass),
    ("a layer twice", copy_layer),
    ("a chain", chain),
    ("a node of everything", fan),
    ("a new operator between two nodes", between),
    ("a new operator between two nodes", between),
    ("a new operator between two nodes", between),
    ("a large value between two nodes", large),
    ("a write more", write),
    ("a ring", ring),
    ("a cache that is read elsewhere", read_elsewhere),
    ("metadata of a converted model", metadata),
    ("metadata of a converted model", metadata),
];

fn node(op_type: &str, inputs: &[&str], output: &str) -> Message {
    let named = Message::new("Node").with("name", format!("n{output}").as_str()).with("op_type", op_type);
    let node = named.with_all("input", inputs.iter().copied());
    if output.is_empty() { node } else { node.with("output", output) }
}

/// Creates a body of `If`, `Loop` or `Scan`. Its outputs only have names.
fn body(name: &str, nodes: impl IntoIterator<Item = Message>, outputs: &[String]) -> Message {
    const GRAPH: i64 = 5;
    let outputs = outputs.iter().map(|name| Message::new("Value").with("name", name.as_str()));
    let graph = Message::new("Graph").with_all("node", nodes).with_all("output", outputs);
    Message::new("Attribute").with("name", name).with("type", GRAPH).with("g", graph)
}

fn int_attribute(name: &str, value: i64) -> Message {
    const INT: i64 = 2;
    Message::new("Attribute").with("name", name).with("type", INT).with("i", value)
}

fn int64s(name: &str, dims: &[i64], values: &[i64]) -> Message {
    let tensor = Message::new("Tensor").with("name", name).with_all("dims", dims.iter().copied());
    tensor.with("data_type", 7).with_all("int64_data", values.iter().copied())
}

fn main_graph(root: &mut Message) -> Option<&mut Message> {
    root.all_mut("graph").next()
}

/// Chooses the graph of the model or, in some cases, any graph in it.
fn graph<'m>(dice: &mut Dice, root: &'m mut Message) -> Option<&'m mut Message> {
    let mut count = 0;
    root.visit(&mut |message| count += usize::from(message.kind.name == "Graph"));
    let mut place = if dice.chance(60) { 0 } else { dice.below(count) };
    root.nth_mut("Graph", &mut place)
}

/// Chooses a graph and the place of a node in it.
fn graph_and_node<'m>(dice: &mut Dice, root: &'m mut Message) -> Option<(&'m mut Message, usize)> {
    let graph = graph(dice, root)?;
    let places = graph.places("node");
    let at = *places.get(dice.below(places.len()))?;
    Some((graph, at))
}

fn node_at(graph: &mut Message, at: usize) -> &mut Message {
    let Value::Message(node) = &mut graph.fields[at].value else { unreachable!("a node is a message") };
    node
}

/// Inserts nodes before the field at a place.
fn insert(graph: &mut Message, at: usize, nodes: impl IntoIterator<Item = Message>) {
    let rule = graph.kind.rule("node");
    let fields = nodes.into_iter().map(|node| Field { rule, value: node.into() });
    graph.fields.splice(at..at, fields.collect::<Vec<_>>());
}

/// Returns the names of the values of a graph that nodes before `end` make, or that are given.
fn values(graph: &Message, end: usize) -> Vec<String> {
    let given = ["input", "initializer"].into_iter().flat_map(|list| graph.all(list));
    let given = given.map(|value| value.text("name"));
    let made = graph.fields[..end].iter().filter(|field| field.rule.name == "node");
    let made = made.flat_map(|field| match &field.value {
        Value::Message(node) => node.texts("output"),
        _ => Vec::new(),
    });
    let names: Vec<_> = given.chain(made).filter(|name| !name.is_empty()).collect();
    if names.is_empty() { vec!["none".to_owned()] } else { names }
}

fn all_values(graph: &Message) -> Vec<String> {
    values(graph, graph.fields.len())
}

/// Adds a declared value of the type that another has.
fn declare(graph: &mut Message, list: &str, like: Option<Message>, name: &str) {
    let mut value = like.unwrap_or_else(|| Message::new("Value"));
    value.set("name", name);
    graph.push(list, value);
}

/// Replaces the input of a node by `new`, and returns the node's place and the name that it read.
fn cut<'m>(dice: &mut Dice, root: &'m mut Message, new: &str) -> Option<(&'m mut Message, usize, String)> {
    let (graph, at) = graph_and_node(dice, root)?;
    let node = node_at(graph, at);
    let inputs = node.places("input");
    let field = &mut node.fields[*inputs.get(dice.below(inputs.len()))?];
    let Value::Bytes(old) = std::mem::replace(&mut field.value, new.into()) else { return None };
    Some((graph, at, String::from_utf8_lossy(&old).into_owned()))
}

/// Replaces a node by a node with a body, whose innermost body has the node.
fn nest(dice: &mut Dice, root: &mut Message, depth: usize) {
    let holders: [(&str, &[&str]); 4] = [
        ("If", &["then_branch", "else_branch"]),
        ("Loop", &["body"]),
        ("Scan", &["body"]),
        ("SequenceMap", &["body"]),
    ];
    let (operator, bodies) = *dice.pick(&holders);
    let Some((graph, at)) = graph_and_node(dice, root) else { return };
    let condition = all_values(graph).swap_remove(0);
    let place = node_at(graph, at);
    let outputs = place.texts("output");
    for level in 0..depth {
        let inner = std::mem::replace(place, node(operator, &[&condition], ""));
        place.push("attribute", body(bodies[0], [inner], &outputs));
        // Only the first body is nested, or the number of nodes would double in each level.
        for name in bodies.iter().skip(1).filter(|_| level < 12) {
            let first = outputs.first().map_or("", String::as_str);
            place.push("attribute", body(name, [node("Neg", &[&condition], first)], &outputs));
        }
        outputs.iter().for_each(|name| place.push("output", name.as_str()));
    }
}

/// Moves all nodes into one branch of an `If`, as exporters of merged decoders do.
fn merge(dice: &mut Dice, root: &mut Message) {
    let Some(graph) = main_graph(root) else { return };
    let outputs: Vec<_> = graph.all("output").map(|output| output.text("name")).collect();
    let first = all_values(graph).swap_remove(0);
    let nodes: Vec<_> = graph.all("node").cloned().collect();
    graph.clear("node");
    let other = match dice.below(3) {
        0 => nodes.clone(),
        _ => outputs.iter().map(|output| node("Neg", &[&first], output)).collect(),
    };
    let mut branches =
        [("then_branch", nodes), ("else_branch", other)].map(|(name, nodes)| body(name, nodes, &outputs));
    if dice.chance(30) {
        branches.swap(0, 1);
    }
    if dice.chance(20)
        && let Some(inner) = branches[0].all_mut("g").next()
    {
        let tensors: Vec<_> = graph.all("initializer").cloned().collect();
        graph.clear("initializer");
        tensors.into_iter().for_each(|tensor| inner.push("initializer", tensor));
    }
    let choice = node("If", &["merged"], "").with_all("output", outputs.iter().map(String::as_str));
    graph.push("node", choice.with_all("attribute", branches));
    let shape = Message::new("Shape").with("dim", Message::new("Dim").with("dim_value", 1));
    let flag = Message::new("TensorType").with("elem_type", 9).with("shape", shape);
    let flag = Message::new("Value").with("type", Message::new("Type").with("tensor_type", flag));
    declare(graph, "input", Some(flag), "merged");
}

/// Puts a node with a body first. The body reads a value that a later node makes.
fn later(dice: &mut Dice, root: &mut Message) {
    let Some(graph) = main_graph(root) else { return };
    let known = all_values(graph);
    let (condition, read) = (dice.pick(&known).clone(), dice.pick(&known).clone());
    let branch = |name| body(name, [node("Neg", &[&read], "inside")], &["inside".to_owned()]);
    let branches = ["then_branch", "else_branch"].map(branch);
    insert(graph, 0, [node("If", &[&condition], "choice").with_all("attribute", branches)]);
}

fn import(root: &mut Message, domain: &str) {
    if !root.all("opset_import").any(|import| import.text("domain") == domain) {
        root.push("opset_import", Message::new("Opset").with("domain", domain).with("version", 1));
    }
}

fn function(root: &Message, name: &str, nodes: impl IntoIterator<Item = Message>) -> Message {
    let function = Message::new("Function").with("name", name).with("domain", LOCAL_DOMAIN);
    function.with_all("node", nodes).with_all("opset_import", root.all("opset_import").cloned())
}

fn call(name: &str, inputs: &[&str], output: &str) -> Message {
    node(name, inputs, output).with("domain", LOCAL_DOMAIN)
}

/// Replaces a node by a call of a function with that node.
fn extract(dice: &mut Dice, root: &mut Message) {
    import(root, LOCAL_DOMAIN);
    let name = format!("f{}", root.places("functions").len());
    let Some((graph, at)) = graph_and_node(dice, root) else { return };
    let place = node_at(graph, at);
    let mut inputs = place.texts("input");
    inputs.retain(|input| !input.is_empty());
    inputs.dedup();
    let [inputs, outputs] = [inputs, place.texts("output")];
    let names: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let new = call(&name, &names, "").with_all("output", outputs.iter().map(String::as_str));
    let inner = std::mem::replace(place, new);
    let made = function(root, &name, [inner]).with_all("input", names);
    root.push("functions", made.with_all("output", outputs.iter().map(String::as_str)));
}

/// Adds functions that call the next one once or twice. The last one calls the first, or none.
fn functions(dice: &mut Dice, root: &mut Message) {
    import(root, LOCAL_DOMAIN);
    let count: usize = *dice.pick(&[1, 2, 3, 4, 10, 14, 15, 30, 40, 200]);
    let (is_cycle, is_twice) = (dice.chance(40), dice.chance(50));
    for at in 0..count {
        let next = format!("m{}", (at + 1) % count);
        let nodes = match is_twice {
            _ if at + 1 == count && !is_cycle => vec![node("Identity", &["a"], "z")],
            true => vec![call(&next, &["a"], "b"), call(&next, &["b"], "z")],
            false => vec![call(&next, &["a"], "z")],
        };
        let made = function(root, &format!("m{at}"), nodes).with("input", "a").with("output", "z");
        root.push("functions", made);
    }
    if let Some((graph, at, read)) = cut(dice, root, "called") {
        insert(graph, at, [call("m0", &[&read], "called")]);
    }
}

/// Adds a function that has the name of an operator of the model.
fn operator(dice: &mut Dice, root: &mut Message) {
    let Some((graph, at)) = graph_and_node(dice, root) else { return };
    let node_of = node_at(graph, at).clone();
    let nodes = [node("Identity", &["a"], "z")];
    let mut made = function(root, &node_of.text("op_type"), nodes).with("input", "a").with("output", "z");
    made.set("domain", node_of.text("domain").as_str());
    root.push("functions", made);
}

/// Makes a tensor refer to bytes of another file.
fn refer(tensor: &mut Message, location: &str, offset: &str, length: Option<&str>) {
    for name in ["raw_data", "int64_data", "float_data", "external_data"] {
        tensor.clear(name);
    }
    tensor.set("data_location", 1);
    let entries = [("location", Some(location)), ("offset", Some(offset)), ("length", length)];
    for (key, value) in entries.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        tensor.push("external_data", Message::new("Entry").with("key", key).with("value", value));
    }
}

fn tensor<'m>(dice: &mut Dice, root: &'m mut Message) -> Option<&'m mut Message> {
    let mut count = 0;
    root.visit(&mut |message| count += usize::from(message.kind.name == "Tensor"));
    root.nth_mut("Tensor", &mut dice.below(count))
}

/// Refers to as many bytes as a tensor has in most cases. [`Scene`](crate::scene::Scene) has the files.
fn external(dice: &mut Dice, root: &mut Message) {
    let numbers = ["0", "4090", "4096", "18446744073709551615", "9223372036854775807", "1099511627776"];
    for _ in 0..=dice.below(3) {
        let is_valid = dice.chance(70);
        let Some(tensor) = tensor(dice, root) else { return };
        let raw = tensor.texts("raw_data").first().map(String::len);
        let length = raw.unwrap_or(8 * tensor.places("int64_data").len());
        if is_valid && (1..=1024).contains(&length) {
            let offset = 8 * dice.below(16);
            let location = *dice.pick(&INSIDE);
            refer(tensor, location, &offset.to_string(), Some(&length.to_string()));
        } else if !is_valid {
            let (offset, length) = (*dice.pick(&numbers), *dice.pick(&numbers));
            let location = if dice.chance(50) { *dice.pick(&STRANGE) } else { "data.bin" };
            refer(tensor, location, offset, Some(length).filter(|_| dice.chance(70)));
        }
    }
}

/// Refers to a file outside of the folder, from a tensor that may be where few programs look.
fn outside(dice: &mut Dice, root: &mut Message) {
    let location = *dice.pick(&OUTSIDE);
    if dice.chance(50) {
        if let Some(tensor) = tensor(dice, root) {
            refer(tensor, location, "0", Some("8"));
        }
        return;
    }
    let mut corner = int64s("corner", &[1], &[]);
    refer(&mut corner, location, "0", Some("8"));
    let sparse = || Message::new("Sparse").with("values", corner.clone());
    let inner = || Message::new("Graph").with("initializer", corner.clone());
    let attribute = |name, value: Message| Message::new("Attribute").with(name, value);
    let attribute = match dice.below(6) {
        0 => return root.push("training_info", Message::new("Training").with("algorithm", inner())),
        1 => {
            let sparse = sparse();
            return main_graph(root)
                .into_iter()
                .for_each(|graph| graph.push("sparse_initializer", sparse.clone()));
        }
        2 => attribute("g", inner()),
        3 => attribute("tensors", corner.clone()),
        4 => attribute("sparse_tensors", sparse()),
        _ => attribute("t", corner.clone()),
    };
    let function = root.all_mut("functions").next().filter(|_| dice.chance(50));
    if let Some(function) = function {
        function.push("attribute_proto", attribute);
    } else if let Some((graph, at)) = graph_and_node(dice, root) {
        node_at(graph, at).push("attribute", attribute);
    }
}

/// Adds tensors that share all or most of their bytes.
fn many_external(dice: &mut Dice, root: &mut Message) {
    let (count, step) = (*dice.pick(&[5, 100, 1000]), *dice.pick(&[0, 1, 8]));
    let Some(graph) = main_graph(root) else { return };
    for at in 0..count {
        let mut tensor = int64s(&format!("external{at}"), &[64], &[]);
        refer(&mut tensor, "data.bin", &(at * step).to_string(), Some("512"));
        graph.push("initializer", tensor);
    }
}

/// Makes a node read another value that is made before it.
fn rewire(dice: &mut Dice, root: &mut Message) {
    if let Some((graph, at, _)) = cut(dice, root, "rewired") {
        let known = values(graph, at);
        let new = dice.pick(&known).clone();
        rename(graph, "rewired", &new);
    }
}

/// Renames a value in all inputs of nodes.
fn rename(graph: &mut Message, old: &str, new: &str) {
    for node in graph.all_mut("node") {
        let inputs = node.fields.iter_mut().filter(|field| field.rule.name == "input");
        inputs.filter(|field| field.value.is(&old.into())).for_each(|field| field.value = new.into());
    }
}

/// Removes a node. Its readers read its first input instead in most cases.
fn bypass(dice: &mut Dice, root: &mut Message) {
    let Some((graph, at)) = graph_and_node(dice, root) else { return };
    let node = node_at(graph, at).clone();
    graph.fields.remove(at);
    if dice.chance(80)
        && let (Some(from), Some(to)) = (node.texts("output").first(), node.texts("input").first())
    {
        rename(graph, from, to);
    }
}

/// Appends the nodes again, with other names of their values.
fn copy_layer(dice: &mut Dice, root: &mut Message) {
    let Some(graph) = main_graph(root).filter(|graph| graph.places("node").len() <= 200) else { return };
    let mut copies: Vec<_> = graph.all("node").cloned().collect();
    let made: Vec<_> = copies.iter().flat_map(|node| node.texts("output")).collect();
    for field in copies.iter_mut().flat_map(|node| &mut node.fields) {
        if let ("input" | "output", Value::Bytes(name)) = (field.rule.name, &mut field.value)
            && made.iter().any(|made| made.as_bytes() == name)
        {
            name.extend(b"_2");
        }
    }
    copies.into_iter().for_each(|node| graph.push("node", node));
    if dice.chance(50) {
        let outputs: Vec<_> = graph.all("output").cloned().collect();
        for output in outputs {
            let name = output.text("name") + "_2";
            declare(graph, "output", Some(output), &name);
        }
    }
}

fn chain(dice: &mut Dice, root: &mut Message) {
    let operator = *dice.pick(&["Identity", "Neg", "Cast", "Unsqueeze", "Shape"]);
    let count = *dice.pick(&[3, 50, 2000]);
    let Some(graph) = graph(dice, root) else { return };
    let known = all_values(graph);
    let mut last = dice.pick(&known).clone();
    for at in 0..count {
        let next = format!("chain{at}");
        graph.push("node", node(operator, &[&last], &next));
        last = next;
    }
    if let Some(output) = graph.all_mut("output").next() {
        output.set("name", last.as_str());
    }
}

fn fan(dice: &mut Dice, root: &mut Message) {
    let Some(graph) = graph(dice, root) else { return };
    let known = all_values(graph);
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let operator = *dice.pick(&["Sum", "Concat", "Attention", "Max", "Odd"]);
    graph.push("node", node(operator, &known, "fan"));
    let like = graph.all("output").next().cloned();
    declare(graph, "output", like, "fan");
}

/// Puts a node between a value and one of its readers.
fn between(dice: &mut Dice, root: &mut Message) {
    import(root, MICROSOFT_DOMAIN);
    let (operator, numbers) = (text(dice, "Node", "op_type"), [int(dice, "i"), int(dice, "i")]);
    let Some((graph, at, read)) = cut(dice, root, "between") else { return };
    let known = all_values(graph);
    let mut inputs = vec![read];
    for _ in 0..*dice.pick(&[0, 0, 1, 2, 4]) {
        inputs.push(if dice.chance(50) { inputs[0].clone() } else { dice.pick(&known).clone() });
    }
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let mut new = node(&operator, &inputs, "between");
    if is_of_microsoft(&operator) {
        new.push("domain", MICROSOFT_DOMAIN);
    }
    let names = *dice.pick(&[["axis", "to"], ["to", "num_heads"], ["num_heads", "kv_num_heads"]]);
    if dice.chance(75) {
        new = new
            .with_all("attribute", names.into_iter().zip(numbers).map(|(name, it)| int_attribute(name, it)));
    }
    insert(graph, at, [new]);
}

/// Puts a value of many elements between a value and one of its readers, by a few bytes in the file.
fn large(dice: &mut Dice, root: &mut Message) {
    let side = *dice.pick(&[1000, 2048, 4096, 1 << 20, 1 << 40]);
    let Some((graph, at, read)) = cut(dice, root, "large") else { return };
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
    insert(graph, at, new);
    graph.push("initializer", int64s("large_shape", &[2], &[side, side]));
}

/// Chooses an input of the model.
fn model_input(dice: &mut Dice, graph: &Message) -> Option<Message> {
    let inputs: Vec<_> = graph.all("input").cloned().collect();
    inputs.get(dice.below(inputs.len())).cloned()
}

/// Writes rows into an input that returns as an output.
fn write(dice: &mut Dice, root: &mut Message) {
    let Some(graph) = main_graph(root) else { return };
    let known = all_values(graph);
    let Some(past) = model_input(dice, graph) else { return };
    let inputs = [&past.text("name"), dice.pick(&known).as_str(), dice.pick(&known).as_str()];
    let mut scatter = node("TensorScatter", &inputs, "written");
    if dice.chance(60) {
        let axis = i64::try_from(dice.below(7)).unwrap() - 3;
        scatter.push("attribute", int_attribute("axis", axis));
    }
    if dice.chance(40) {
        scatter.push("attribute", mode("circular"));
    }
    graph.push("node", scatter);
    declare(graph, "output", Some(past), "written");
}

fn mode(value: &str) -> Message {
    const STRING: i64 = 3;
    Message::new("Attribute").with("name", "mode").with("type", STRING).with("s", value)
}

fn ring(dice: &mut Dice, root: &mut Message) {
    let value = *dice.pick(&["circular", "circular", "linear", "Circular", ""]);
    let Some(graph) = main_graph(root) else { return };
    for node in graph.all_mut("node").filter(|node| node.text("op_type") == "TensorScatter") {
        node.fields.retain(|field| match &field.value {
            Value::Message(attribute) => attribute.text("name") != "mode",
            _ => true,
        });
        node.push("attribute", mode(value));
    }
}

fn read_elsewhere(dice: &mut Dice, root: &mut Message) {
    let Some(graph) = main_graph(root) else { return };
    let Some(input) = model_input(dice, graph) else { return };
    let operator = *dice.pick(&["Identity", "Shape", "Cast", "MatMul", "ReduceSum"]);
    insert(graph, 0, [node(operator, &[&input.text("name")], "elsewhere")]);
    if dice.chance(50) {
        declare(graph, "output", Some(input), "elsewhere");
    }
}

fn metadata(dice: &mut Dice, root: &mut Message) {
    let [key, value] = ["key", "value"].map(|field| text(dice, "Entry", field));
    root.push(
        "metadata_props",
        Message::new("Entry").with("key", key.as_str()).with("value", value.as_str()),
    );
}
