//! Runs a history of operations on the KV caches of candle-nn, or on those of this crate, so that a program can compare
//! the logits with those of the same tokens that are fed from scratch.
//!
//! ```sh
//! cargo run -p kvscatter-candle --example cache_histories -- plain|concat|rotating|scattered|kvscatter
//! ```
//!
//! The model is a small decoder with random weights. Each variant uses its caches as their documentation describes and
//! the models of candle-transformers do:
//!
//! - `plain`: candle-nn's `KvCache`, with a causal mask as in Gemma 3;
//! - `concat`: candle-nn's `ConcatKvCache`, with the same mask;
//! - `rotating`: candle-nn's `RotatingKvCache`, with the mask of its `attn_mask`, as in Mimi;
//! - `scattered`: candle-nn's `ScatteredKvCache`, with the indices and the mask of one builder for all layers;
//! - `kvscatter`: this crate's `RotatingKvCache` in the first layer and its `KvCache` in the second.
//!
//! Samples of `scattered` are rows of one batch. In the other variants each sample has caches, and a copy of a sample
//! is a clone of its caches. A sample can go back to any length if its caches have an operation for it. Otherwise it
//! can only become empty.
//!
//! The first line of the output contains facts about the variant. Each line of the input is then a request in JSON, and
//! has one line as its reply: `{"logits": …}`, with `null` for NaN and infinities, `{"done": null}`, `{"refused":
//! message}`, and nothing has changed then, or `{"error": message}`.

use std::env;
use std::error::Error;
use std::io::{self, BufRead, Write};

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::kv_cache as theirs;
use kvscatter_candle::kv_cache as ours;
use kvscatter_oracle::cases::Random;
use serde::Deserialize;
use serde_json::{Value, json};

const VOCABULARY: usize = 64;
const LAYERS: usize = 2;
const HEADS: usize = 2;
const HEAD_SIZE: usize = 8;
const WIDTH: usize = HEADS * HEAD_SIZE;
/// The most samples.
const BATCH: usize = 3;
/// The slots of a ring of candle-nn, and those by which a growing cache grows.
const SLOTS: usize = 8;
/// A ring of this crate for the same window.
const RING: ours::RingSize = ours::RingSize::for_window(SLOTS).chunk(4).rewind(3);
const CPU: Device = Device::Cpu;

/// The logits after each token of each sample.
type AllLogits = Vec<Vec<Vec<f32>>>;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let variant = env::args().nth(1).ok_or("no variant is given")?;
    let mut history = History::new(&variant)?;
    let mut out = io::stdout();
    writeln!(out, "{}", history.facts(&variant))?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        writeln!(out, "{}", history.reply(&line?))?;
        out.flush()?;
    }
    Ok(())
}

/// An operation. Lists have one entry for each sample.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Begins with this number of empty samples.
    Start {
        samples: usize,
    },
    /// Feeds each sample its next tokens, or none.
    Feed {
        rows: Vec<Vec<u32>>,
    },
    /// Takes each sample back to a number of tokens.
    Truncate {
        lengths: Vec<usize>,
    },
    /// Adds an empty sample.
    Add {},
    /// Adds a copy of a sample.
    Fork {
        sample: usize,
    },
    Remove {
        sample: usize,
    },
    /// Replaces each sample by a copy of the one with this index.
    Reorder {
        parents: Vec<usize>,
    },
}

enum Reply {
    Logits(AllLogits),
    Done,
    Refused(String),
}

struct History {
    model: Decoder,
    samples: Samples,
}

impl History {
    fn new(variant: &str) -> Result<Self> {
        Ok(Self { model: Decoder::new()?, samples: Samples::new(variant)? })
    }

