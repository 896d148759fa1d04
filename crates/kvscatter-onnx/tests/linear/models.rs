//! Models with many of one thing. Those that start from a decoder use one that every pass accepts, so that no
//! pass ends at its first check.

use kvscatter::ElementType;
use kvscatter_onnx::Model;
use kvscatter_onnx::proto::{
    FunctionProto, GraphProto, NodeProto, StringStringEntryProto, TensorProto, ValueInfoProto,
};

use crate::support::{
    bytes, graph as body, int, int64s, ints, load, model, node, opset, scatter, tensor, value,
};

/// The name of the thing, the smallest number of it, and a function that makes a model with that many.
type Family = (&'static str, usize, fn(usize) -> Model);

pub(crate) const ALL: &[Family] = &[
    ("inputs", 200, inputs),
    ("inputs of one hub", 200, hub),
    ("outputs", 200, outputs),
    ("initializers", 200, initializers),
    ("nodes in a chain", 200, chain),
    ("nodes after one value", 200, fan),
    ("value infos", 200, value_infos),
    ("attributes of Attention", 200, attributes),
    ("operator sets", 200, operator_sets),
    ("operator sets beside caches", 50, operator_sets_beside_caches),
    ("metadata", 200, metadata),
    ("layers of Attention", 25, attention_layers),
    ("layers of Concat", 12, concat_layers),
    ("layers of TensorScatter", 50, scatter_layers),
    ("caches of one node", 100, one_node),
    ("caches read by one node", 50, read_by_one),
    ("shapes asked of pasts by one node", 25, shapes_of_pasts),
    ("characters of an operator with as many caches", 100, long_operator),
    ("masks in a chain", 50, masks),
    ("layers with separate masks", 12, own_masks),
    ("writes in a chain", 100, writes),
    ("writes in a chain of caches of as many dimensions", 100, wide_writes),
    ("joined inputs that are no caches", 50, joined),
    ("symbols in a chain", 100, symbols),
    ("calls of functions", 25, functions),
    ("calls of a long function", 25, long_function),
    ("functions that call the next twice", 6, doubling),
    ("conditions", 50, conditions),
    ("values captured by a condition", 100, captures),
    ("values inside of nested conditions", 50, nested),
    ("layers of a merged decoder", 12, merged_layers),
    ("values of a branch with names of the outer graph", 50, merged_names),
    ("values inside of nested conditions in a branch", 50, merged_nested),
    ("values that cannot be computed", 50, failing),
    ("inputs and outputs of one unknown node", 50, unknown),
    ("caches after one large constant", 25, large_constant),
    ("tensors in other files", 100, external),
];

const FLOAT: ElementType = ElementType::Float32;
const INT: ElementType = ElementType::Int64;

fn each<T>(count: usize, what: &str, make: impl Fn(&str) -> T) -> Vec<T> {
    (0..count).map(|at| make(&format!("{what}{at}"))).collect()
}

fn graph(model: &mut Model) -> &mut GraphProto {
    model.proto_mut().graph.get_or_insert_default()
}

/// Creates a decoder that can be converted.
fn decoder() -> Model {
    attention_layers(1)
}

fn floats(name: &str, dims: &[i64]) -> TensorProto {
    let count = usize::try_from(dims.iter().product::<i64>()).unwrap();
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(FLOAT.onnx_code()),
        raw_data: Some(vec![0; 4 * count]),
        ..TensorProto::default()
    }
}

/// Returns the token ids, their table and the node that makes their embeddings `x`.
fn embedded() -> (ValueInfoProto, TensorProto, NodeProto) {
    let tokens = value("input_ids", INT, &["batch", "tokens"]);
    (tokens, floats("table", &[100, 8]), node("Gather", &["table", "input_ids"], "x"))
}

