//! Measures what rings save in layers with a window.
//!
//! 1. The caches of a decoder like Gemma 3 are allocated with rings, and with linear caches and masks.
//! 2. A decode step of layers with a window alone is timed at several context lengths.
//! 3. A decode step of the whole decoder is timed, and the nodes that compute the mask of its rings alone.

use std::collections::BTreeSet;

use kvscatter_onnx::convert::{ConvertOptions, Converted, WindowedCaches, convert};
use kvscatter_onnx::internal::text::units;
use kvscatter_onnx::{Dimension, Model};

use super::decoder::{Decoder, Style};
use super::measure::Decoders;
use crate::graph::{BOOL, value};
use crate::measure::Budget;
use crate::results::{CaseResults, Results, RowResults};
use crate::runtimes::Runtimes;
use crate::target::{Target, Verdict};

/// The number of tokens of a sample.
const CAPACITY: usize = 32768;
const WINDOW: usize = 512;
/// The numbers of tokens in the caches before the timed step. The first one fills the window.
const WINDOWED_CONTEXTS: [usize; 6] = [WINDOW, 128, 1024, 4096, 16384, CAPACITY - 1];
const CONTEXTS: [usize; 3] = [WINDOW, 4096, CAPACITY - 1];

const RINGS: &str = "rings";
const LINEAR: &str = "linear";
const RING_MASK: &str = "mask of the rings";

/// The largest allowed ratio of the bytes of the caches with rings to those of linear caches.
const SMALL: f64 = 0.2;
/// The largest allowed ratio of a step of layers with rings to the one at `WINDOW` tokens.
const FLAT: f64 = 1.05;
/// The largest allowed part of a step that computes the mask of the rings.
const MASK_PART: f64 = 0.01;

/// Returns a decoder with heads and windows as in Gemma 3 1B. Its weights are smaller.
fn decoder() -> Decoder {
    Decoder {
        layers: 26,
        heads: 4,
        kv_heads: 1,
        head_size: 256,
        hidden: 128,
        vocabulary: 256,
        window: Some(WINDOW),
        global_every: Some(6),
    }
}

/// Measures the caches and the decode step of a decoder like Gemma 3 with rings and with linear caches.
pub(crate) fn measure(runtimes: &Runtimes, quick: bool) -> Result<Results, String> {
    let (stock, plugin) = (runtimes.stock()?, runtimes.plugin()?);
    let mut difference = 0.0_f32;

    let decoder = Decoder { layers: 4, global_every: None, ..self::decoder() };
    let (_, rings, linear) = models(&decoder)?;
    let mut windowed = |id: &str, description: &str, is_flat, runtime, rounds| {
        let mut row = RowResults::new(id, description);
        let mut decoders = Decoders::new(&decoder, CAPACITY);
        decoders.add_static(RINGS, &rings, runtime)?;
        decoders.add_static(LINEAR, &linear, runtime)?;
        let (measured, largest) = decoders.measure(&WINDOWED_CONTEXTS, Budget::rounds(quick, rounds))?;
        difference = difference.max(largest);
        let target = Target::new(RINGS, "rings at 512 tokens", FLAT);
        let first = measured.first().and_then(|first| first.times(RINGS)).cloned();
        let mut sorted: Vec<_> = WINDOWED_CONTEXTS.into_iter().zip(&measured).collect();
        sorted.sort_by_key(|(context, _)| *context);
        for (context, measured) in sorted {
            let mut case = CaseResults::new(&name_of(context), measured, &[]);
            if context > WINDOW && is_flat {
                let ratio = measured.times(RINGS).zip(first.as_ref()).map(|(rings, first)| rings.over(first));
                case.verdicts.push(Verdict::new(&target, FLAT, ratio, measured.noise));
            }
            row.push(case);
        }
        Ok::<_, String>(row)
    };
    let with_plugin = windowed("windowed", "a decode step of 4 layers with the window", true, plugin, 401)?;
    let without = windowed("windowed-stock", "the same without the plugin", false, stock, 11)?;

    let decoder = self::decoder();
    let (exported, rings, linear) = models(&decoder)?;
    let bytes = [plugin.open(&rings.model)?.memory().total, plugin.open(&linear.model)?.memory().total];
    let mut decoders = Decoders::new(&decoder, CAPACITY);
    decoders.add_static(RINGS, &rings, plugin)?;
    decoders.add_static(LINEAR, &linear, plugin)?;
    decoders.add_group_query(&exported, stock)?;
    let (mask, output) = ring_mask(&rings.model)?;
    decoders.add_part(RING_MASK, &rings, (&mask, output), plugin)?;
    let mut whole = RowResults::new("whole", "a decode step of the whole decoder");
    // The caches of one context length at a time are in memory.
    for context in CONTEXTS {
        let (measured, largest) = decoders.measure(&[context], Budget::rounds(quick, 21))?;
        difference = difference.max(largest);
        for measured in &measured {
            let targets = [Target::new(RING_MASK, RINGS, MASK_PART)];
            whole.push(CaseResults::new(&name_of(context), measured, &targets));
        }
    }
    let mut memory = RowResults::new("bytes", "the memory of all caches");
    let ratio = bytes[0] as f64 / bytes[1] as f64;
    let verdict = Verdict::exact(&Target::new(RINGS, LINEAR, SMALL), ratio);
    memory.push(CaseResults::untimed(&name_of(CAPACITY), verdict));
    let [rings, linear] = bytes.map(units::bytes);
    Ok(Results::new("rings", !quick, vec![memory, with_plugin, without, whole])
        .fact("runtime", runtimes.label())
        .fact("caches", format!("{rings} with rings, {linear} linear"))
        .fact("largest difference of logits", format!("{difference:.1e}")))
}

