//! Models with many of one thing. Those that start from a decoder use one that every pass accepts, so that no
//! pass ends at its first check.

use kvscatter::ElementType;
use kvscatter_onnx::Model;
use kvscatter_onnx::internal::proto::{FunctionProto, TensorProto};

use crate::support::{
    self, Nodes, append, bytes, entry, extend, function, graph_mut, insert, int, load, maker, merge,
    nodes_mut, opset, parsed, raw, tensor, values,
};

/// The name of the thing, the smallest number of it, and a function that makes a model with that many.
type Family = (&'static str, usize, fn(usize) -> Model);

pub(crate) const ALL: &[Family] = &[
    ("inputs", 200, inputs),
    ("inputs of one hub", 200, hub),
    ("outputs", 200, |count| {
        with(
            decoder(),
            "",
            &each(count, ";", |at| format!("extra{at} = Neg(y0)")),
            &logits(&names(count, "extra")),
        )
    }),
    ("initializers", 200, initializers),
    ("nodes in a chain", 200, |count| with(decoder(), "", &chain(count, "Neg", "y0"), &logits(&link(count)))),
    ("nodes after one value", 200, fan),
    ("value infos", 200, value_infos),
    ("attributes of Attention", 200, attributes),
    ("operator sets", 200, |count| with_domains(decoder(), count)),
    ("operator sets beside caches", 50, |count| with_domains(scatter_layers(count), count)),
    ("metadata", 200, metadata),
    ("layers of Attention", 25, attention_layers),
    ("layers of Concat", 12, concat_layers),
    ("layers of TensorScatter", 50, scatter_layers),
    ("layers of ScatterElements", 12, static_layers),
    ("caches of one node", 100, |count| unknown_operator(count, "Everything")),
    ("caches read by one node", 50, read_by_one),
    ("shapes asked of pasts by one node", 25, shapes_of_pasts),
    ("characters of an operator with as many caches", 100, |count| {
        unknown_operator(count, &"x".repeat(100 * count))
    }),
    ("masks in a chain", 50, masks),
    ("layers with separate masks", 12, own_masks),
    ("writes in a chain", 100, |count| writes(count, "batch, 64, 8", "batch, tokens, 8")),
    ("writes in a chain of caches of as many dimensions", 100, wide_writes),
    ("joined inputs that are no caches", 50, joined),
    ("symbols in a chain", 100, symbols),
    ("calls of functions", 25, functions),
    ("calls of a long function", 25, long_function),
    ("functions that call the next twice", 6, doubling),
    ("conditions", 50, conditions),
    ("values captured by a condition", 100, captures),
    ("values inside of nested conditions", 50, nested),
    ("layers of a merged decoder", 12, |count| merged(concat_layers(count), "")),
    ("values of a branch with names of the outer graph", 50, merged_names),
    ("values inside of nested conditions in a branch", 50, merged_nested),
    ("values that cannot be computed", 50, failing),
    ("inputs and outputs of one unknown node", 50, unknown),
    ("caches after one large constant", 25, large_constant),
    ("tensors in other files", 100, external),
];

const FLOAT: ElementType = ElementType::Float32;

/// Joins a text of each number.
fn each(count: usize, separator: &str, text: impl Fn(usize) -> String) -> String {
    (0..count).map(text).collect::<Vec<_>>().join(separator)
}

fn names(count: usize, what: &str) -> String {
    each(count, ", ", |at| format!("{what}{at}"))
}

fn link(at: usize) -> String {
    format!("link{at}")
}

/// Returns nodes in a chain from a value to [`link`] of their number.
fn chain(count: usize, op_type: &str, from: &str) -> String {
    each(count, ";", |at| {
        let from = if at == 0 { from.to_owned() } else { link(at) };
        format!("{} = {op_type}({from})", link(at + 1))
    })
}

/// Creates a decoder that can be converted.
fn decoder() -> Model {
    attention_layers(1)
}

/// Adds inputs, nodes after all others, and outputs to a model.
fn with(mut model: Model, inputs: &str, nodes: &str, outputs: &str) -> Model {
    extend(&mut model, inputs, nodes, outputs);
    model
}

/// Declares values of the shape of logits.
fn logits(names: &str) -> String {
    format!("{names}: float[batch, tokens, 8]")
}

/// Returns the names of the keys and values of all layers.
fn pairs(count: usize, keys: &str, values: &str) -> String {
    each(count, ", ", |at| format!("{keys}{at}, {values}{at}"))
}

fn zeros(name: &str, dims: &[i64]) -> TensorProto {
    let count = usize::try_from(dims.iter().product::<i64>()).unwrap();
    raw(name, FLOAT, dims, vec![0; 4 * count])
}

/// Creates a decoder from its nodes. `x` is the embeddings of the tokens, from a table with as many rows.
fn embedded(rows: i64, inputs: &str, nodes: &str, outputs: &str) -> Model {
    let inputs = format!("input_ids: int64[batch, tokens], {inputs}");
    let mut model = parsed(&inputs, &format!("x = Gather(table, input_ids); {nodes}"), outputs);
    graph_mut(&mut model).initializer.insert(0, zeros("table", &[rows, 8]));
    model
}

fn attention_layers(count: usize) -> Model {
    let layer = |at: usize| {
        let queries = if at == 0 { "x".to_owned() } else { format!("y{}", at - 1) };
        format!(
            "y{at}, k{at}, v{at} = Attention({queries}, x, x, _, past_k{at}, past_v{at})
                {{q_num_heads=2, kv_num_heads=2, is_causal=1}}"
        )
    };
    embedded(
        100,
        &format!("{}: float[batch, 2, past, 4]", pairs(count, "past_k", "past_v")),
        &each(count, ";", layer),
        &format!(
            "{}: float[batch, 2, total, 4], {}",
            pairs(count, "k", "v"),
            logits(&format!("y{}", count - 1))
        ),
    )
}

/// Makes layers of attention from separate nodes. `nodes` compute `visible` and `low` for all of them, and `write`
/// returns the nodes that write the caches of a layer. They have `past` rows before, and `total` rows after that.
fn separate_layers(
    count: usize,
    inputs: &str,
    [past, total]: [&str; 2],
    nodes: &str,
    write: fn(usize) -> String,
) -> Model {
    let layer = |at: usize| {
        let sum = if at == 0 { "rows".to_owned() } else { format!("sum{}", at - 1) };
        format!(
            "{}
            scores{at} = MatMul(rows, Transpose(k{at}) {{perm=[0, 1, 3, 2]}})
            masked{at} = Where(visible, scores{at}, low)
            sum{at} = Add({sum}, MatMul(Softmax(masked{at}), v{at}))",
            write(at)
        )
    };
    // The table has as many rows as there are logits, so its indices are tokens.
    embedded(
        8,
        &format!("{inputs}, {}: float[batch, 2, {past}, 4]", pairs(count, "past_k", "past_v")),
        &format!(
            "{nodes}
            rows = Transpose(Reshape(x, [0, 0, 2, 4])) {{perm=[0, 2, 1, 3]}}
            {}
            logits = Reshape(Transpose(sum{}) {{perm=[0, 2, 1, 3]}}, [0, 0, 8])",
            each(count, "\n", layer),
            count - 1
        ),
        &format!("{}: float[batch, 2, {total}, 4], {}", pairs(count, "k", "v"), logits("logits")),
    )
}

/// Makes layers with one causal mask and one for padding. They can become one node each.
fn concat_layers(count: usize) -> Model {
    let nodes = format!(
        "low = {:?}
        length = Squeeze(Shape(past_k0) {{start=2, end=3}})
        total = Add(length, Squeeze(Shape(input_ids) {{start=1, end=2}}))
        places = Range(length, total, 1)
        causal = LessOrEqual(Range(0, total, 1), Unsqueeze(places, [-1]))
        visible = And(causal, Unsqueeze(Cast(attention_mask) {{to=bool}}, [1, 2]))",
        f32::MIN
    );
    separate_layers(count, "attention_mask: int64[batch, total]", ["past", "total"], &nodes, |at| {
        format!(
            "k{at} = Concat(past_k{at}, rows) {{axis=2}}
            v{at} = Concat(past_v{at}, rows) {{axis=2}}"
        )
    })
}

fn scatter_layers(count: usize) -> Model {
    let write = |at| format!("present{at} = TensorScatter(past{at}, rows, write_indices) {{axis=1}}");
    embedded(
        100,
        &format!("write_indices: int64[batch], {}: float[batch, 64, 8]", names(count, "past")),
        &format!("rows = Reshape(x, [0, 0, 8]); {}", each(count, ";", write)),
        &format!("{}, {}: float[batch, 64, 8]", logits("x"), names(count, "present")),
    )
}

/// Makes layers whose caches have the slots of the conversions, as an export of a static cache has them.
fn static_layers(count: usize) -> Model {
    let nodes = "low = -10000.0
        positions = Add(cached, Range(0, Squeeze(Shape(input_ids) {start=1, end=2}), 1))
        visible = LessOrEqual(Range(0, 24, 1), Unsqueeze(positions, [0, 1, 3]))";
    separate_layers(count, "cached: int64[]", ["24", "24"], nodes, |at| {
        format!(
            "index{at} = Expand(Unsqueeze(Add(positions, 0), [0, 1, 3]), Shape(rows))
            k{at} = ScatterElements(past_k{at}, index{at}, rows) {{axis=2}}
            v{at} = ScatterElements(past_v{at}, index{at}, rows) {{axis=2}}"
        )
    })
}

fn inputs(count: usize) -> Model {
    with(decoder(), &format!("{}: float[2, 3]", names(count, "extra")), "", "")
}

/// Creates a model in which every input leads to the same few hundred nodes.
fn hub(count: usize) -> Model {
    let nodes = format!(
        "hub = Sum({}); {}; {}",
        names(count, "extra"),
        each(count, ";", |at| format!("extra{at}_out = Neg(extra{at})")),
        each(count, ";", |at| format!("sum{at} = Add(extra{at}, extra0)"))
    );
    with(inputs(count), "", &nodes, &format!("hub, {}: float[2, 3]", names(count, "sum")))
}

fn initializers(count: usize) -> Model {
    let sums = each(count, ";", |at| format!("sum{at} = Add(y0, extra{at})"));
    let mut model = with(decoder(), "", &sums, &logits(&names(count, "sum")));
    graph_mut(&mut model).initializer.extend((0..count).map(|at| zeros(&format!("extra{at}"), &[8])));
    model
}

fn fan(count: usize) -> Model {
    let nodes = each(count, ";", |at| format!("fan{at} = Neg(y0)"));
    with(decoder(), "", &format!("{nodes}; sum = Sum({})", names(count, "fan")), &logits("sum"))
}

fn value_infos(count: usize) -> Model {
    let mut model = decoder();
    graph_mut(&mut model).value_info = values(&format!("{}: float[batch]", names(count, "nothing")));
    model
}

fn attributes(count: usize) -> Model {
    let mut model = decoder();
    let attention = graph_mut(&mut model).node.last_mut().unwrap();
    attention.attribute.extend((0..count).map(|at| int(&format!("unknown{at}"), 0)));
    model
}

fn with_domains(mut model: Model, count: usize) -> Model {
    model.proto_mut().opset_import.extend((0..count).map(|at| opset(&format!("domain{at}"), 1)));
    model
}

fn metadata(count: usize) -> Model {
    let mut model = decoder();
    model.proto_mut().metadata_props = (0..count).map(|at| entry(&format!("key{at}"), "")).collect();
    model
}

/// Creates a node of an unknown operator with this many caches.
fn unknown_operator(count: usize, op_type: &str) -> Model {
    let (pasts, presents) = (names(count, "past"), names(count, "present"));
    parsed(
        &format!("{pasts}: float[batch, 2, past, 4]"),
        &format!("{presents} = {op_type}@com.microsoft({pasts})"),
        &format!("{presents}: float[batch, 2, past, 4]"),
    )
}

fn read_by_one(count: usize) -> Model {
    let mut model = scatter_layers(count);
    append(&mut model, &format!("sum = Sum({})", names(count, "past")));
    graph_mut(&mut model).node.last_mut().unwrap().name = Some("n".repeat(4000.min(50 * count)));
    model
}

fn shapes_of_pasts(count: usize) -> Model {
    let mut model = concat_layers(count);
    // A node after `Concat` makes the output, so the conversion replaces reads of one value with reads of the
    // other.
    for at in 0..count {
        let place = maker(graph_mut(&mut model), &format!("k{at}"));
        graph_mut(&mut model).node[place].output = vec![format!("made{at}")];
        insert(&mut model, place + 1, Nodes::parse(&format!("k{at} = Identity(made{at})")));
    }
    with(model, "", &format!("shapes = Shape({})", names(count, "made")), "shapes: int64[4]")
}

/// Makes scores with a chain of masks.
fn masks(count: usize) -> Model {
    let mut model = concat_layers(1);
    let place = maker(graph_mut(&mut model), "masked0");
    graph_mut(&mut model).node.remove(place);
    let mask = |at: usize| match at {
        0 => "scores0".to_owned(),
        at if at == count => "masked0".to_owned(),
        at => link(at),
    };
    let nodes = each(count, ";", |at| format!("{} = Where(visible, {}, low)", mask(at + 1), mask(at)));
    insert(&mut model, place, Nodes::parse(&nodes));
    model
}

fn own_masks(count: usize) -> Model {
    let mut model = concat_layers(count);
    for at in 0..count {
        let place = maker(graph_mut(&mut model), &format!("masked{at}"));
        graph_mut(&mut model).node[place].input[0] = format!("visible{at}");
        insert(&mut model, place, Nodes::parse(&format!("visible{at} = Identity(visible)")));
    }
    model
}

fn wide_writes(count: usize) -> Model {
    let dims = |length| format!("1, {length}{}", ", 1".repeat(count - 2));
    writes(count, &dims("64"), &dims("2"))
}

fn writes(count: usize, cache: &str, update: &str) -> Model {
    let past = |at: usize| if at == 0 { "past".to_owned() } else { link(at) };
    let batch = cache.split(',').next().unwrap();
    parsed(
        &format!("past: float[{cache}], new: float[{update}], at: int64[{batch}]"),
        &each(count, ";", |at| format!("{} = TensorScatter({}, new, at) {{axis=1}}", link(at + 1), past(at))),
        &format!("{}: float[{cache}]", link(count)),
    )
}

/// Makes inputs that `Concat` appends to and that do not look like a cache.
fn joined(count: usize) -> Model {
    let nodes = each(count, ";", |at| format!("joined{at} = Concat(flags{at}, visible) {{axis=2}}"));
    with(concat_layers(count), &format!("{}: bool[batch, 2, past, 4]", names(count, "flags")), &nodes, "")
}

/// Makes caches that each equate one symbol with another, and more caches that look up each symbol.
fn symbols(count: usize) -> Model {
    let mut model = scatter_layers(2 * count);
    let graph = graph_mut(&mut model);
    graph.input.truncate(2);
    graph.output.truncate(1);
    for (first, equated) in [(0, 1), (count, 0)] {
        let declare = |what: &str, symbol: usize| {
            each(count, ", ", |at| format!("{what}{}: float[batch, 64, d{}]", first + at, at + symbol))
        };
        graph.input.extend(values(&declare("past", 0)));
        graph.output.extend(values(&declare("present", equated)));
    }
    model
}

/// Creates a decoder that calls functions one after another.
fn calling(functions: Vec<FunctionProto>, calls: usize, name: impl Fn(usize) -> String) -> Model {
    let from = |at: usize| if at == 0 { "y0".to_owned() } else { link(at) };
    let nodes = each(calls, ";", |at| format!("{} = {}@local({})", link(at + 1), name(at), from(at)));
    let mut model = with(decoder(), "", &nodes, &logits(&link(calls)));
    model.proto_mut().functions = functions;
    model
}

fn functions(count: usize) -> Model {
    let all = (0..count).map(|at| function(&format!("f{at}(a) -> z"), "z = Neg(a)")).collect();
    calling(all, count, |at| format!("f{at}"))
}

fn long_function(count: usize) -> Model {
    let nodes = chain(count - 1, "Neg", "a");
    let mut long = function("f(a) -> z", &format!("{nodes}; z = Neg({})", link(count - 1)));
    long.opset_import.extend((0..count).map(|at| opset(&format!("domain{at}"), 1)));
    calling(vec![long], 4, |_| "f".to_owned())
}

/// Makes functions whose number of calls is two to the power of the number of functions.
fn doubling(count: usize) -> Model {
    let doubled = |at: usize| {
        let nodes = format!("b = f{next}@local(a); z = f{next}@local(b)", next = at + 1);
        function(&format!("f{at}(a) -> z"), &nodes)
    };
    let mut all: Vec<_> = (0..count).map(doubled).collect();
    all.push(function(&format!("f{count}(a) -> z"), "z = Neg(a)"));
    calling(all, 1, |_| "f0".to_owned())
}

fn conditions(count: usize) -> Model {
    let choice = |at| {
        let body = format!("{{in{at} = Neg(y0)}}");
        format!("choice{at} = If(flag) {{then_branch={body}, else_branch={body}}}")
    };
    with(decoder(), "flag: bool[1]", &each(count, ";", choice), &logits(&names(count, "choice")))
}

fn captures(count: usize) -> Model {
    let all = names(count, "extra");
    let choice = format!(
        "choice = If(flag) {{then_branch={{inner = Sum({all})}}, else_branch={{other = Sum({all})}}}}"
    );
    with(inputs(count), "flag: bool[1]", &choice, "choice: float[2, 3]")
}

/// Makes twenty nested bodies, of which the innermost is long.
fn nested(count: usize) -> Model {
    let nodes = (0..20).fold(chain(count, "Neg", "y0"), |nodes, depth| {
        format!("choice{depth} = If(flag) {{then_branch={{{nodes}}}}}")
    });
    with(decoder(), "flag: bool[1]", &nodes, &logits("choice19"))
}

/// Merges a decoder with one without a past, and adds nodes to the branch with the past.
fn merged(mut model: Model, more: &str) -> Model {
    append(&mut model, more);
    merge(&mut model);
    model
}

fn merged_names(count: usize) -> Model {
    let mut model = merged(concat_layers(1), &each(count, ";", |at| format!("same{at} = Neg(x)")));
    insert(&mut model, 0, Nodes::parse(&each(count, ";", |at| format!("same{at} = Neg(input_ids)"))));
    model
}

/// Makes twenty nested bodies in a branch. Each of them reads a value of the branch and defines its name again.
fn merged_nested(count: usize) -> Model {
    let inner = each(count, ";", |at| format!("inner{at} = Neg(x)"));
    let nodes = (0..20).fold(inner, |nodes, depth| {
        format!("rows = Neg(k0); choice{depth} = If(visible) {{then_branch={{{nodes}}}}}")
    });
    merged(concat_layers(1), nodes.strip_prefix("rows = Neg(k0);").unwrap())
}

/// Makes positions that depend on the past, which are replaced, and a chain of nodes with unsupported
/// operators.
fn failing(count: usize) -> Model {
    // `rows_of_places` is another value that depends on the length of the past.
    let chain = chain(count, "Neg", "link");
    let nodes = format!("link = Odd@strange(x); {chain}; rows_of_places = Unsqueeze(places, [-1])");
    with(concat_layers(1), "", &nodes, "rows_of_places: int64[tokens, 1]")
}

fn unknown(count: usize) -> Model {
    let (odd, extra) = (names(count, "odd"), names(count, "extra"));
    with(failing(1), &format!("{extra}: float[2]"), &format!("{odd} = Odd@strange({extra})"), "")
}

fn large_constant(count: usize) -> Model {
    let mut model = scatter_layers(count);
    let graph = graph_mut(&mut model);
    // This is more than a path may contain, for any count.
    let size = 1000 * count;
    graph.initializer.push(zeros("large", &[i64::try_from(size).unwrap()]));
    for (at, layer) in nodes_mut(graph, "TensorScatter").enumerate() {
        layer.output = vec![format!("written{at}")];
    }
    insert(&mut model, 0, Nodes::parse("huge = Constant()"));
    graph_mut(&mut model).node[0].attribute =
        vec![tensor("value", &bytes(FLOAT, &[size], &vec![0; 4 * size]))];
    let constant = |at| if at % 2 == 0 { "large" } else { "huge" };
    append(&mut model, &each(count, ";", |at| format!("present{at} = Add(written{at}, {})", constant(at))));
    model
}

fn external(count: usize) -> Model {
    let mut model = load("mobius-llama-static");
    let tensors = (0..count).map(|at| format!("elsewhere{at}"));
    let tensors = tensors.map(|name| support::external(&name, FLOAT, &[8], &[("location", &name)]));
    graph_mut(&mut model).initializer.extend(tensors);
    model
}
