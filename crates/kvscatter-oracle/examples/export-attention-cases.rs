//! Writes cases of attention with their expected outputs as JSON, one case a line:
//!
//! ```text
//! cargo run -p kvscatter-oracle --example export-attention-cases -- FILE SEED COUNT
//! ```
//!
//! A tensor is `{"shape": […], "data": […]}`. Absent inputs and attributes are `null`. Numbers that are not
//! finite are `NaN`, `Infinity` and `-Infinity`, as Python's `json` reads and writes them. A case that must be
//! refused has the rule as a text in `refusal`, and all its outputs are `null`.

use std::env;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, Error, Write};

use kvscatter_oracle::attention::{Array, Mask, Outputs, Positions};
use kvscatter_oracle::cases::attention::{AttentionCase, random, refused};

fn main() -> io::Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [path, seed, count] = arguments.as_slice() else {
        return Err(Error::other("usage: export-attention-cases FILE SEED COUNT"));
    };
    let seed = seed.parse().map_err(|_| Error::other(format!("SEED = {seed}: must be a number")))?;
    let count = count.parse().map_err(|_| Error::other(format!("COUNT = {count}: must be a number")))?;

    let mut out = BufWriter::new(File::create(path)?);
    for case in random(seed, count).chain(refused(seed, count / 10)) {
        writeln!(out, "{{{}}}", fields(&case).join(", "))?;
    }
    out.flush()
}

fn fields(case: &AttentionCase) -> Vec<String> {
    let (attention, inputs) = (&case.attention, &case.inputs);
    let (mask_type, mask) = match &inputs.mask {
        None => ("null".to_owned(), None),
        Some(Mask::Bool(mask)) => (text("bool"), Some(tensor(mask, bool::to_string))),
        Some(Mask::Float(mask)) => (text("float"), Some(numbers(mask))),
    };
    let (lengths, ring) = match &inputs.positions {
        Positions::Full => (None, None),
        Positions::Lengths(lengths) => (Some(lengths), None),
        Positions::Ring(tokens) => (None, Some(tokens)),
    };
    let expected = case.expected();
    let output = |output: fn(&Outputs) -> &Array<f64>| {
        or_null(expected.as_ref().ok().map(|outputs| numbers(output(outputs))))
    };
    [
        ("name", text(&case.name)),
        ("element", text(inputs.element.name())),
        ("operator_set", or_null(case.operator_set())),
        ("painted", case.painted.to_string()),
        ("is_causal", u8::from(attention.is_causal).to_string()),
        ("scale", or_null(attention.scale.map(number))),
        ("softcap", number(attention.softcap)),
        ("q_num_heads", or_null(attention.q_num_heads)),
        ("kv_num_heads", or_null(attention.kv_num_heads)),
        ("qk_matmul_output_mode", attention.qk_matmul_output_mode.to_string()),
        ("softmax_precision", or_null(attention.softmax_precision)),
        ("left_window_size", attention.left_window_size.to_string()),
        ("right_window_size", attention.right_window_size.to_string()),
        ("q", numbers(&inputs.q)),
        ("k", numbers(&inputs.k)),
        ("v", numbers(&inputs.v)),
        ("mask_type", mask_type),
        ("mask", or_null(mask)),
        ("past_key", or_null(inputs.past_key.as_ref().map(numbers))),
        ("past_value", or_null(inputs.past_value.as_ref().map(numbers))),
        ("nonpad_kv_seqlen", or_null(lengths.map(|lengths| format!("{lengths:?}")))),
        ("ring_tokens", or_null(ring.map(|tokens| format!("{tokens:?}")))),
        ("refusal", or_null(expected.as_ref().err().map(|refusal| text(&format!("{refusal:?}"))))),
        ("y", output(|outputs| &outputs.y)),
        ("present_key", output(|outputs| &outputs.present_key)),
        ("present_value", output(|outputs| &outputs.present_value)),
        ("qk_matmul_output", output(|outputs| &outputs.qk_matmul_output)),
    ]
    .map(|(name, value)| format!("\"{name}\": {value}"))
    .into()
}

fn or_null(value: Option<impl Display>) -> String {
    value.map_or_else(|| "null".to_owned(), |value| value.to_string())
}

/// Returns the JSON string of a text. Only quotation marks and backslashes occur that need an escape.
fn text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn numbers(array: &Array<f64>) -> String {
    tensor(array, |&value| number(value))
}

fn tensor<E>(array: &Array<E>, element: impl Fn(&E) -> String) -> String {
    let data: Vec<_> = array.data.iter().map(element).collect();
    format!("{{\"shape\": {:?}, \"data\": [{}]}}", array.shape, data.join(", "))
}

fn number(value: f64) -> String {
    if value.is_finite() {
        format!("{value:?}")
    } else if value.is_nan() {
        "NaN".to_owned()
    } else {
        format!("{}Infinity", if value < 0.0 { "-" } else { "" })
    }
}
