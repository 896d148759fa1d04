//! Prints a generation.

use std::io::{self, Write};
use std::time::Duration;

use kvscatter_onnx::convert::UNLIMITED;
use kvscatter_onnx::decoder::Growth;
use kvscatter_onnx::internal::text::units;
use kvscatter_session::{CacheSize, End, Generated, GroupQueryNodes, MemoryReport};
use serde::Serialize;
use serde_json::{Value, json};

use crate::engines::EngineInfo;
use crate::json::joined;
use crate::output::{Output, count, hanging, one_line};

/// A finished generation.
pub(super) struct Generation {
    pub(super) model: String,
    pub(super) runtime: EngineInfo,
    /// Which kernels compute `GroupQueryAttention`, if the model has it.
    pub(super) group_query_nodes: Option<GroupQueryNodes>,
    pub(super) prompts: Vec<Vec<i64>>,
    /// The texts of prompts and samples, if the prompts are texts.
    pub(super) texts: Option<Texts>,
    /// What the encoder has computed, if there is one.
    pub(super) encoded: Option<Encoded>,
    /// The option that sets the slots of texts, in parentheses, or an empty string.
    pub(super) sized_by: &'static str,
    /// Whether steps may draft tokens.
    pub(super) may_draft: bool,
    pub(super) generated: Generated,
    /// The saved prompt that all prompts continue.
    pub(super) prefix: Option<Prefix>,
    /// The prompt that was saved.
    pub(super) saved: Option<Prefix>,
    /// The memory of caches that are written in place.
    pub(super) memory: Option<MemoryReport>,
    /// The slots of each sample in these caches.
    pub(super) capacity: Option<usize>,
    /// The reason why the caches grow, if they do.
    pub(super) growth: Option<Growth>,
}

/// What an encoder has computed.
#[derive(Clone, Copy)]
pub(super) struct Encoded {
    pub(super) texts: usize,
    pub(super) time: Duration,
    /// The number of bytes of its outputs.
    pub(super) bytes: usize,
}

/// Prompts as texts, and the texts after them.
#[derive(Default)]
pub(super) struct Texts {
    pub(super) prompts: Vec<String>,
    pub(super) samples: Vec<String>,
}

/// A prompt in a file.
#[derive(Serialize)]
pub(super) struct Prefix {
    pub(super) path: String,
    /// The number of its tokens.
    pub(super) tokens: usize,
}

impl Generation {
    /// Prints the generation. Texts have been printed, so the lines about them go to standard error.
    pub(super) fn show(&self, output: &mut Output) -> io::Result<()> {
        if output.is_json() {
            return output.json(&document(self));
        }
        if self.texts.is_some() {
            output.flush()?;
            // The text was printed, so a closed standard error is no error.
            let _ = self.lines(&mut io::stderr());
            return Ok(());
        }
        for tokens in &self.generated.samples {
            let ids: Vec<String> = tokens.iter().map(ToString::to_string).collect();
            writeln!(output, "{}", ids.join(","))?;
        }
        self.lines(output)
    }

    /// Writes an empty line, and lines about the times and the caches.
    fn lines(&self, to: &mut impl Write) -> io::Result<()> {
        writeln!(to)?;
        let file =
            |prefix: &Prefix| format!("{} in {}", count(prefix.tokens, "token"), one_line(&prefix.path));
        let lines = [
            Some(("engine", one_line(&self.runtime.to_string()))),
            self.group_query_nodes.map(|nodes| ("attention", nodes.to_string())),
            self.encoded.map(|encoded| ("encoder", encoded.line())),
            self.prefix.as_ref().map(|prefix| ("prefix", file(prefix))),
            Some(("prefill", self.prefill())),
            self.saved.as_ref().map(|saved| ("saved", file(saved))),
            Some(("decode", self.decode())),
            self.end().map(|end| ("end", end)),
            Some(("cache write", self.write())),
            Some(("caches", self.caches())),
        ];
        for (name, line) in lines.into_iter().flatten() {
            writeln!(to, "{name:<13}{}", hanging(13, &line))?;
        }
        Ok(())
    }