    fn facts(&self, variant: &str) -> Value {
        let (name, windows, edges) = match variant {
            "kvscatter" => ("kvscatter".to_owned(), vec![SLOTS], vec![RING.capacity()]),
            "rotating" | "scattered" => (format!("candle 0.11.1, {variant}"), vec![SLOTS], vec![]),
            _ => (format!("candle 0.11.1, {variant}"), vec![], vec![SLOTS]),
        };
        let mut operations = vec!["truncate", "add", "remove"];
        if let Samples::Separate { .. } = self.samples {
            operations.extend(["fork", "reorder"]);
        }
        json!({
            "name": name,
            "vocabulary": VOCABULARY,
            "capacity": null,
            "windows": windows,
            "edges": edges,
            "batch": BATCH,
            "ragged": true,
            "operations": operations,
        })
    }

    fn reply(&mut self, line: &str) -> Value {
        let request = serde_json::from_str(line).map_err(Box::<dyn Error>::from);
        match request.and_then(|request| Ok(self.run(request)?)) {
            Ok(Reply::Logits(logits)) => json!({ "logits": logits }),
            Ok(Reply::Done) => json!({ "done": null }),
            Ok(Reply::Refused(why)) => json!({ "refused": why }),
            Err(error) => json!({ "error": error.to_string() }),
        }
    }

    fn run(&mut self, request: Request) -> Result<Reply> {
        let Self { model, samples } = self;
        let after = match &request {
            Request::Start { samples } => *samples,
            Request::Add {} | Request::Fork { .. } => samples.count() + 1,
            _ => 0,
        };
        if after > BATCH {
            return Ok(Reply::Refused(format!("the batch has room for {BATCH} samples")));
        }
        match (request, samples) {
            (Request::Feed { rows }, samples) => return Ok(Reply::Logits(samples.feed(model, &rows)?)),
            (Request::Truncate { lengths }, samples) => {
                for (sample, length) in lengths.into_iter().enumerate() {
                    if let Some(why) = samples.truncate(sample, length)? {
                        return Ok(Reply::Refused(why));
                    }
                }
            }
            (Request::Start { samples: count }, Samples::Separate { empty, samples }) => {
                *samples = vec![empty.clone(); count];
            }
            (Request::Start { samples: count }, Samples::Rows { builder, rows, .. }) => {
                builder.reset();
                *rows = (0..count).collect();
            }
            (Request::Add {}, Samples::Separate { empty, samples }) => samples.push(empty.clone()),
            (Request::Add {}, Samples::Rows { builder, rows, .. }) => {
                let free = (0..BATCH).find(|row| !rows.contains(row)).unwrap_or_default();
                builder.reset_batch_index(free);
                rows.push(free);
            }
            (Request::Remove { sample }, Samples::Separate { samples, .. }) => drop(samples.remove(sample)),
            (Request::Remove { sample }, Samples::Rows { rows, .. }) => drop(rows.remove(sample)),
            (Request::Fork { sample }, Samples::Separate { samples, .. }) => {
                samples.push(samples[sample].clone());
            }
            (Request::Reorder { parents }, Samples::Separate { samples, .. }) => {
                *samples = parents.into_iter().map(|parent| samples[parent].clone()).collect();
            }
            (Request::Fork { .. } | Request::Reorder { .. }, Samples::Rows { .. }) => {
                return Ok(Reply::Refused("a row cannot be copied".to_owned()));
            }
        }
        Ok(Reply::Done)
    }
}

/// The caches of all samples.
enum Samples {
    Separate {
        empty: Separate,
        samples: Vec<Separate>,
    },
    /// Each layer has one cache. The samples are rows of its batch, and rows without a sample are left out.
    Rows {
        builder: theirs::ScatteredCacheBuilder,
        caches: Vec<theirs::ScatteredKvCache>,
        rows: Vec<usize>,
    },
}