fn attention_layers(count: usize) -> Model {
    let (tokens, table, gather) = embedded();
    let (mut all, mut outputs) = (vec![tokens], vec![]);
    let mut nodes = vec![gather];
    let mut queries = "x".to_owned();
    for layer in 0..count {
        let names = ["past_k", "past_v", "k", "v"].map(|what| format!("{what}{layer}"));
        for past in &names[..2] {
            all.push(value(past, FLOAT, &["batch", "2", "past", "4"]));
        }
        for present in &names[2..] {
            outputs.push(value(present, FLOAT, &["batch", "2", "total", "4"]));
        }
        let result = format!("y{layer}");
        let mut attention = node("Attention", &[&queries, "x", "x", "", &names[0], &names[1]], &result);
        queries = result;
        attention.output.extend(names[2..].iter().cloned());
        attention.attribute = vec![int("q_num_heads", 2), int("kv_num_heads", 2), int("is_causal", 1)];
        nodes.push(attention);
    }
    outputs.push(value(&queries, FLOAT, &["batch", "tokens", "8"]));
    let mut model = model(all, nodes, outputs);
    graph(&mut model).initializer = vec![table];
    model
}

/// Makes layers of attention from separate nodes, all with one causal mask and one for padding. They can become
/// one node each.
fn concat_layers(count: usize) -> Model {
    let (tokens, _, gather) = embedded();
    let mask = value("attention_mask", INT, &["batch", "total"]);
    let (mut all, mut outputs) = (vec![tokens, mask], vec![]);
    let range = |start: &str, end: &str, output: &str| node("Range", &[start, end, "one"], output);
    let size = |of: &str, at: i64, output: &str| {
        let mut shape = node("Shape", &[of], &format!("{output}_1"));
        shape.attribute = vec![int("start", at), int("end", at + 1)];
        [shape, node("Squeeze", &[&format!("{output}_1")], output)]
    };
    let unsqueeze = |value: &str, axes: &str, output: &str| node("Unsqueeze", &[value, axes], output);
    let turned = |value: &str, perm: &[i64], output: &str| {
        let mut transpose = node("Transpose", &[value], output);
        transpose.attribute = vec![ints("perm", perm)];
        transpose
    };
    let mut nodes = vec![gather];
    nodes.extend(size("past_k0", 2, "length"));
    nodes.extend(size("input_ids", 1, "new"));
    nodes.push(node("Add", &["length", "new"], "total"));
    nodes.push(range("zero", "total", "slots"));
    nodes.push(range("length", "total", "places"));
    nodes.push(unsqueeze("places", "last", "column"));
    nodes.push(node("LessOrEqual", &["slots", "column"], "causal"));
    let mut real = node("Cast", &["attention_mask"], "flags");
    real.attribute = vec![int("to", ElementType::Bool.onnx_code().into())];
    nodes.push(real);
    nodes.push(unsqueeze("flags", "inner", "real"));
    nodes.push(node("And", &["causal", "real"], "visible"));
    nodes.push(node("Reshape", &["x", "by_head"], "split"));
    nodes.push(turned("split", &[0, 2, 1, 3], "rows"));
    let mut sum = "rows".to_owned();
    for layer in 0..count {
        let name = |what: &str| format!("{what}{layer}");
        for part in ["k", "v"] {
            let (past, present) = (name(&format!("past_{part}")), name(part));
            let mut concat = node("Concat", &[&past, "rows"], &present);
            concat.attribute = vec![int("axis", 2)];
            nodes.push(concat);
            all.push(value(&past, FLOAT, &["batch", "2", "past", "4"]));
            outputs.push(value(&present, FLOAT, &["batch", "2", "total", "4"]));
        }
        nodes.push(turned(&name("k"), &[0, 1, 3, 2], &name("turned")));
        nodes.push(node("MatMul", &["rows", &name("turned")], &name("scores")));
        nodes.push(node("Where", &["visible", &name("scores"), "low"], &name("masked")));
        nodes.push(node("Softmax", &[&name("masked")], &name("weights")));
        nodes.push(node("MatMul", &[&name("weights"), &name("v")], &name("y")));
        nodes.push(node("Add", &[&sum, &name("y")], &name("sum")));
        sum = name("sum");
    }
    nodes.push(turned(&sum, &[0, 2, 1, 3], "by_token"));
    nodes.push(node("Reshape", &["by_token", "flat"], "logits"));
    outputs.push(value("logits", FLOAT, &["batch", "tokens", "8"]));
    let mut model = model(all, nodes, outputs);
    let mut low = floats("low", &[]);
    low.raw_data = Some(f32::MIN.to_le_bytes().to_vec());
    graph(&mut model).initializer = vec![
        // The table has as many rows as there are logits, so its indices are tokens.
        floats("table", &[8, 8]),
        low,
        int64s("zero", &[], &[0]),
        int64s("one", &[], &[1]),
        int64s("last", &[1], &[-1]),
        int64s("inner", &[2], &[1, 2]),
        int64s("by_head", &[4], &[0, 0, 2, 4]),
        int64s("flat", &[3], &[0, 0, 8]),
    ];
    model
}