    fn prefill(&self) -> String {
        let Generated { prompt_tokens, prefill, ref reused, .. } = self.generated;
        let prefix = self.prefix.as_ref().map_or(0, |prefix| prefix.tokens);
        // The tokens of a saved prompt have another line.
        let reused = reused.iter().map(|reused| reused.saturating_sub(prefix)).fold(0, usize::saturating_add);
        let reused = match reused {
            0 => String::new(),
            reused => format!("; {} reused from the caches", count(reused, "token")),
        };
        let tokens = count(prompt_tokens, "token");
        format!("{tokens} in {}{}{reused}", time(prefill), rate(prompt_tokens, prefill))
    }

    /// Returns why a text ended early.
    fn end(&self) -> Option<String> {
        let is_full = self.texts.is_some() && self.generated.ends.contains(&End::Full);
        is_full.then(|| format!("the cache is full, so a text ended early{}", self.sized_by))
    }

    fn decode(&self) -> String {
        let Generated { steps, decoded, drafted, accepted, decode, ref samples, .. } = self.generated;
        match steps {
            0 if samples.iter().all(Vec::is_empty) => {
                return "no step, because the prefill was ended".to_owned();
            }
            0 => return "no step, because the prefill gave all tokens".to_owned(),
            _ => {}
        }
        let (tokens, steps) = (count(decoded, "token"), count(steps, "step"));
        let drafts = match drafted {
            _ if !self.may_draft => String::new(),
            0 => "; no token was drafted".to_owned(),
            _ => format!("; {accepted} of {} accepted", count(drafted, "drafted token")),
        };
        format!("{tokens} in {steps}, {}{}{drafts}", time(decode), rate(decoded, decode))
    }

    fn write(&self) -> String {
        let Generated { steps, written_per_step, copied, .. } = self.generated;
        let bytes = format!("{written_per_step} bytes in the last step");
        match (&self.memory, copied) {
            _ if steps == 0 => "no step after the prompts".to_owned(),
            (None, _) => format!("{bytes}: growing caches are copied whole"),
            (Some(_), 0) => format!("{bytes}, in place: no cache was copied"),
            (Some(_), copied) => format!("{bytes}; NOT in place: the engine copied {}", units::bytes(copied)),
        }
    }

    fn caches(&self) -> String {
        let (Some(memory), Some(capacity)) = (&self.memory, self.capacity) else {
            let remedy = self.growth.map(|growth| format!("; for each cache: {growth}")).unwrap_or_default();
            return format!("grow with every step{remedy}");
        };
        let (total, layers) = (units::bytes(memory.total), layers(&memory.layers));
        let room = match (memory.rings, capacity) {
            (0, _) => {
                format!("{} a token, room for {capacity} of each sample", units::bytes(memory.per_token))
            }
            (_, UNLIMITED) => "all are rings, so a sample can have any number of tokens".to_owned(),
            (rings, _) => {
                let rings = count(rings, "ring");
                format!(
                    "{rings} among {}, room for {capacity} tokens of each sample",
                    count(memory.caches.len(), "cache")
                )
            }
        };
        format!("{total}: {layers}; {room}")
    }
}

impl Encoded {
    fn line(self) -> String {
        let bytes = units::bytes(u64::try_from(self.bytes).unwrap_or(u64::MAX));
        format!("{} in {}; the outputs take {bytes}", count(self.texts, "text"), time(self.time))
    }
}

/// Formats the sizes of layers, such as `5 layers of 2 MiB and 1 of 64 MiB`.
fn layers(layers: &[u64]) -> String {
    let mut sizes: Vec<(u64, usize)> = Vec::new();
    for &layer in layers {
        match sizes.iter_mut().find(|(size, _)| *size == layer) {
            Some((_, layers)) => *layers = layers.saturating_add(1),
            None => sizes.push((layer, 1)),
        }
    }
    let mut texts = sizes.iter().enumerate().map(|(index, &(size, layers))| {
        let layers = if index == 0 { count(layers, "layer") } else { layers.to_string() };
        format!("{layers} of {}", units::bytes(size))
    });
    let first: Vec<_> = texts.by_ref().take(sizes.len().saturating_sub(1)).collect();
    let last = texts.next().unwrap_or_default();
    if first.is_empty() { last } else { format!("{} and {last}", first.join(", ")) }
}

