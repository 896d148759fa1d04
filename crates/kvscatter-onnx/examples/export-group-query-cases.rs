//! Writes random cases of `GroupQueryAttention` with their expected outputs as JSON, one case a line:
//!
//! ```text
//! cargo run -p kvscatter-onnx --example export-group-query-cases -- FILE SEED COUNT
//! ```
//!
//! The expected outputs are those of the model of the operator with which `convert` proves its results, in float64.
//! `attributes`, `inputs` and `outputs` have the names of ONNX Runtime. A tensor is
//! `{"element": …, "shape": […], "data": […]}`. Numbers that are not finite are `Infinity` and `-Infinity`, as Python's
//! `json` reads and writes them.
//!
//! All elements are multiples of a power of two and so short that rotations are exact in float32. So the caches after
//! the call have only one right result, to the bit. Rotated queries are also exact in their own type. New keys and
//! values are rounded to the type of the cache, and the queries see them as the cache has them.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, Write};

use half::{bf16, f16};
use kvscatter::ElementType::{self, BFloat16, Float16, Float32, Float64, Int32, Int64};
use kvscatter_onnx::internal::fold::floats;
use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use kvscatter_onnx::{Data, Model, Tensor};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const INPUTS: [&str; 12] = [
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    "cos_cache",
    "sin_cache",
    "position_ids",
    "attention_bias",
    "head_sink",
];
const OUTPUTS: [&str; 3] = ["output", "present_key", "present_value"];

/// The types of queries and of caches.
const TYPES: [[ElementType; 2]; 5] =
    [[Float32, Float32], [Float16, Float16], [BFloat16, BFloat16], [Float32, Float16], [Float32, BFloat16]];

/// How the slots of a call are chosen.
#[derive(Clone, Copy, Debug, strum::EnumIter, strum::IntoStaticStr, PartialEq, Eq)]
#[strum(serialize_all = "snake_case")]
enum Phase {
    /// All tokens of each sample, in a cache with more slots.
    First,
    /// All tokens of each sample, some with padding.
    FirstPadded,
    /// All tokens of each sample, without slots before.
    FirstGrowing,
    Decode,
    DecodeRagged,
    DecodeGrowing,
    /// Several tokens of one sample.
    Chunk,
    ChunkGrowing,
    /// Several tokens of several samples, which have different lengths.
    ChunkRagged,
}

/// Which elements of queries and keys are rotated.
#[derive(Clone, Copy, Debug, strum::EnumIter, strum::IntoStaticStr, PartialEq, Eq)]
#[strum(serialize_all = "snake_case")]
enum Rotation {
    Unrotated,
    Half,
    Interleaved,
    /// Half of the elements.
    HalfPartial,
    InterleavedPartial,
}

/// How a call gets its new keys and values.
#[derive(Clone, Copy, Debug, strum::IntoStaticStr, PartialEq, Eq)]
#[strum(serialize_all = "snake_case")]
enum Form {
    Packed,
    Separate,
    /// The past is the cache of another layer, which has the new rows.
    SharedLayer,
}

enum Attribute {
    Int(i64),
    Float(f32),
}

/// A tensor. Floats and integers are both stored as float64.
#[derive(Clone)]
struct Array {
    element: ElementType,
    shape: Vec<usize>,
    data: Vec<f64>,
}

/// The sizes of a call.
#[derive(Clone)]
struct Sizes {
    batch: usize,
    /// The number of new tokens of each sample.
    tokens: usize,
    /// The number of slots of the past.
    past: usize,
    /// The number of tokens of each sample after the call.
    lengths: Vec<usize>,
    total: usize,
    heads: usize,
    kv_heads: usize,
    size: usize,
}

/// A call of the operator.
struct Case {
    name: String,
    sizes: Sizes,
    attributes: BTreeMap<&'static str, Attribute>,
    inputs: BTreeMap<&'static str, Array>,
    /// The queries without keys and values.
    queries: Array,
}