fn scatter_layers(count: usize) -> Model {
    let (tokens, table, gather) = embedded();
    let at = value("write_indices", INT, &["batch"]);
    let (mut all, mut outputs) = (vec![tokens, at], vec![value("x", FLOAT, &["batch", "tokens", "8"])]);
    let mut nodes = vec![gather, node("Reshape", &["x", "by_head"], "rows")];
    for layer in 0..count {
        let (past, present) = (format!("past{layer}"), format!("present{layer}"));
        all.push(value(&past, FLOAT, &["batch", "64", "8"]));
        outputs.push(value(&present, FLOAT, &["batch", "64", "8"]));
        nodes.push(scatter(&[&past, "rows", "write_indices"], &present));
    }
    let mut model = model(all, nodes, outputs);
    graph(&mut model).initializer = vec![table, int64s("by_head", &[3], &[0, 0, 8])];
    model
}

fn inputs(count: usize) -> Model {
    let mut model = decoder();
    graph(&mut model).input.extend(each(count, "extra", |name| value(name, FLOAT, &["2", "3"])));
    model
}

/// Creates a model in which every input leads to the same few hundred nodes.
fn hub(count: usize) -> Model {
    let mut model = inputs(count);
    let names = each(count, "extra", str::to_owned);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let graph = graph(&mut model);
    graph.node.push(node("Sum", &names, "hub"));
    graph.node.extend(names.iter().map(|name| node("Neg", &[name], &format!("{name}_out"))));
    graph.output.push(value("hub", FLOAT, &["2", "3"]));
    let adds = names.iter().map(|name| node("Add", &[name, "extra0"], &format!("{name}_sum")));
    graph.node.extend(adds);
    graph.output.extend(names.iter().map(|name| value(&format!("{name}_sum"), FLOAT, &["2", "3"])));
    model
}

fn outputs(count: usize) -> Model {
    let mut model = decoder();
    let graph = graph(&mut model);
    graph.node.extend(each(count, "extra", |name| node("Neg", &["y0"], name)));
    graph.output.extend(each(count, "extra", |name| value(name, FLOAT, &["batch", "tokens", "8"])));
    model
}

fn initializers(count: usize) -> Model {
    let mut model = decoder();
    let graph = graph(&mut model);
    graph.initializer.extend(each(count, "extra", |name| floats(name, &[8])));
    graph.node.extend((0..count).map(|at| node("Add", &["y0", &format!("extra{at}")], &format!("sum{at}"))));
    graph.output.extend(each(count, "sum", |name| value(name, FLOAT, &["batch", "tokens", "8"])));
    model
}

fn chain(count: usize) -> Model {
    let mut model = decoder();
    let graph = graph(&mut model);
    let link = |at: usize| if at == 0 { "y0".to_owned() } else { format!("link{at}") };
    graph.node.extend((0..count).map(|at| node("Neg", &[&link(at)], &link(at + 1))));
    graph.output.push(value(&link(count), FLOAT, &["batch", "tokens", "8"]));
    model
}