impl Samples {
    fn new(variant: &str) -> Result<Self> {
        let empty = match variant {
            "plain" => vec![Cache::Plain(theirs::KvCache::new(2, SLOTS)); LAYERS],
            "concat" => vec![Cache::Concat(theirs::ConcatKvCache::new(2)); LAYERS],
            "rotating" => vec![Cache::Rotating(theirs::RotatingKvCache::new(2, SLOTS)); LAYERS],
            "kvscatter" => vec![
                Cache::OurRing(ours::RotatingKvCache::with_size(2, RING)),
                Cache::OurGrowing(ours::KvCache::new(2, SLOTS)),
            ],
            "scattered" => {
                let builder = theirs::ScatteredCacheBuilder::new(BATCH, SLOTS, DType::F32, &CPU)?;
                let caches = (0..LAYERS).map(|_| builder.make_cache(HEADS, HEAD_SIZE));
                return Ok(Self::Rows { caches: caches.collect::<Result<_>>()?, builder, rows: Vec::new() });
            }
            _ => candle_core::bail!("no variant is called {variant:?}"),
        };
        Ok(Self::Separate { empty: Separate { caches: empty, length: 0 }, samples: Vec::new() })
    }

    fn count(&self) -> usize {
        match self {
            Self::Separate { samples, .. } => samples.len(),
            Self::Rows { rows, .. } => rows.len(),
        }
    }

    fn feed(&mut self, model: &Decoder, fed: &[Vec<u32>]) -> Result<AllLogits> {
        let mut logits = vec![Vec::new(); fed.len()];
        match self {
            Self::Separate { samples, .. } => {
                for (index, sample) in samples.iter_mut().enumerate() {
                    logits[index] = sample.feed(model, &fed[index])?;
                }
            }
            Self::Rows { builder, caches, rows } => {
                // All rows of a step have the same number of tokens, so samples with other numbers wait.
                let mut counts: Vec<_> = fed.iter().map(Vec::len).filter(|&count| count > 0).collect();
                counts.sort_unstable();
                counts.dedup();
                for count in counts {
                    let mut tokens = vec![vec![0; count]; BATCH];
                    let mut is_fed = [false; BATCH];
                    for (&row, fed) in rows.iter().zip(fed).filter(|(_, fed)| fed.len() == count) {
                        (tokens[row], is_fed[row]) = (fed.clone(), true);
                    }
                    let starts = builder.positions().to_vec();
                    let step = builder.indices_and_mask(count, &is_fed)?;
                    let append = |layer: usize, k: &Tensor, v: &Tensor| {
                        let (k, v) = caches[layer].append(k, v, &step)?;
                        Ok((k, v, Some(step.mask().clone())))
                    };
                    let of_rows = model.run(&tokens, &starts, append)?;
                    for (&row, logits) in rows.iter().zip(&mut logits).filter(|(row, _)| is_fed[**row]) {
                        logits.clone_from(&of_rows[row]);
                    }
                }
            }
        }
        Ok(logits)
    }

    /// Takes a sample back to a length, or returns why it cannot go back.
    fn truncate(&mut self, sample: usize, length: usize) -> Result<Option<String>> {
        match self {
            Self::Separate { samples, .. } => return samples[sample].truncate(length),
            Self::Rows { builder, rows, .. } if length == 0 => builder.reset_batch_index(rows[sample]),
            Self::Rows { builder, rows, .. } if length == builder.positions()[rows[sample]] => {}
            Self::Rows { .. } => return Ok(Some("a row can only be reset".to_owned())),
        }
        Ok(None)
    }
}

/// One sample, with one cache for each layer.
#[derive(Clone)]
struct Separate {
    caches: Vec<Cache>,
    length: usize,
}

impl Separate {
    fn feed(&mut self, model: &Decoder, mut fed: &[u32]) -> Result<Vec<Vec<f32>>> {
        let mut logits = Vec::new();
        while !fed.is_empty() {
            let most = self.caches.iter().map(Cache::max_chunk).min().unwrap_or_default();
            let (chunk, later) = fed.split_at(fed.len().min(most));
            let append = |layer: usize, k: &Tensor, v: &Tensor| self.caches[layer].append(k, v, self.length);
            logits.extend(model.run(&[chunk.to_vec()], &[self.length], append)?.concat());
            self.length += chunk.len();
            fed = later;
        }
        Ok(logits)
    }