fn name_of(context: usize) -> String {
    format!("context {context}")
}

/// Returns the exported decoder, and the ones that `convert` makes from it with rings and with linear caches.
fn models(decoder: &Decoder) -> Result<(Model, Converted, Converted), String> {
    let exported = decoder.model(CAPACITY, Style::GroupQuery);
    let options = ConvertOptions::new(CAPACITY);
    let rings = convert(&exported, options).map_err(|error| error.to_string())?;
    let linear =
        convert(&exported, options.windowed(WindowedCaches::Mask)).map_err(|error| error.to_string())?;
    if rings.report.caches.rings.len() != 1
        || !rings.report.caches.linear_windows.is_empty()
        || !linear.report.caches.rings.is_empty()
    {
        return Err("the decoders do not have the wanted caches".to_owned());
    }
    Ok((exported, rings, linear))
}

/// Returns the nodes that compute the mask of the rings as a model, and the name of the mask.
fn ring_mask(decoder: &Model) -> Result<(Model, String), String> {
    let mut proto = decoder.proto().clone();
    // The first layer has a window.
    let attention = proto.graph.node.iter().find(|node| node.op_type.as_deref() == Some("Attention"));
    let mask = attention.and_then(|node| node.input.get(3)).ok_or("no Attention node has a mask")?.clone();
    let mut needed = BTreeSet::from([mask.clone()]);
    let graph = proto.graph.get_or_insert_default();
    // Nodes are in the order of computation.
    graph.node.reverse();
    graph.node.retain(|node| {
        let is_needed = node.output.iter().any(|output| needed.contains(output));
        if is_needed {
            needed.extend(node.input.iter().cloned());
        }
        is_needed
    });
    graph.node.reverse();
    let is_needed = |name: &Option<String>| name.as_ref().is_some_and(|name| needed.contains(name));
    graph.input.retain(|input| is_needed(&input.name));
    graph.initializer.retain(|weight| is_needed(&weight.name));
    graph.value_info.clear();
    let dims = ["batch", "heads", "tokens", "slots"].map(Dimension::Symbolic);
    graph.output = vec![value(&mask, BOOL as i32, &dims)];
    Ok((Model::from_proto(proto), mask))
}

#[cfg(test)]
mod tests {
    use super::{Decoder, decoder, models, ring_mask};

    #[test]
    fn all_layers_with_a_window_have_rings_and_their_mask_needs_no_cache() {
        let (_, rings, linear) = models(&Decoder { hidden: 4, ..decoder() }).unwrap();
        assert_eq!(rings.report.caches.rings.values().sum::<usize>(), 2 * 22);
        assert_eq!((rings.report.caches.count, linear.report.caches.count), (52, 52));
        let (mask, _) = ring_mask(&rings.model).unwrap();
        let graph = mask.graph().unwrap();
        assert!(graph.nodes().iter().any(|node| node.is("Mod")));
        let inputs: Vec<_> = graph.input_names().collect();
        assert_eq!(inputs, ["input_ids", &rings.report.inputs.write_indices]);
    }
}