fn fan(count: usize) -> Model {
    let mut model = decoder();
    let graph = graph(&mut model);
    graph.node.extend(each(count, "fan", |name| node("Neg", &["y0"], name)));
    let names = each(count, "fan", str::to_owned);
    graph.node.push(node("Sum", &names.iter().map(String::as_str).collect::<Vec<_>>(), "sum"));
    graph.output.push(value("sum", FLOAT, &["batch", "tokens", "8"]));
    model
}

fn value_infos(count: usize) -> Model {
    let mut model = decoder();
    graph(&mut model).value_info = each(count, "nothing", |name| value(name, FLOAT, &["batch"]));
    model
}

fn attributes(count: usize) -> Model {
    let mut model = decoder();
    let attention = graph(&mut model).node.last_mut().unwrap();
    attention.attribute.extend(each(count, "unknown", |name| int(name, 0)));
    model
}

fn operator_sets(count: usize) -> Model {
    let mut model = decoder();
    model.proto_mut().opset_import.extend(each(count, "domain", |domain| opset(domain, 1)));
    model
}

fn operator_sets_beside_caches(count: usize) -> Model {
    let mut model = scatter_layers(count);
    model.proto_mut().opset_import.extend(each(count, "domain", |domain| opset(domain, 1)));
    model
}

fn metadata(count: usize) -> Model {
    let mut model = decoder();
    model.proto_mut().metadata_props = each(count, "key", |key| StringStringEntryProto {
        key: Some(key.to_owned()),
        ..StringStringEntryProto::default()
    });
    model
}

/// Creates a node of an unknown operator with this many caches.
fn unknown_operator(count: usize, op_type: &str) -> Model {
    let (pasts, presents) = (each(count, "past", str::to_owned), each(count, "present", str::to_owned));
    let mut all = node(op_type, &pasts.iter().map(String::as_str).collect::<Vec<_>>(), "x");
    all.domain = Some("com.microsoft".to_owned());
    all.output.clone_from(&presents);
    let declare = |names: &[String]| {
        names.iter().map(|name| value(name, FLOAT, &["batch", "2", "past", "4"])).collect::<Vec<_>>()
    };
    let mut model = model(declare(&pasts), vec![all], declare(&presents));
    model.proto_mut().opset_import.push(opset("com.microsoft", 1));
    model
}

fn one_node(count: usize) -> Model {
    unknown_operator(count, "Everything")
}

fn long_operator(count: usize) -> Model {
    unknown_operator(count, &"x".repeat(100 * count))
}

fn read_by_one(count: usize) -> Model {
    let mut model = scatter_layers(count);
    let names: Vec<_> = each(count, "past", str::to_owned);
    let mut sum = node("Sum", &names.iter().map(String::as_str).collect::<Vec<_>>(), "sum");
    sum.name = Some("n".repeat(50 * count));
    graph(&mut model).node.push(sum);
    model
}

fn shapes_of_pasts(count: usize) -> Model {
    let mut model = concat_layers(count);
    let graph = graph(&mut model);
    // A node after `Concat` makes the output, so the conversion replaces reads of one value with reads of the
    // other.
    for at in 0..count {
        let (made, present) = (format!("made{at}"), format!("k{at}"));
        let concat = graph.node.iter_mut().find(|node| node.output.first() == Some(&present)).unwrap();
        concat.output = vec![made.clone()];
        let place = graph.node.iter().position(|node| node.output.first() == Some(&made)).unwrap();
        graph.node.insert(place + 1, node("Identity", &[&made], &present));
    }
    let made = each(count, "made", str::to_owned);
    graph.node.push(node("Shape", &made.iter().map(String::as_str).collect::<Vec<_>>(), "shapes"));
    graph.output.push(value("shapes", INT, &["4"]));
    model
}

/// Makes scores with a chain of masks.
fn masks(count: usize) -> Model {
    let mut model = concat_layers(1);
    let graph = graph(&mut model);
    let link = |at: usize| match at {
        0 => "scores0".to_owned(),
        at if at == count => "masked0".to_owned(),
        at => format!("link{at}"),
    };
    let place = graph.node.iter().position(|node| node.output[0] == "masked0").unwrap();
    let chain = (0..count).map(|at| node("Where", &["visible", &link(at), "low"], &link(at + 1)));
    graph.node.splice(place..=place, chain);
    model
}