    fn truncate(&mut self, length: usize) -> Result<Option<String>> {
        if length < self.length {
            for cache in &mut self.caches {
                if let Some(why) = cache.truncate(length)? {
                    return Ok(Some(why));
                }
            }
            self.length = length;
        }
        Ok(None)
    }
}

/// The keys and values of one layer and one sample, `[1, heads, tokens, head size]`.
#[derive(Clone)]
enum Cache {
    Plain(theirs::KvCache),
    Concat(theirs::ConcatKvCache),
    Rotating(theirs::RotatingKvCache),
    OurRing(ours::RotatingKvCache),
    OurGrowing(ours::KvCache),
}

impl Cache {
    /// Returns the most tokens of the next append.
    fn max_chunk(&self) -> usize {
        if let Self::OurRing(cache) = self { cache.max_chunk() } else { usize::MAX }
    }

    /// Appends tokens to those of a sample. Returns the keys and values that they attend to, and their mask.
    fn append(&mut self, k: &Tensor, v: &Tensor, length: usize) -> Result<(Tensor, Tensor, Option<Tensor>)> {
        let tokens = k.dim(2)?;
        let end = length + tokens;
        let hides = |query| (0..end).map(move |key| u8::from(key > query));
        let causal = Tensor::from_iter((length..end).flat_map(hides), &CPU)?.reshape((tokens, end))?;
        let (mask, (k, v)) = match self {
            Self::Plain(cache) => (Some(causal), cache.append(k, v)?),
            Self::Concat(cache) => (Some(causal), cache.append(k, v)?),
            Self::Rotating(cache) => (cache.attn_mask(tokens, &CPU)?, cache.append(k, v)?),
            Self::OurRing(cache) => (cache.attn_mask(tokens, &CPU)?, cache.append(k, v)?),
            Self::OurGrowing(cache) => (Some(causal), cache.append(k, v)?),
        };
        let additive = |mask: Tensor| {
            let hidden = Tensor::full(f32::NEG_INFINITY, mask.shape(), &CPU)?;
            mask.where_cond(&hidden, &hidden.zeros_like()?)
        };
        Ok((k, v, mask.map(additive).transpose()?))
    }

    fn truncate(&mut self, length: usize) -> Result<Option<String>> {
        match self {
            Self::OurRing(cache) => return Ok(cache.truncate(length).err().map(|error| error.to_string())),
            Self::OurGrowing(cache) => cache.truncate(length)?,
            Self::Plain(cache) if length == 0 => cache.reset(),
            Self::Concat(cache) if length == 0 => cache.reset(),
            Self::Rotating(cache) if length == 0 => cache.reset(),
            Self::Concat(cache) => {
                if let Some(k) = cache.k_mut() {
                    *k = k.narrow(2, 0, length)?;
                }
                if let Some(v) = cache.v_mut() {
                    *v = v.narrow(2, 0, length)?;
                }
            }
            Self::Plain(_) | Self::Rotating(_) => return Ok(Some("the cache can only be reset".to_owned())),
        }
        Ok(None)
    }
}

/// A decoder with rotary positions and random weights.
struct Decoder {
    embedding: Tensor,
    layers: Vec<[Tensor; 4]>,
    output: Tensor,
}

