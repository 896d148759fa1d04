//! Measures what a static cache saves in a decode step.
//!
//! 1. A generated decoder with growing caches, the decoder that `kvscatter convert` makes from it, and the same
//!    decoder with `GroupQueryAttention` run in ONNX Runtime, in turn. The caches are also timed alone.
//! 2. Converted test decoders run in tract, with caches of several capacities in turn.

mod decoder;
mod measure;
pub(crate) mod rings;
pub(crate) mod sessions;
pub(crate) mod tract;

use kvscatter_onnx::convert::{ConvertOptions, convert};
use kvscatter_onnx::internal::text::units;

use self::decoder::{Decoder, Style};
use self::measure::{Decoders, GROUP_QUERY, GROWING};
use crate::measure::Budget;
use crate::results::{CaseResults, Numbers, Results, RowResults};
use crate::runtimes::Runtimes;
use crate::target::Target;

/// The number of slots of the static caches.
const CAPACITY: usize = 4096;
/// The numbers of tokens in the caches before the timed step.
const CONTEXTS: [usize; 9] = [1, 16, 64, 128, 256, 512, 1024, 2048, CAPACITY - 1];

/// The converted decoder with the exported model's attention.
const SEPARATE: &str = "static, separate nodes";
/// The converted decoder with `Attention` nodes.
const STATIC: &str = "static";
/// The same with kvscatter's plugin.
const PLUGIN: &str = "static, plugin";

/// Measures a decode step and its caches at several context lengths.
pub(crate) fn measure(runtimes: &Runtimes, quick: bool) -> Result<Results, String> {
    let stock = runtimes.stock()?;
    let decoder = Decoder::default();
    let original = decoder.model(CAPACITY, Style::Growing);
    let options = ConvertOptions::new(CAPACITY);
    let converted = convert(&original, options).map_err(|error| error.to_string())?;
    let separate = convert(&original, options.keep_attention(true)).map_err(|error| error.to_string())?;
    let mut decoders = Decoders::new(&decoder, CAPACITY);
    decoders.add_growing(&original, stock)?;
    decoders.add_static(SEPARATE, &separate, stock)?;
    decoders.add_static(STATIC, &converted, stock)?;
    let plugin = runtimes.plugin();
    let plugin = plugin.and_then(|plugin| decoders.add_static(PLUGIN, &converted, plugin));
    plugin.unwrap_or_else(|why| println!("{PLUGIN}: {why}"));
    decoders.add_group_query(&decoder.model(CAPACITY, Style::GroupQuery), stock)?;

    let mut caches =
        RowResults::new("caches", "the nodes between past and present alone").plot(Some("caches"));
    let mut steps = RowResults::new("step", "a whole decode step").plot(Some("step"));
    let (budget, mut difference) = (Budget::rounds(quick, 21), 0.0_f32);
    for context in CONTEXTS {
        let name = format!("context {context}");
        let numbers = || Numbers::from([("context", context as f64)]);
        let alone = decoders.measure_caches(context, budget)?;
        let targets =
            if context + 1 == CAPACITY { vec![Target::new(SEPARATE, GROWING, 0.2)] } else { Vec::new() };
        caches.push(CaseResults::new(&name, &alone, &targets).numbers(numbers()));
        let (measured, of_context) = decoders.measure(&[context], budget)?;
        difference = difference.max(of_context);
        for measured in &measured {
            steps.push(CaseResults::new(&name, measured, &targets_at(context)).numbers(numbers()));
        }
    }
    let sizes = format!(
        "{} layers, {} heads of {} float32, {CAPACITY} slots of {}",
        decoder.layers,
        decoder.heads,
        decoder.head_size,
        units::bytes(decoder.cache_bytes(CAPACITY) as u64)
    );
    Ok(Results::new("models", !quick, vec![caches, steps])
        .fact("runtime", runtimes.label())
        .fact("decoder", sizes)
        .fact("largest difference of logits", format!("{difference:.1e}")))
}

/// Returns the targets of a step at a context length.
fn targets_at(context: usize) -> Vec<Target> {
    /// From this length on, a static cache must not be slower than a growing one.
    const LONG: usize = 256;
    let over_growing = match context {
        _ if context + 1 == CAPACITY => 1.0 / 3.0,
        LONG.. => 1.0,
        _ => 1.03,
    };
    vec![Target::new(PLUGIN, GROWING, over_growing), Target::new(PLUGIN, GROUP_QUERY, 1.1)]
}