struct Random(Pcg64Mcg);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [path, seed, count] = arguments.as_slice() else {
        return Err("usage: export-group-query-cases FILE SEED COUNT".into());
    };
    let seed = seed.parse().map_err(|_| format!("SEED = {seed}: must be a number"))?;
    let count = count.parse().map_err(|_| format!("COUNT = {count}: must be a number"))?;

    let mut random = Random(Pcg64Mcg::seed_from_u64(seed));
    let mut out = BufWriter::new(File::create(path)?);
    for number in 0..count {
        let case = Case::random(number, &mut random);
        writeln!(out, "{}", case.line().map_err(|error| format!("{}: {error}", case.name))?)?;
    }
    Ok(out.flush()?)
}

impl Case {
    /// Makes the case with this number. Every 225 cases have each phase with each rotation and each pair of types.
    fn random(number: usize, random: &mut Random) -> Self {
        let phase = nth::<Phase>(number);
        let [element, cache] = TYPES[number % TYPES.len()];
        let rotation = nth::<Rotation>(number / 45);
        let sizes = Sizes::random(phase, rotation, random);
        let form = match random.below(4) {
            0 if sizes.past >= sizes.total => Form::SharedLayer,
            0 | 1 => Form::Separate,
            _ => Form::Packed,
        };
        let names: [&str; 3] = [phase.into(), rotation.into(), form.into()];
        let mut case = Self {
            name: format!("{number}_{}_{element}_{cache}", names.join("_")),
            attributes: sizes.attributes(),
            inputs: BTreeMap::new(),
            queries: random.floats(element, vec![sizes.batch, sizes.tokens, sizes.heads * sizes.size], 3, 4),
            sizes,
        };
        case.add_rows(form, element, random);
        case.add_slots(cache, random);
        case.add_rotation(rotation, element, random);
        case.add_scores(element, random);
        case
    }

    /// Adds the queries with the new keys and values, which are packed or separate.
    fn add_rows(&mut self, form: Form, element: ElementType, random: &mut Random) {
        let Sizes { batch, tokens, kv_heads, size, .. } = self.sizes;
        let rows = if form == Form::SharedLayer { 0 } else { tokens };
        let width = kv_heads * size;
        let [key, value] =
            [(); 2].map(|()| random.floats(element, vec![batch, rows, width], bits(element) - 1, 4));
        if form != Form::Packed {
            self.inputs.extend([("query", self.queries.clone()), ("key", key), ("value", value)]);
            return;
        }
        let of_token = |array: &Array, token: usize| {
            let width = array.shape[2];
            array.data[token * width..][..width].to_vec()
        };
        let parts = [&self.queries, &key, &value];
        let data: Vec<_> =
            (0..batch * tokens).flat_map(|token| parts.map(|part| of_token(part, token)).concat()).collect();
        let shape = vec![batch, tokens, parts.iter().map(|part| part.shape[2]).sum()];
        self.inputs.insert("query", Array { element, shape, data });
    }

    /// Adds the past and the lengths.
    fn add_slots(&mut self, cache: ElementType, random: &mut Random) {
        let Sizes { batch, past, lengths, total, kv_heads, size, .. } = &self.sizes;
        for name in ["past_key", "past_value"] {
            let shape = vec![*batch, *kv_heads, *past, *size];
            self.inputs.insert(name, random.floats(cache, shape, bits(cache) - 1, 4));
        }
        let last = lengths.iter().map(|length| integer(length - 1)).collect();
        self.inputs.insert("seqlens_k", Array { element: Int32, shape: vec![*batch], data: last });
        let shape = if random.flips() { vec![] } else { vec![1] };
        let data = vec![integer(*total)];
        self.inputs.insert("total_sequence_length", Array { element: Int32, shape, data });
    }