impl Decoder {
    fn new() -> Result<Self> {
        let mut random = Random::new(0, 0);
        let mut weights = |rows: usize, columns: usize, scale: f32| {
            let elements =
                random.many(rows * columns, |random| scale * (random.below(2001) as f32 / 1000.0 - 1.0));
            Tensor::from_vec(elements, (rows, columns), &CPU)
        };
        let embedding = weights(VOCABULARY, WIDTH, 1.0)?;
        let mut layers = Vec::new();
        for _ in 0..LAYERS {
            let [q, k, v, o] = [(); 4].map(|()| weights(WIDTH, WIDTH, 0.5));
            layers.push([q?, k?, v?, o?]);
        }
        Ok(Self { embedding, layers, output: weights(WIDTH, VOCABULARY, 1.0)? })
    }

    /// Runs the next tokens of each sequence, of which there are equally many. `append` writes the keys and values of a
    /// layer, and returns those that the tokens attend to and an additive mask.
    fn run(
        &self,
        tokens: &[Vec<u32>],
        starts: &[usize],
        mut append: impl FnMut(usize, &Tensor, &Tensor) -> Result<(Tensor, Tensor, Option<Tensor>)>,
    ) -> Result<AllLogits> {
        let (batch, count) = (tokens.len(), tokens[0].len());
        let angles = starts.iter().flat_map(|&start| start..start + count).flat_map(|position| {
            (0..HEAD_SIZE / 2).map(move |pair| position as f32 / 4_f32.powi(pair as i32))
        });
        let angles = Tensor::from_iter(angles, &CPU)?.reshape((batch, 1, count, HEAD_SIZE / 2))?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let rotate = |x: &Tensor| {
            let (a, b) = (x.narrow(3, 0, HEAD_SIZE / 2)?, x.narrow(3, HEAD_SIZE / 2, HEAD_SIZE / 2)?);
            let real = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
            let imaginary = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
            Tensor::cat(&[real, imaginary], 3)
        };
        let ids = Tensor::new(tokens.concat(), &CPU)?;
        let mut x = self.embedding.index_select(&ids, 0)?;
        for (layer, [q, k, v, o]) in self.layers.iter().enumerate() {
            let heads = |weights: &Tensor| {
                x.matmul(weights)?.reshape((batch, count, HEADS, HEAD_SIZE))?.transpose(1, 2)?.contiguous()
            };
            let (k, v, mask) = append(layer, &rotate(&heads(k)?)?, &heads(v)?)?;
            let scores =
                (rotate(&heads(q)?)?.matmul(&k.transpose(2, 3)?.contiguous()?)? / (HEAD_SIZE as f64).sqrt())?;
            let scores = if let Some(mask) = mask { scores.broadcast_add(&mask)? } else { scores };
            let seen = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v.contiguous()?)?;
            x = (&x + seen.transpose(1, 2)?.reshape((batch * count, WIDTH))?.matmul(o)?)?;
        }
        x.matmul(&self.output)?.reshape((batch, count, VOCABULARY))?.to_vec3()
    }
}

#[test]
fn tokens_that_are_fed_again_have_the_same_logits() {
    let tokens: Vec<u32> = (0..12).map(|token| token * 5).collect();
    for (variant, back) in [("plain", 0), ("concat", 7), ("rotating", 0), ("scattered", 0), ("kvscatter", 10)]
    {
        let mut history = History::new(variant).unwrap();
        let mut reply = |request: Value| history.reply(&request.to_string());
        assert!(reply(json!({"start": {"samples": BATCH + 1}}))["refused"].is_string());
        assert_eq!(reply(json!({"start": {"samples": 2}})), json!({"done": null}));
        let [first, again] = [0, back].map(|from| {
            let truncated = reply(json!({"truncate": {"lengths": [0, from]}}));
            assert_eq!(truncated, json!({"done": null}), "{variant}");
            let each = tokens[from..].iter().map(|token| reply(json!({"feed": {"rows": [[], [token]]}})));
            each.map(|reply| reply["logits"][1][0].clone()).collect::<Vec<_>>()
        });
        assert!(first[0][VOCABULARY - 1].is_number(), "{variant}");
        assert_eq!(first[back..], again, "{variant}");
    }
}
