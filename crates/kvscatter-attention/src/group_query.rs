//! `GroupQueryAttention` of ONNX Runtime's domain `com.microsoft`: which nodes the kernels can compute.
//!
//! The operator gets new inputs and attributes with new versions of the runtime, all in its version 1. So an attribute
//! or an input that has no name here is refused, and the runtime's own kernel computes the node.

use core::fmt;

use kvscatter::ElementType;

use crate::error::AttentionError;
use crate::operator::Attention;

/// `GroupQueryAttention` of ONNX Runtime's domain `com.microsoft`, as a node declares it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupQuery {
    /// The number of query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// The number of key and value heads.
    pub kv_heads: usize,
    /// How new queries and keys are rotated. `None` if they are not.
    pub rotation: Option<RotaryOrder>,
    /// Whether a part of the weights of each head goes to a sink whose score is 0. Such a node has no `head_sink`.
    pub is_smooth: bool,
    /// How the scales of keys and of values are given, if the cache has int8 codes.
    pub scales: Option<[CacheScale; 2]>,
    /// The causal attention over the cache, with the scale, cap and window of the node.
    pub operator: Attention,
}

/// What one scale of a cache of codes is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheScale {
    /// The whole cache: `PER_TENSOR`.
    Tensor,
    /// Each element of each head: `PER_CHANNEL`.
    Channel,
}

/// Which two elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RotaryOrder {
    /// Element `i` of the first half and element `i` of the second half of the rotated elements.
    Halves,
    /// Elements `2i` and `2i + 1`.
    Interleaved,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are those of ONNX's types")]
pub enum AttributeValue<'a> {
    Int(i64),
    Float(f32),
    String(&'a str),
    /// A value of any other type.
    Other,
}

/// What a model declares about an input of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Declared {
    /// The node does not have the input.
    #[default]
    Absent,
    /// The node has the input, but its element type is not known.
    Unknown,
    /// The node has the input, with elements of this type.
    Of(ElementType),
}