fn time(time: Duration) -> String {
    units::time(time.as_secs_f64() * 1e9)
}

/// Formats a rate as `, 812 tokens/s`. Returns an empty string if no time has passed.
fn rate(tokens: usize, time: Duration) -> String {
    match per_second(tokens, time) {
        Some(rate) => format!(", {} tokens/s", units::three_digits(rate)),
        None => String::new(),
    }
}

fn per_second(tokens: usize, time: Duration) -> Option<f64> {
    let tokens = u32::try_from(tokens).ok()?;
    (!time.is_zero()).then(|| f64::from(tokens) / time.as_secs_f64())
}

/// Returns a generation, as `--json` prints it.
fn document(generation: &Generation) -> Value {
    let Generation { generated, texts, memory, capacity, .. } = generation;
    // What a sample of a prompt that is a text has in addition. Reused are tokens of the prompt that were in the
    // caches.
    let text = |sample: usize| {
        let texts = texts.as_ref()?;
        Some(json!({
            "prompt_text": texts.prompts.get(sample)?,
            "text": texts.samples.get(sample)?,
            "end": generated.ends.get(sample)?.name(),
            "reused": generated.reused.get(sample)?,
        }))
    };
    let samples = generation.prompts.iter().zip(&generated.samples).enumerate();
    let sample = |(sample, (prompt, tokens)): (usize, (&Vec<i64>, &Vec<i64>))| {
        joined(json!({"prompt": prompt, "tokens": tokens}), text(sample).unwrap_or_default())
    };
    let phase = |tokens: usize, time: Duration| {
        let rate = per_second(tokens, time);
        json!({"tokens": tokens, "seconds": time.as_secs_f64(), "tokens_per_second": rate})
    };
    let decode = json!({
        "steps": generated.steps,
        "drafted": generated.drafted,
        "accepted": generated.accepted,
    });
    json!({
        "model": generation.model,
        "engine": generation.runtime,
        // `null` for a model without such nodes.
        "group_query_nodes": generation.group_query_nodes,
        "samples": samples.map(sample).collect::<Value>(),
        // `null` without --encoder.
        "encoder": generation.encoded.map(|encoded| {
            json!({"texts": encoded.texts, "seconds": encoded.time.as_secs_f64(), "bytes": encoded.bytes})
        }),
        // `null` without --prefix.
        "prefix": generation.prefix,
        "prefill": phase(generated.prompt_tokens, generated.prefill),
        // `null` without --save-prefix, and if the prefill was ended.
        "saved": generation.saved,
        "decode": joined(decode, phase(generated.decoded, generated.decode)),
        // The bytes of the last step, and those of the caches that the engine copied in all steps.
        "cache_write": {"bytes_per_step": generated.written_per_step, "bytes_copied": generated.copied},
        // `null` if the caches grow.
        "caches": memory.as_ref().map(|memory| caches(memory, *capacity)),
        // What to do about caches that grow.
        "advice": generation.growth.map(|growth| growth.to_string()),
    })
}

fn caches(memory: &MemoryReport, capacity: Option<usize>) -> Value {
    let cache = |cache: &CacheSize| {
        json!({
            "past": cache.past,
            "type": cache.element.onnx_name(),
            "shape": cache.shape,
            "layer": cache.layer,
            "bytes": cache.bytes,
        })
    };
    json!({
        "bytes": memory.total,
        "bytes_per_token": memory.per_token,
        "bytes_per_layer": memory.layers,
        "capacity": capacity,
        "caches": memory.caches.iter().map(cache).collect::<Value>(),
    })
}