fn own_masks(count: usize) -> Model {
    let mut model = concat_layers(count);
    let graph = graph(&mut model);
    for at in 0..count {
        let place = graph.node.iter().position(|node| node.output[0] == format!("masked{at}")).unwrap();
        graph.node[place].input[0] = format!("visible{at}");
        graph.node.insert(place, node("Identity", &["visible"], &format!("visible{at}")));
    }
    model
}

fn writes(count: usize) -> Model {
    chained(count, &["batch", "64", "8"], &["batch", "tokens", "8"])
}

fn wide_writes(count: usize) -> Model {
    let mut dims = vec!["1"; count];
    dims[1] = "64";
    let mut update = dims.clone();
    update[1] = "2";
    chained(count, &dims, &update)
}

fn chained(count: usize, cache: &[&str], update: &[&str]) -> Model {
    let link = |at: usize| if at == 0 { "past".to_owned() } else { format!("link{at}") };
    let nodes = (0..count).map(|at| scatter(&[&link(at), "new", "at"], &link(at + 1))).collect();
    let inputs =
        vec![value("past", FLOAT, cache), value("new", FLOAT, update), value("at", INT, &[cache[0]])];
    model(inputs, nodes, vec![value(&link(count), FLOAT, cache)])
}

/// Makes inputs that `Concat` appends to and that do not look like a cache.
fn joined(count: usize) -> Model {
    let mut model = concat_layers(count);
    let graph = graph(&mut model);
    graph
        .input
        .extend(each(count, "flags", |name| value(name, ElementType::Bool, &["batch", "2", "past", "4"])));
    graph.node.extend((0..count).map(|at| {
        let mut concat = node("Concat", &[&format!("flags{at}"), "visible"], &format!("joined{at}"));
        concat.attribute = vec![int("axis", 2)];
        concat
    }));
    model
}

/// Makes caches that each equate one symbol with another, and more caches that look up each symbol.
fn symbols(count: usize) -> Model {
    let mut model = scatter_layers(2 * count);
    let graph = graph(&mut model);
    let symbol = |at: usize| format!("d{at}");
    for at in 0..count {
        let declare = |values: &mut Vec<ValueInfoProto>, name: &str, last: &str| {
            values.retain(|value| value.name.as_deref() != Some(name));
            values.push(value(name, FLOAT, &["batch", "64", last]));
        };
        let later = count + at;
        declare(&mut graph.input, &format!("past{at}"), &symbol(at));
        declare(&mut graph.output, &format!("present{at}"), &symbol(at + 1));
        declare(&mut graph.input, &format!("past{later}"), &symbol(at));
        declare(&mut graph.output, &format!("present{later}"), &symbol(at));
    }
    model
}

fn function(name: &str, nodes: Vec<NodeProto>) -> FunctionProto {
    FunctionProto {
        name: Some(name.to_owned()),
        domain: Some("local".to_owned()),
        input: vec!["a".to_owned()],
        output: vec!["z".to_owned()],
        node: nodes,
        opset_import: vec![opset("", 24), opset("local", 1)],
        ..FunctionProto::default()
    }
}

fn call(name: &str, input: &str, output: &str) -> NodeProto {
    let mut call = node(name, &[input], output);
    call.domain = Some("local".to_owned());
    call
}

/// Creates a decoder that calls functions one after another.
fn calling(functions: Vec<FunctionProto>, calls: usize, name: impl Fn(usize) -> String) -> Model {
    let mut model = decoder();
    let link = |at: usize| if at == 0 { "y0".to_owned() } else { format!("link{at}") };
    let graph = graph(&mut model);
    graph.node.extend((0..calls).map(|at| call(&name(at), &link(at), &link(at + 1))));
    graph.output.push(value(&link(calls), FLOAT, &["batch", "tokens", "8"]));
    model.proto_mut().functions = functions;
    model.proto_mut().opset_import.push(opset("local", 1));
    model
}

