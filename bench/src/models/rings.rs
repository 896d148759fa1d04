//! Measures what rings save in layers with a window.
//!
//! 1. The caches of a decoder like Gemma 3 are allocated with rings, and with linear caches and masks.
//! 2. A decode step of layers with a window alone is timed at several context lengths.
//! 3. A decode step of the whole decoder is timed, and the nodes that compute the mask of its rings alone.

mod page;
mod results;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use kvscatter_bench::{Budget, MedianSpread, Timings, measure_calls};
use kvscatter_onnx::Model;
use kvscatter_onnx::convert::{ConvertOptions, Converted, WindowedCaches, convert};

use super::Options;
use super::decoder::{Decoder, Style};
use super::measure::Decoders;
use crate::attention::Runtimes;
use crate::graph::{BOOL, Dim, value};
use crate::host::Host;
use crate::suite::Target;
use crate::target::{Status, Verdict, status};
use results::{CAPACITY, Column, LINEAR, Measured, RING_MASK, RINGS, Results, WINDOW};

/// The numbers of tokens in the caches before the timed step.
const WINDOWED_CONTEXTS: [usize; 6] = [128, WINDOW, 1024, 4096, 16384, CAPACITY - 1];
const CONTEXTS: [usize; 3] = [WINDOW, 4096, CAPACITY - 1];
const COMMAND: &str = "cargo xtask bench-rings --write-docs";

/// The largest allowed ratio of the bytes of the caches with rings to those of linear caches.
const SMALL: f64 = 0.2;
/// The largest allowed ratio of a step of layers with rings to the one at `WINDOW` tokens.
const FLAT: f64 = 1.05;
/// The largest allowed part of a step that computes the mask of the rings.
const MASK_PART: f64 = 0.01;

/// Measures the caches and the decode step of a decoder like Gemma 3 with rings and with linear caches
///
/// The logits of all decoders are compared before they are timed. All that is compared is timed in turn in one
/// process. The measurement takes about two minutes and 5 GiB of memory. Close other programs first.
#[derive(Args)]
#[command(bin_name = "cargo xtask bench-rings")]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
}

pub(crate) fn run(Arguments { options }: &Arguments) -> Result<(), String> {
    let runtimes = options.runtimes()?;
    let results: Results = options.results("rings.json", || measure_all(&runtimes, options.quick))?;
    println!("{}", page::summary(&results));
    options.publish("docs/rings.md", COMMAND, &page::generate(&results), &[])?;
    match results.verdicts().any(|verdict| verdict.status == Status::Missed) && !results.quick {
        true => Err("a target was missed".to_owned()),
        false => Ok(()),
    }
}

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

fn measure_all(runtimes: &Runtimes, quick: bool) -> Result<Results, String> {
    let (stock, plugin) = (runtimes.stock()?, runtimes.plugin()?);
    let budget = |rounds| Budget { time: Duration::ZERO, min_rounds: if quick { 3 } else { rounds } };

    let decoder = Decoder { layers: 4, global_every: None, ..self::decoder() };
    let (_, rings, linear) = models(&decoder)?;
    println!("{} layers with a window", decoder.layers);
    let measure = |runtime, targets, budget| {
        let mut decoders = Decoders::new(&decoder, CAPACITY);
        decoders.add_static(RINGS, &rings, runtime)?;
        decoders.add_static(LINEAR, &linear, runtime)?;
        Measured::new(&mut decoders, &WINDOWED_CONTEXTS, targets, budget)
    };
    let full = WINDOWED_CONTEXTS.into_iter().filter(|&context| context > WINDOW);
    let targets = full.map(|context| target((RINGS, context), (RINGS, WINDOW), FLAT)).collect();
    let windowed = measure(plugin, targets, budget(401))?;
    println!("the same without the plugin");
    let stock_windowed = measure(stock, Vec::new(), budget(11))?;

    let windowed_layers = decoder.layers;
    let decoder = self::decoder();
    let (exported, rings, linear) = models(&decoder)?;
    println!("the caches of {} layers", decoder.layers);
    let bytes = [plugin.open(&rings.model)?.memory().total, plugin.open(&linear.model)?.memory().total];
    let ratio = bytes[0] as f64 / bytes[1] as f64;
    let mut decoders = Decoders::new(&decoder, CAPACITY);
    decoders.add_static(RINGS, &rings, plugin)?;
    decoders.add_static(LINEAR, &linear, plugin)?;
    decoders.add_group_query(&exported, stock)?;
    let (mask, output) = ring_mask(&rings.model)?;
    decoders.add_part(RING_MASK, &rings, (&mask, output), plugin)?;
    println!("{} layers", decoder.layers);
    // The caches of one context length at a time are in memory.
    let at_context = |context| {
        let targets = vec![target((RING_MASK, context), (RINGS, context), MASK_PART)];
        Measured::new(&mut decoders, &[context], targets, budget(21))
    };
    let whole = CONTEXTS.into_iter().map(at_context).collect::<Result<_, _>>()?;
    Ok(Results {
        host: Host::read(),
        runtime: runtimes.label(),
        quick,
        decoder,
        windowed_layers,
        bytes,
        bytes_verdict: Verdict {
            engine: RINGS.to_owned(),
            baseline: LINEAR.to_owned(),
            limit: SMALL,
            ratio: Some(ratio),
            processes: None,
            status: status(ratio, SMALL, MedianSpread { lowest: 1.0, highest: 1.0 }),
        },
        windowed,
        stock_windowed,
        whole,
    })
}