    /// Adds cosines and sines, and sometimes positions that are not those of the slots.
    fn add_rotation(&mut self, rotation: Rotation, element: ElementType, random: &mut Random) {
        let Sizes { batch, tokens, total, size, .. } = self.sizes;
        let (is_interleaved, parts) = match rotation {
            Rotation::Unrotated => return,
            Rotation::Half => (0, 2),
            Rotation::Interleaved => (1, 2),
            Rotation::HalfPartial => (0, 4),
            Rotation::InterleavedPartial => (1, 4),
        };
        self.attributes.insert("do_rotary", Attribute::Int(1));
        self.attributes.insert("rotary_interleaved", Attribute::Int(is_interleaved));
        let positions = total + random.below(6);
        for name in ["cos_cache", "sin_cache"] {
            self.inputs.insert(name, random.floats(element, vec![positions, size / parts], 3, 8));
        }
        if random.flips() {
            // A first prompt uses the first one as an offset.
            let most = positions - tokens + 1;
            let data = (0..batch * tokens).map(|_| integer(random.below(most))).collect();
            self.inputs.insert("position_ids", Array { element: Int64, shape: vec![batch, tokens], data });
        }
    }

    /// Adds what changes the weights: a scale, a cap, a window, a bias and sinks.
    fn add_scores(&mut self, element: ElementType, random: &mut Random) {
        let Sizes { batch, tokens, total, heads, .. } = self.sizes;
        if random.below(3) == 0 {
            self.attributes.insert("scale", Attribute::Float([0.0, 0.25, 0.75][random.below(3)]));
        }
        if random.below(3) == 0 {
            self.attributes.insert("softcap", Attribute::Float([0.0, 0.5, 1.5][random.below(3)]));
        }
        if random.flips() {
            let window = [-1, 1, 2, 3, 5, 1 << 20][random.below(6)];
            self.attributes.insert("local_window_size", Attribute::Int(window));
        }
        match random.below(5) {
            sink @ (0 | 1) => {
                self.attributes.insert("smooth_softmax", Attribute::Int(i64::from(sink == 1)));
            }
            2 => {
                self.inputs.insert("head_sink", random.floats(element, vec![heads], 3, 4));
            }
            _ => {}
        }
        if random.below(3) == 0 {
            let shape = vec![random.either(batch, 1), random.either(heads, 1), tokens, total];
            let mut bias = random.floats(element, shape, 3, 4);
            // Some keys are hidden. The key of the query itself is not, so each row of scores has one.
            let positions = self.sizes.positions();
            for (at, score) in bias.data.iter_mut().enumerate() {
                let (column, token) = (at % total, at / total % tokens);
                if random.below(4) == 0 && positions.iter().all(|start| start + token != column) {
                    *score = f64::NEG_INFINITY;
                }
            }
            self.inputs.insert("attention_bias", bias);
        }
    }

    /// Returns the case with its outputs as JSON.
    fn line(&self) -> Result<String, Box<dyn Error>> {
        let outputs = self.outputs()?;
        let attributes = self.attributes.iter().map(|(name, value)| match value {
            Attribute::Int(value) => field(name, value),
            Attribute::Float(value) => field(name, format!("{value:?}")),
        });
        let inputs = self.inputs.iter().map(|(name, array)| field(name, array.json()));
        let outputs = OUTPUTS.iter().zip(&outputs).map(|(name, array)| field(name, array.json()));
        Ok(object([
            field("name", format!("\"{}\"", self.name)),
            field("attributes", object(attributes)),
            field("inputs", object(inputs)),
            field("outputs", object(outputs)),
        ]))
    }

    /// Computes the outputs. The queries see keys and values as the caches have them after the call.
    fn outputs(&self) -> Result<[Array; 3], Box<dyn Error>> {
        let Sizes { batch, tokens, past, total, heads, kv_heads, size, .. } = self.sizes;
        let cache = self.inputs["past_key"].element;
        let [_, key, value] = self.evaluate(&self.inputs)?;
        let [key, value] = [key, value].map(|present| Array {
            element: cache,
            shape: vec![batch, kv_heads, past.max(total), size],
            data: present.into_iter().map(|element| rounded(cache, element)).collect(),
        });

        let none = Array { element: Float64, shape: vec![batch, 0, kv_heads * size], data: vec![] };
        let mut inputs = self.inputs.clone();
        inputs.extend([("query", self.queries.clone()), ("key", none.clone()), ("value", none)]);
        inputs.extend([("past_key", key.clone()), ("past_value", value.clone())]);
        let [data, ..] = self.evaluate(&inputs)?;
        let shape = vec![batch, tokens, heads * size];
        Ok([Array { element: self.queries.element, shape, data }, key, value])
    }