fn functions(count: usize) -> Model {
    let all = each(count, "f", |name| function(name, vec![node("Neg", &["a"], "z")]));
    calling(all, count, |at| format!("f{at}"))
}

fn long_function(count: usize) -> Model {
    let link = |at: usize| match at {
        0 => "a".to_owned(),
        at if at == count => "z".to_owned(),
        at => format!("l{at}"),
    };
    let nodes = (0..count).map(|at| node("Neg", &[&link(at)], &link(at + 1))).collect();
    let mut long = function("f", nodes);
    long.opset_import.extend(each(count, "domain", |domain| opset(domain, 1)));
    calling(vec![long], 4, |_| "f".to_owned())
}

/// Makes functions whose number of calls is two to the power of the number of functions.
fn doubling(count: usize) -> Model {
    let mut all: Vec<_> = (0..count)
        .map(|at| {
            let next = format!("f{}", at + 1);
            function(&format!("f{at}"), vec![call(&next, "a", "b"), call(&next, "b", "z")])
        })
        .collect();
    all.push(function(&format!("f{count}"), vec![node("Neg", &["a"], "z")]));
    calling(all, 1, |_| "f0".to_owned())
}

fn conditions(count: usize) -> Model {
    let mut model = decoder();
    let graph = graph(&mut model);
    graph.input.push(value("flag", ElementType::Bool, &["1"]));
    graph.node.extend(each(count, "choice", |name| {
        let mut choice = node("If", &["flag"], name);
        let branch = |what: &str| {
            body(what, vec![node("Neg", &["y0"], &format!("{name}_in"))], &[&format!("{name}_in")])
        };
        choice.attribute = vec![branch("then_branch"), branch("else_branch")];
        choice
    }));
    graph.output.extend(each(count, "choice", |name| value(name, FLOAT, &["batch", "tokens", "8"])));
    model
}

fn captures(count: usize) -> Model {
    let mut model = inputs(count);
    let names = each(count, "extra", str::to_owned);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let graph = graph(&mut model);
    graph.input.push(value("flag", ElementType::Bool, &["1"]));
    let mut choice = node("If", &["flag"], "choice");
    let branch = |what: &str, output: &str| body(what, vec![node("Sum", &names, output)], &[output]);
    choice.attribute = vec![branch("then_branch", "inner"), branch("else_branch", "other")];
    graph.node.push(choice);
    graph.output.push(value("choice", FLOAT, &["2", "3"]));
    model
}

/// Makes twenty nested bodies, of which the innermost is long.
fn nested(count: usize) -> Model {
    let link = |at: usize| if at == 0 { "y0".to_owned() } else { format!("link{at}") };
    let mut nodes: Vec<_> = (0..count).map(|at| node("Neg", &[&link(at)], &link(at + 1))).collect();
    let mut result = link(count);
    for depth in 0..20 {
        let mut choice = node("If", &["flag"], &format!("choice{depth}"));
        choice.attribute = vec![body("then_branch", nodes, &[&result])];
        result = format!("choice{depth}");
        nodes = vec![choice];
    }
    let mut model = decoder();
    let graph = graph(&mut model);
    graph.input.push(value("flag", ElementType::Bool, &["1"]));
    graph.node.extend(nodes);
    graph.output.push(value(&result, FLOAT, &["batch", "tokens", "8"]));
    model
}

/// Merges a decoder with one without a past. `change` changes the branch with the past.
fn merged(mut model: Model, change: impl FnOnce(&mut Vec<NodeProto>)) -> Model {
    let graph = graph(&mut model);
    let outputs: Vec<String> = graph.output.iter().filter_map(|output| output.name.clone()).collect();
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let mut nodes = std::mem::take(&mut graph.node);
    change(&mut nodes);
    let without = outputs.iter().map(|output| node("Neg", &["input_ids"], output)).collect();
    let mut choice = node("If", &["merged"], "");
    choice.output = outputs.iter().map(|&output| output.to_owned()).collect();
    choice.attribute = vec![body("then_branch", nodes, &outputs), body("else_branch", without, &outputs)];
    graph.node = vec![choice];
    graph.input.push(value("merged", ElementType::Bool, &["1"]));
    model
}