/// Returns the exported decoder, and the ones that `convert` makes from it with rings and with linear caches.
fn models(decoder: &Decoder) -> Result<(Model, Converted, Converted), String> {
    let exported = decoder.model(CAPACITY, Style::GroupQuery);
    let options = ConvertOptions::new(CAPACITY);
    let rings = convert(&exported, options).map_err(|error| error.to_string())?;
    let linear =
        convert(&exported, options.windowed(WindowedCaches::Mask)).map_err(|error| error.to_string())?;
    if rings.rings.len() != 1 || !rings.linear_windows.is_empty() || !linear.rings.is_empty() {
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
    let dims = ["batch", "heads", "tokens", "slots"].map(Dim::Open);
    graph.output = vec![value(&mask, BOOL as i32, &dims)];
    Ok((Model::from_proto(proto), mask))
}

fn at(name: &str, context: usize) -> String {
    format!("{name} at {context} tokens")
}

fn target(engine: (&str, usize), baseline: (&str, usize), at_most: f64) -> Target {
    let [engine, baseline] = [engine, baseline].map(|(name, context)| at(name, context));
    Target { engine, baseline, at_most, slack_ns: None }
}

impl Measured {
    /// Compares the logits at each context length, and then times all forms at all of them in turn. The first form has
    /// rings.
    fn new(
        decoders: &mut Decoders,
        contexts: &[usize],
        targets: Vec<Target>,
        budget: Budget,
    ) -> Result<Self, String> {
        let (mut bound, mut difference) = (Vec::new(), 0.0_f32);
        for &context in contexts {
            println!("{context} tokens in the caches");
            let (of_context, largest) = decoders.compared(context)?;
            bound.push(of_context);
            difference = difference.max(largest);
        }
        let names: Vec<_> = decoders.loaded.iter().map(|loaded| loaded.name.clone()).collect();
        let count = contexts.len();
        let (times, noise) = measure_calls(names.len() * count, budget, |lane, calls| {
            let (form, context) = (lane / count, lane % count);
            let mut time = Duration::ZERO;
            for _ in 0..calls {
                time += bound[context][form].step(&mut decoders.loaded[form])?.0;
            }
            Ok(time)
        })
        .map_err(|error| error.to_string())?;
        let lanes: Vec<_> =
            names.iter().flat_map(|name| contexts.iter().map(|&context| at(name, context))).collect();
        let named = |name: &str| times.get(lanes.iter().position(|lane| lane == name)?);
        let column = |(name, of_form): (&String, &[Timings])| Column {
            name: name.clone(),
            times: of_form.iter().map(Timings::spread).collect(),
            over_rings: of_form.iter().zip(&times).map(|(time, rings)| time.over(rings)).collect(),
        };
        Ok(Self {
            contexts: contexts.to_vec(),
            columns: names.iter().zip(times.chunks(count)).map(column).collect(),
            noise,
            verdicts: targets.iter().map(|target| Verdict::new(target, named, noise)).collect(),
            difference,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Decoder, decoder, models, ring_mask};

    #[test]
    fn all_layers_with_a_window_have_rings_and_their_mask_needs_no_cache() {
        let (_, rings, linear) = models(&Decoder { hidden: 4, ..decoder() }).unwrap();
        assert_eq!(rings.rings.values().sum::<usize>(), 2 * 22);
        assert_eq!((rings.caches, linear.caches), (52, 52));
        let (mask, _) = ring_mask(&rings.model).unwrap();
        let graph = mask.graph().unwrap();
        assert!(graph.nodes().iter().any(|node| node.is("Mod")));
        let inputs: Vec<_> = graph.input_names().collect();
        assert_eq!(inputs, ["input_ids", &rings.write_indices]);
    }
}