    /// Evaluates the node in float64.
    fn evaluate(&self, inputs: &BTreeMap<&'static str, Array>) -> Result<[Vec<f64>; 3], Box<dyn Error>> {
        let tensors = inputs.iter().map(|(name, array)| Ok((*name, array.tensor()?)));
        let tensors: BTreeMap<_, _> = tensors.collect::<Result<_, Box<dyn Error>>>()?;
        let names = INPUTS.map(|name| if inputs.contains_key(name) { name } else { "" });
        let values = floats(&model(names, &self.attributes), &tensors, OUTPUTS)?;
        let values: Option<Vec<_>> = values.into_iter().collect();
        values.and_then(|values| values.try_into().ok()).ok_or_else(|| "an output is not known".into())
    }
}

impl Sizes {
    fn random(phase: Phase, rotation: Rotation, random: &mut Random) -> Self {
        let (batch, tokens) = match phase {
            Phase::First | Phase::FirstGrowing => (1 + random.below(2), 2 + random.below(4)),
            Phase::FirstPadded => (2 + random.below(2), 2 + random.below(4)),
            Phase::Decode | Phase::DecodeGrowing => (1, 1),
            Phase::DecodeRagged => (2 + random.below(2), 1),
            Phase::Chunk | Phase::ChunkGrowing => (1, 2 + random.below(3)),
            Phase::ChunkRagged => (2 + random.below(2), 2 + random.below(3)),
        };
        let is_first = matches!(phase, Phase::First | Phase::FirstPadded | Phase::FirstGrowing);
        let mut lengths: Vec<_> = (0..batch)
            .map(|_| match phase {
                Phase::First | Phase::FirstGrowing => tokens,
                Phase::FirstPadded => 1 + random.below(tokens),
                _ => tokens + random.below(6),
            })
            .collect();
        if phase == Phase::FirstPadded {
            lengths[random.below(batch)] = tokens;
        }
        // A call whose total is the number of its tokens is a first prompt.
        if !is_first && lengths.iter().all(|length| *length <= tokens) {
            lengths[0] = tokens + 1;
        }
        let most = lengths.iter().copied().max().unwrap_or(tokens);
        let (past, total) = match phase {
            Phase::FirstGrowing => (0, tokens),
            Phase::DecodeGrowing | Phase::ChunkGrowing => (most - tokens, most),
            _ => {
                let past = most + random.below(4);
                // A later call may name all slots instead of the largest length.
                (past, if is_first || random.flips() { most } else { past })
            }
        };
        let (heads, kv_heads) = [(4, 2), (2, 2), (6, 2), (3, 1)][random.below(4)];
        let size = match rotation {
            Rotation::Unrotated => [8, 16, 24][random.below(3)],
            Rotation::Half | Rotation::Interleaved => [16, 32, 80][random.below(3)],
            Rotation::HalfPartial | Rotation::InterleavedPartial => [32, 32, 160][random.below(3)],
        };
        Self { batch, tokens, past, lengths, total, heads, kv_heads, size }
    }

    /// Returns the attributes that every node has.
    fn attributes(&self) -> BTreeMap<&'static str, Attribute> {
        let counts = [("num_heads", self.heads), ("kv_num_heads", self.kv_heads)];
        BTreeMap::from(counts.map(|(name, count)| (name, Attribute::Int(count as i64))))
    }

    /// Returns the slot of the first new token of each sample.
    fn positions(&self) -> Vec<usize> {
        let is_first = self.total == self.tokens;
        self.lengths.iter().map(|length| if is_first { 0 } else { length - self.tokens }).collect()
    }
}