/// Why the kernels cannot compute a node.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum NotTaken {
    /// The kernels do not know the attribute.
    #[error("attribute {name} is not supported")]
    Attribute { name: String },
    /// A required attribute is absent.
    #[error("attribute {name} is missing")]
    AttributeMissing { name: &'static str },
    /// The value of an attribute is not supported.
    #[error("{name} = {value}: must be {expected}")]
    Value { name: String, value: String, expected: &'static str },
    /// The query heads cannot be divided into groups.
    #[error("num_heads = {heads} is not a multiple of kv_num_heads = {kv_heads}")]
    Group { heads: usize, kv_heads: usize },
    /// The scale or the cap is not valid.
    #[error(transparent)]
    Operator(#[from] AttentionError),
    /// The kernels cannot use the input.
    #[error("input {name} is not supported")]
    Input { name: &'static str },
    /// The node has more inputs than the kernels know.
    #[error("the node has {got} inputs, but only {known} are known")]
    Inputs { got: usize, known: usize },
    /// The kernels need an input that is absent.
    #[error("input {name} is missing")]
    InputMissing { name: &'static str },
    /// Only one of two inputs or attributes is used.
    #[error("{one} and {other} must be used together")]
    InputAlone { one: &'static str, other: &'static str },
    /// Both kinds of sinks are present.
    #[error("smooth_softmax = 1 and input head_sink cannot be used together")]
    Sinks,
    /// The elements of an input have another type than the kernels need.
    #[error("input {name} has elements of type {element}, must be {expected}")]
    Type {
        name: &'static str,
        element: ElementType,
        /// The type, or what it may be.
        expected: String,
    },
    /// The kernels cannot compute the output.
    #[error("output {name} is not supported")]
    Output { name: &'static str },
    /// The kernels need an output that is absent.
    #[error("output {name} is missing")]
    OutputMissing { name: &'static str },
}

impl GroupQuery {
    /// The domain of the operator.
    pub const DOMAIN: &'static str = "com.microsoft";

    /// The name of the operator.
    pub const NAME: &'static str = "GroupQueryAttention";

    /// The names of the inputs, in their order.
    pub const INPUTS: [&'static str; 17] = [
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
        "k_scale",
        "v_scale",
        "q_norm_weight",
        "k_norm_weight",
        "query_seqlens",
    ];

    /// The attributes with an integer that change what is computed. Other integers that [`read`](Self::read) accepts
    /// have one value only, or no effect.
    pub const INTEGERS: [&'static str; 7] = [
        "num_heads",
        "kv_num_heads",
        "local_window_size",
        "do_rotary",
        "rotary_interleaved",
        "smooth_softmax",
        "kv_cache_bit_width",
    ];

    /// The attributes with a string that change what is computed.
    pub const STRINGS: [&'static str; 2] = ["k_quant_type", "v_quant_type"];

    /// The values of these strings that [`read`](Self::read) accepts.
    pub const QUANT_TYPES: [&'static str; 3] = ["NONE", "PER_TENSOR", "PER_CHANNEL"];

    /// The attributes with a float that change what is computed.
    pub const FLOATS: [&'static str; 2] = ["scale", "softcap"];

    /// The names of the outputs, in their order.
    pub const OUTPUTS: [&'static str; 4] = ["output", "present_key", "present_value", "output_qk"];

    /// Reads a node. `outputs` contains for each output whether the node has it. Inputs and outputs after the end of a
    /// list are absent.
    ///
    /// The element types of some inputs may be unknown. Those that are known must be supported.
    ///
    /// # Errors
    /// Returns why the kernels cannot compute the node.
    pub fn read<'a>(
        attributes: impl IntoIterator<Item = (&'a str, AttributeValue<'a>)>,
        inputs: &[Declared],
        outputs: &[bool],
    ) -> Result<Self, NotTaken> {
        let declared = Self::of_attributes(attributes)?;
        declared.check_inputs(inputs)?;
        check_types(inputs, declared.scales.is_some())?;
        check_outputs(outputs)?;
        Ok(declared)
    }

    fn of_attributes<'a>(
        attributes: impl IntoIterator<Item = (&'a str, AttributeValue<'a>)>,
    ) -> Result<Self, NotTaken> {
        let (mut heads, mut kv_heads) = (None, None);
        let (mut rotates, mut is_interleaved, mut is_smooth) = (false, false, false);
        let (mut key_scale, mut value_scale, mut bits) = (None, None, 0);
        let mut operator = Attention::new().causal(true);
        for (name, value) in attributes {
            let attribute = Attribute { name, value };
            match name {
                "num_heads" => heads = Some(attribute.count()?),
                "kv_num_heads" => kv_heads = Some(attribute.count()?),
                "scale" => {
                    let scale = attribute.float()?;
                    // 0 is the runtime's default, which is that of ONNX.
                    operator = if scale == 0.0 { operator } else { operator.scale(scale) };
                }
                "softcap" => operator = operator.softcap(attribute.float()?),
                "local_window_size" => operator = operator.window(attribute.tokens_before()?, None),
                "do_rotary" => rotates = attribute.flag()?,
                "rotary_interleaved" => is_interleaved = attribute.flag()?,
                // -1 is the runtime's default.
                "smooth_softmax" if value == AttributeValue::Int(-1) => {}
                "smooth_softmax" => is_smooth = attribute.flag()?,
                "causal" => attribute.only(AttributeValue::Int(1), "1")?,
                "qk_output" | "sliding_window_cache" => attribute.only(AttributeValue::Int(0), "0")?,
                "k_quant_type" => key_scale = attribute.scale()?,
                "v_quant_type" => value_scale = attribute.scale()?,
                "kv_cache_bit_width" => bits = attribute.integer()?,
                // Norms have weights, which `check_inputs` refuses. Without these, the attributes have no effect.
                "qk_norm_epsilon" | "q_norm_epsilon" | "k_norm_epsilon" => drop(attribute.float()?),
                _ => return Err(NotTaken::Attribute { name: name.to_owned() }),
            }
        }
        operator.check()?;
        let scales = key_scale.zip(value_scale).map(|(key, value)| [key, value]);
        if scales.is_none() && key_scale.or(value_scale).is_some() {
            let (one, other) = ("k_quant_type", "v_quant_type");
            return Err(NotTaken::InputAlone { one, other });
        }
        let (width, expected) = if scales.is_some() { (8, "8") } else { (0, "0") };
        if bits != width {
            let (name, value) = ("kv_cache_bit_width".to_owned(), bits.to_string());
            return Err(NotTaken::Value { name, value, expected });
        }
        let heads = heads.ok_or(NotTaken::AttributeMissing { name: "num_heads" })?;
        let kv_heads = kv_heads.ok_or(NotTaken::AttributeMissing { name: "kv_num_heads" })?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(NotTaken::Group { heads, kv_heads });
        }
        let order = if is_interleaved { RotaryOrder::Interleaved } else { RotaryOrder::Halves };
        Ok(Self { heads, kv_heads, rotation: rotates.then_some(order), is_smooth, scales, operator })
    }

    /// Checks which inputs the node has.
    fn check_inputs(&self, inputs: &[Declared]) -> Result<(), NotTaken> {
        let known = Self::INPUTS.len();
        if inputs.len() > known {
            return Err(NotTaken::Inputs { got: inputs.len(), known });
        }
        let has = |name| input(inputs, name) != Declared::Absent;
        for name in ["q_norm_weight", "k_norm_weight", "query_seqlens"] {
            if has(name) {
                return Err(NotTaken::Input { name });
            }
        }
        for name in ["k_scale", "v_scale"] {
            match (self.scales, has(name)) {
                (Some(_), false) => return Err(NotTaken::InputMissing { name }),
                (None, true) => return Err(NotTaken::Input { name }),
                _ => {}
            }
        }
        // Without a key and a value, the query contains all three.
        for (one, other) in [("key", "value"), ("cos_cache", "sin_cache")] {
            if has(one) != has(other) {
                return Err(NotTaken::InputAlone { one, other });
            }
        }
        let rotary = ["cos_cache", "sin_cache"].into_iter().filter(|_| self.rotation.is_some());
        let required = ["query", "past_key", "past_value", "seqlens_k", "total_sequence_length"];
        match required.into_iter().chain(rotary).find(|name| !has(name)) {
            Some(name) => Err(NotTaken::InputMissing { name }),
            None if self.is_smooth && has("head_sink") => Err(NotTaken::Sinks),
            None => Ok(()),
        }
    }
}

/// Checks the types of the inputs, as far as they are known. The cache may have elements of half the size, which are
/// widened when they are read. A cache of codes needs queries in float32.
fn check_types(inputs: &[Declared], has_codes: bool) -> Result<(), NotTaken> {
    use ElementType::{BFloat16, Float16, Float32, Int8, Int32, Int64};

    let check = |names: &[&'static str], accepted: &[ElementType]| {
        for &name in names {
            match input(inputs, name) {
                Declared::Of(element) if !accepted.contains(&element) => {
                    let expected = accepted.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
                    return Err(NotTaken::Type { name, element, expected });
                }
                _ => {}
            }
        }
        Ok(())
    };
    let first = |names: &[&'static str]| {
        names.iter().find_map(|name| match input(inputs, name) {
            Declared::Of(element) => Some(element),
            Declared::Absent | Declared::Unknown => None,
        })
    };

    let floats = ["query", "key", "value", "cos_cache", "sin_cache", "attention_bias", "head_sink"];
    let cache = ["past_key", "past_value"];
    let all = [Float32, Float16, BFloat16];
    if has_codes {
        check(&floats, &[Float32])?;
        check(&["k_scale", "v_scale"], &[Float32])?;
        check(&cache, &[Int8])?;
    } else {
        check(&floats, &all)?;
        check(&cache, &all)?;
        if let Some(element) = first(&floats) {
            check(&floats, &[element])?;
            check(&cache, if element == Float32 { &all } else { core::slice::from_ref(&element) })?;
        }
    }
    if let Some(element) = first(&cache) {
        check(&cache, &[element])?;
    }
    check(&["seqlens_k", "total_sequence_length"], &[Int32])?;
    check(&["position_ids"], &[Int64])
}

/// Checks which outputs the node has. A node without presents attends to a cache that it does not return.
fn check_outputs(outputs: &[bool]) -> Result<(), NotTaken> {
    let has = |index: usize| outputs.get(index).is_some_and(|is_present| *is_present);
    let [output, key, value, scores] = GroupQuery::OUTPUTS;
    match [has(0), has(1), has(2), has(3)] {
        [false, ..] => Err(NotTaken::OutputMissing { name: output }),
        [_, false, true, _] => Err(NotTaken::OutputMissing { name: key }),
        [_, true, false, _] => Err(NotTaken::OutputMissing { name: value }),
        [.., true] => Err(NotTaken::Output { name: scores }),
        _ => Ok(()),
    }
}

/// Returns what is declared about the input of this name.
fn input(inputs: &[Declared], name: &str) -> Declared {
    let named = GroupQuery::INPUTS.iter().zip(inputs).find(|(input, _)| **input == name);
    named.map(|(_, declared)| *declared).unwrap_or_default()
}

/// An attribute of a node.
#[derive(Clone, Copy)]
struct Attribute<'a> {
    name: &'a str,
    value: AttributeValue<'a>,
}

impl Attribute<'_> {
    fn count(self) -> Result<usize, NotTaken> {
        match self.value {
            AttributeValue::Int(value) => usize::try_from(value).ok().filter(|count| *count > 0),
            _ => None,
        }
        .ok_or_else(|| self.must_be("an integer above 0"))
    }

    fn flag(self) -> Result<bool, NotTaken> {
        match self.value {
            AttributeValue::Int(0) => Ok(false),
            AttributeValue::Int(1) => Ok(true),
            _ => Err(self.must_be("0 or 1")),
        }
    }

    fn float(self) -> Result<f32, NotTaken> {
        match self.value {
            AttributeValue::Float(value) => Ok(value),
            _ => Err(self.must_be("a float")),
        }
    }

    /// Returns how many tokens before its own a query sees. A window counts the token of the query.
    fn tokens_before(self) -> Result<Option<usize>, NotTaken> {
        let AttributeValue::Int(size) = self.value else { return Err(self.must_be("an integer")) };
        match i32::try_from(size).map(|size| usize::try_from(size).ok().and_then(|size| size.checked_sub(1)))
        {
            Ok(before @ Some(_)) => Ok(before),
            _ if size == -1 => Ok(None),
            _ => Err(self.must_be("-1, or an int32 above 0")),
        }
    }

    fn integer(self) -> Result<i64, NotTaken> {
        match self.value {
            AttributeValue::Int(value) => Ok(value),
            _ => Err(self.must_be("an integer")),
        }
    }

    /// Returns what one scale is for, or `None` if there are no scales.
    fn scale(self) -> Result<Option<CacheScale>, NotTaken> {
        match self.value {
            AttributeValue::String("NONE") => Ok(None),
            AttributeValue::String("PER_TENSOR") => Ok(Some(CacheScale::Tensor)),
            AttributeValue::String("PER_CHANNEL") => Ok(Some(CacheScale::Channel)),
            _ => Err(self.must_be("NONE, PER_TENSOR or PER_CHANNEL")),
        }
    }

    /// Checks that the attribute has the only value that is supported.
    fn only(self, accepted: AttributeValue<'static>, expected: &'static str) -> Result<(), NotTaken> {
        if self.value == accepted { Ok(()) } else { Err(self.must_be(expected)) }
    }

    fn must_be(self, expected: &'static str) -> NotTaken {
        NotTaken::Value { name: self.name.to_owned(), value: self.value.to_string(), expected }
    }
}

impl fmt::Display for AttributeValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::String(value) => value.escape_debug().fmt(f),
            Self::Other => f.write_str("a value of another type"),
        }
    }
}

#[cfg(test)]
mod tests;