fn merged_layers(count: usize) -> Model {
    merged(concat_layers(count), |_| ())
}

fn merged_names(count: usize) -> Model {
    let names = each(count, "same", str::to_owned);
    let mut model = merged(concat_layers(1), |nodes| {
        nodes.extend(names.iter().map(|name| node("Neg", &["x"], name)));
    });
    let graph = graph(&mut model);
    for name in names.iter().rev() {
        graph.node.insert(0, node("Neg", &["input_ids"], name));
    }
    model
}

/// Makes twenty nested bodies in a branch. Each of them reads a value of the branch and defines its name again.
fn merged_nested(count: usize) -> Model {
    merged(concat_layers(1), |branch| {
        let mut nodes: Vec<_> = each(count, "inner", |name| node("Neg", &["x"], name));
        for depth in 0..20 {
            let result = nodes.last().unwrap().output[0].clone();
            let mut choice = node("If", &["visible"], &format!("choice{depth}"));
            choice.attribute = vec![body("then_branch", nodes, &[&result])];
            nodes = vec![node("Neg", &["k0"], "rows"), choice];
        }
        branch.extend(nodes.pop());
    })
}

/// Makes positions that depend on the past, which are replaced, and a chain of nodes with unsupported
/// operators.
fn failing(count: usize) -> Model {
    let mut model = concat_layers(1);
    let graph = graph(&mut model);
    let link = |at: usize| if at == 0 { "link".to_owned() } else { format!("link{at}") };
    let mut odd = node("Odd", &["x"], "link");
    odd.domain = Some("strange".to_owned());
    graph.node.push(odd);
    graph.node.extend((0..count).map(|at| node("Neg", &[&link(at)], &link(at + 1))));
    // This is another value that depends on the length of the past.
    graph.node.push(node("Unsqueeze", &["places", "last"], "rows_of_places"));
    graph.output.push(value("rows_of_places", INT, &["tokens", "1"]));
    model.proto_mut().opset_import.push(opset("strange", 1));
    model
}

fn unknown(count: usize) -> Model {
    let mut model = failing(1);
    let graph = graph(&mut model);
    let names = each(count, "extra", str::to_owned);
    graph.input.extend(names.iter().map(|name| value(name, FLOAT, &["2"])));
    let mut odd = node("Odd", &names.iter().map(String::as_str).collect::<Vec<_>>(), "odd");
    odd.domain = Some("strange".to_owned());
    odd.output = each(count, "odd", str::to_owned);
    graph.node.push(odd);
    model
}

fn large_constant(count: usize) -> Model {
    let mut model = scatter_layers(count);
    let graph = graph(&mut model);
    // This is more than a path may contain, for any count.
    let size = i64::try_from(1000 * count).unwrap();
    graph.initializer.push(floats("large", &[size]));
    let mut constant = node("Constant", &[], "huge");
    let zeros = bytes(FLOAT, &[1000 * count], &vec![0; 4000 * count]);
    constant.attribute = vec![tensor("value", &zeros)];
    graph.node.insert(0, constant);
    for (at, layer) in
        graph.node.iter_mut().filter(|node| node.op_type.as_deref() == Some("TensorScatter")).enumerate()
    {
        layer.output = vec![format!("written{at}")];
    }
    for at in 0..count {
        let constant = if at % 2 == 0 { "large" } else { "huge" };
        graph.node.push(node("Add", &[&format!("written{at}"), constant], &format!("present{at}")));
    }
    model
}

fn external(count: usize) -> Model {
    let mut model = load("mobius-llama-static");
    let entry = |key: &str, value: &str| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
        ..StringStringEntryProto::default()
    };
    graph(&mut model).initializer.extend(each(count, "elsewhere", |name| TensorProto {
        raw_data: None,
        data_location: Some(kvscatter_onnx::proto::tensor_proto::DataLocation::EXTERNAL),
        external_data: vec![entry("location", name)],
        ..floats(name, &[8])
    }));
    model
}