impl Random {
    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        (self.0.next_u64() >> 33) as usize % limit
    }

    fn flips(&mut self) -> bool {
        self.below(2) == 0
    }

    fn either<T>(&mut self, one: T, other: T) -> T {
        if self.flips() { one } else { other }
    }

    /// Returns elements of `bits` bits and a sign, of which those of 3 bits are divided by `divisor`. Longer elements
    /// are as large as shorter ones. They are odd multiples, so no element is zero, and no sum is a negative zero.
    fn floats(&mut self, element: ElementType, shape: Vec<usize>, bits: u32, divisor: u32) -> Array {
        let (limit, divisor) = (1 << bits, f64::from(divisor << (bits - 3)));
        let mut float = || (integer(2 * self.below(limit) + 1) - integer(limit)) / divisor;
        let data = (0..shape.iter().product()).map(|_| float()).collect();
        Array { element, shape, data }
    }
}

impl Array {
    /// Returns the tensor in float64, or of integers.
    fn tensor(&self) -> Result<Tensor, Box<dyn Error>> {
        let Self { element, shape, data } = self;
        let (element, bytes): (_, Vec<u8>) = match element {
            Int32 => (Int32, data.iter().flat_map(|element| (*element as i32).to_le_bytes()).collect()),
            Int64 => (Int64, data.iter().flat_map(|element| (*element as i64).to_le_bytes()).collect()),
            _ => (Float64, data.iter().flat_map(|element| element.to_le_bytes()).collect()),
        };
        Ok(Tensor::new(element, shape.clone(), Data::Bytes(bytes))?)
    }

    fn json(&self) -> String {
        let number = |value: &f64| match value.is_finite() {
            true => value.to_string(),
            false => format!("{}Infinity", if *value < 0.0 { "-" } else { "" }),
        };
        let data: Vec<_> = self.data.iter().map(number).collect();
        object([
            field("element", format!("\"{}\"", self.element)),
            field("shape", format!("{:?}", self.shape)),
            field("data", format!("[{}]", data.join(", "))),
        ])
    }
}

/// Returns a model of one node with these inputs.
fn model(names: [&str; 12], attributes: &BTreeMap<&'static str, Attribute>) -> Model {
    let attribute = |(name, value): (&&str, &Attribute)| match value {
        Attribute::Int(value) => AttributeProto::int(name, *value),
        Attribute::Float(value) => AttributeProto::float(name, *value),
    };
    let node = NodeProto {
        domain: Some("com.microsoft".to_owned()),
        attribute: attributes.iter().map(attribute).collect(),
        ..NodeProto::new("GroupQueryAttention", &names, &OUTPUTS)
    };
    let graph = GraphProto {
        node: vec![node],
        input: names.into_iter().filter(|name| !name.is_empty()).map(ValueInfoProto::new).collect(),
        output: OUTPUTS.map(ValueInfoProto::new).into(),
        ..GraphProto::default()
    };
    Model::from_proto(ModelProto::new(10, &[("", 21), ("com.microsoft", 1)], graph))
}

/// Returns the number of significant bits that elements have before a rotation. They have as many as their type has, or
/// so few that the rotation is exact in float32.
fn bits(element: ElementType) -> u32 {
    match element {
        BFloat16 => 8,
        Float16 => 11,
        _ => 16,
    }
}

/// Rounds an element to the type of a cache.
fn rounded(cache: ElementType, element: f64) -> f64 {
    match cache {
        BFloat16 => bf16::from_f64(element).to_f64(),
        Float16 => f16::from_f64(element).to_f64(),
        _ => f64::from(element as f32),
    }
}

/// Returns a small integer as float64.
fn integer(value: usize) -> f64 {
    value as f64
}

/// Returns the variant with this number, which wraps.
fn nth<E: strum::IntoEnumIterator + Copy>(number: usize) -> E {
    let all: Vec<E> = E::iter().collect();
    all[number % all.len()]
}

fn object(fields: impl IntoIterator<Item = String>) -> String {
    format!("{{{}}}", fields.into_iter().collect::<Vec<_>>().join(", "))
}

fn field(name: &str, value: impl Display) -> String {
    format!("\"{name}\": {value}")
}
