//! Measures what it costs to copy, save, load and undo the samples of a session.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use kvscatter_bench::{Budget, MedianSpread, Spread, Timings, measure_calls};
use kvscatter_onnx::convert::{ConvertOptions, convert};
use kvscatter_onnx::text::units;
use kvscatter_session::{KvSession, Sample};
use serde::{Deserialize, Serialize};

use super::Options;
use super::decoder::{Decoder, Style};
use crate::attention::{Runtime, Runtimes};
use crate::host::Host;
use crate::suite::Target;
use crate::target::{Status, Verdict};

/// The number of tokens of the sample that is copied, saved and loaded.
const TOKENS: usize = 2000;
/// The capacity of the caches, and a larger one.
const CAPACITY: usize = 2304;
const LARGE: usize = 16384;
/// The number of tokens that are undone.
const UNDONE: usize = 64;
const COMMAND: &str = "cargo xtask bench-sessions --write-docs";

const FORK: &str = "fork";
const MEMCPY: &str = "memcpy of the rows";
const DENSE: &str = "memcpy of as many bytes";
const SAVE: &str = "save";
const LOAD: &str = "load";
const COPY: &str = "cp";
const ROLLBACK: &str = "rollback, 2304 slots";
const ROLLBACK_LARGE: &str = "rollback, 16384 slots";

/// Measures how long a session takes to copy, save, load and undo samples
///
/// The logits of a copy and of a loaded sample are compared with those of the original before anything is timed. All
/// that is compared is timed in turn in one process. The measurement takes about a minute, 3 GiB of memory and 600 MB
/// of disk. Close other programs first.
#[derive(Args)]
#[command(bin_name = "cargo xtask bench-sessions")]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
}

#[derive(Serialize, Deserialize)]
struct Results {
    host: Host,
    runtime: String,
    quick: bool,
    /// The bytes of the rows of the sample, and of its file.
    bytes: [u64; 2],
    groups: Vec<Group>,
}

/// Calls that were timed in turn.
#[derive(Serialize, Deserialize)]
struct Group {
    /// The name, the time in nanoseconds and the ratio to the last call.
    calls: Vec<(String, Spread, Spread)>,
    /// The A/A spread of the first call.
    noise: MedianSpread,
    verdicts: Vec<Verdict>,
}

pub(crate) fn run(Arguments { options }: &Arguments) -> Result<(), String> {
    let runtimes = options.runtimes()?;
    let results: Results = options.results("sessions.json", || measure(&runtimes, options.quick))?;
    println!("{}{}", times(&results), targets(&results));
    options.publish("docs/sessions.md", COMMAND, &generate(&results), &[])?;
    let mut verdicts = results.groups.iter().flat_map(|group| &group.verdicts);
    match verdicts.any(|verdict| verdict.status == Status::Missed) && !results.quick {
        true => Err("a target was missed".to_owned()),
        false => Ok(()),
    }
}

fn measure(runtimes: &Runtimes, quick: bool) -> Result<Results, String> {
    let budget = |rounds| Budget { time: Duration::ZERO, min_rounds: if quick { 3 } else { rounds } };
    let runtime = runtimes.plugin()?;
    let decoder = Decoder { layers: 16, hidden: 64, ..Decoder::default() };
    let mut session = open(&decoder, CAPACITY, runtime)?;
    let sample = session.add().map_err(text)?;
    let prompt: Vec<i64> = (0..TOKENS).map(|token| token as i64 % 256).collect();
    session.prefill(&[(sample, &prompt)], 512).map_err(text)?;
    let folder = tempfile::tempdir_in("target").map_err(text)?;
    let [path, copied] = ["sample.kv", "copy.kv"].map(|name| folder.path().join(name));
    session.save(sample, &path).map_err(text)?;
    check(&mut session, sample, &path)?;

    let bytes = decoder.cache_bytes(TOKENS);
    let slab = decoder.cache_bytes(CAPACITY);
    let (from, mut to) = (vec![1_u8; slab], vec![2_u8; slab]);
    // The rows of one head in one cache, and the distance to those of the next.
    let (run, distance) = (bytes / decoder.runs(), slab / decoder.runs());
    println!("copies of {TOKENS} tokens");
    let targets = [(FORK, MEMCPY, 1.1)];
    let forks = Group::new(&[FORK, MEMCPY, DENSE], &targets, budget(41), |call| match call {
        0 => {
            let start = Instant::now();
            let copies = session.fork(sample, 1).map_err(text)?;
            let time = start.elapsed();
            copies.into_iter().try_for_each(|copy| session.remove(copy)).map_err(text)?;
            Ok(time)
        }
        1 => Ok(timed(|| {
            let (from, to) = (black_box(&from).chunks(distance), black_box(&mut to).chunks_mut(distance));
            from.zip(to).for_each(|(from, to)| to[..run].copy_from_slice(&from[..run]));
        })),
        _ => Ok(timed(|| black_box(&mut to)[..bytes].copy_from_slice(&black_box(&from)[..bytes]))),
    })?;
    drop((from, to));
    println!("files of {TOKENS} tokens");
    let limit = 1.0 / 0.7;
    let targets = [(SAVE, COPY, limit), (LOAD, COPY, limit)];
    let files = Group::new(&[SAVE, LOAD, COPY], &targets, budget(25), |call| match call {
        0 => {
            let start = Instant::now();
            session.save(sample, &path).map_err(text)?;
            Ok(start.elapsed())
        }
        1 => {
            let start = Instant::now();
            let loaded = session.load(&path).map_err(text)?;
            let time = start.elapsed();
            session.remove(loaded).map_err(text)?;
            Ok(time)
        }
        _ => {
            let start = Instant::now();
            let status = Command::new("cp").args([&path, &copied]).status().map_err(text)?;
            let time = start.elapsed();
            status.success().then_some(time).ok_or_else(|| "cp failed".to_owned())
        }
    })?;
    let bytes = [bytes as u64, fs::metadata(&path).map_err(text)?.len()];
    drop(session);

    println!("{UNDONE} tokens undone");
    let small = Decoder { layers: 2, ..decoder };
    let mut sessions = [open(&small, CAPACITY, runtime)?, open(&small, LARGE, runtime)?];
    let mut samples = Vec::new();
    for session in &mut sessions {
        let sample = session.add().map_err(text)?;
        session.prefill(&[(sample, &prompt)], 512).map_err(text)?;
        samples.push(sample);
    }
    let names = [ROLLBACK_LARGE, ROLLBACK];
    // One call takes some 10 ns, so the limit is far above the resolution of the clock.
    let undone = Group::new(&names, &[(ROLLBACK_LARGE, ROLLBACK, 2.0)], budget(101), |call| {
        let (session, sample) = (&mut sessions[1 - call], samples[1 - call]);
        session.begin(sample).map_err(text)?;
        session.step(&[(sample, &prompt[..UNDONE])]).map_err(text)?;
        let start = Instant::now();
        session.rollback(sample).map_err(text)?;
        Ok(start.elapsed())
    })?;
    Ok(Results {
        host: Host::read(),
        runtime: runtimes.label(),
        quick,
        bytes,
        groups: vec![forks, files, undone],
    })
}

/// Opens a converted decoder for two samples.
fn open(decoder: &Decoder, capacity: usize, runtime: Runtime<'_>) -> Result<KvSession, String> {
    let exported = decoder.model(capacity, Style::GroupQuery);
    let converted = convert(&exported, ConvertOptions::new(capacity)).map_err(text)?;
    runtime.open_for(&converted.model, 2)
}

/// Compares the next logits of a copy and of a loaded sample with those of the sample.
fn check(session: &mut KvSession, sample: Sample, path: &Path) -> Result<(), String> {
    let next = |session: &mut KvSession, sample| {
        let logits = session.step(&[(sample, &[7])]).map_err(text)?;
        let logits = logits.last(sample).map(<[f32]>::to_vec);
        session.truncate(sample, TOKENS).map_err(text)?;
        Ok::<_, String>(logits)
    };
    let expected = next(session, sample)?;
    let copies = session.fork(sample, 1).map_err(text)?;
    for copy in copies {
        let logits = next(session, copy)?;
        session.remove(copy).map_err(text)?;
        let loaded = session.load(path).map_err(text)?;
        if logits != expected || next(session, loaded)? != expected {
            return Err("a copy has other logits".to_owned());
        }
        session.remove(loaded).map_err(text)?;
    }
    Ok(())
}

fn timed(call: impl FnOnce()) -> Duration {
    let start = Instant::now();
    call();
    start.elapsed()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Group {
    fn new(
        names: &[&str],
        targets: &[(&str, &str, f64)],
        budget: Budget,
        mut time: impl FnMut(usize) -> Result<Duration, String>,
    ) -> Result<Self, String> {
        let (times, noise) = measure_calls(names.len(), budget, |call, count| {
            let mut total = Duration::ZERO;
            for _ in 0..count {
                total += time(call)?;
            }
            Ok(total)
        })
        .map_err(text)?;
        let named = |name: &str| times.get(names.iter().position(|it| *it == name)?);
        let target = |&(engine, baseline, at_most): &(&str, &str, f64)| {
            let (engine, baseline) = (engine.to_owned(), baseline.to_owned());
            Verdict::new(&Target { engine, baseline, at_most, slack_ns: None }, named, noise)
        };
        let last = times.last().ok_or("nothing was timed")?;
        let call = |(name, time): (&&str, &Timings)| ((*name).to_owned(), time.spread(), time.over(last));
        Ok(Self {
            calls: names.iter().zip(&times).map(call).collect(),
            noise,
            verdicts: targets.iter().map(target).collect(),
        })
    }
}

fn generate(results: &Results) -> String {
    let [rows, file] = results.bytes.map(units::bytes);
    let mut text = format!(
        "A generated decoder of 16 layers with 8 heads of size 128 in float32 has a sample of {TOKENS} tokens, whose rows \
         take {rows} and whose file takes {file}. The rows of each head in each cache are one run of memory. *{MEMCPY}* \
         copies run by run, and *{DENSE}* copies one block, which is so large that it bypasses the CPU caches. *{COPY}* \
         copies the file in the same folder. Files stay in the page cache. Each *rollback* undoes {UNDONE} tokens. All ran in {} \
         with kvscatter's plugin. Times are medians of interleaved rounds.\n\n",
        results.runtime,
    );
    text += &times(results);
    text += "\n";
    text += &targets(results);
    text += "\n| | |\n|---|---|\n";
    for (name, fact) in &results.host.facts {
        text += &format!("| {name} | {fact} |\n");
    }
    text.trim_end().to_owned()
}

fn times(results: &Results) -> String {
    let mut text = "| call | time | ratio |\n|---|--:|---|\n".to_owned();
    for Group { calls, .. } in &results.groups {
        let last = calls.last().map(|(name, ..)| name.as_str()).unwrap_or_default();
        for (name, time, ratio) in calls {
            let ratio = match name == last {
                true => String::new(),
                false => format!("{} × {last}", units::three_digits(ratio.median)),
            };
            text += &format!("| {name} | {} | {ratio} |\n", units::time(time.median));
        }
    }
    text
}

fn targets(results: &Results) -> String {
    let mut text =
        "| what | compared with | ratio | at most | A/A spread | |\n|---|---|--:|--:|--:|---|\n".to_owned();
    for Group { verdicts, noise, .. } in &results.groups {
        for verdict in verdicts {
            text += &format!(
                "| {} | {} | {} | {:.2} | {:.2} – {:.2} | {} |\n",
                verdict.engine,
                verdict.baseline,
                verdict.ratio.map_or("–".to_owned(), units::three_digits),
                verdict.limit,
                noise.lowest,
                noise.highest,
                verdict.status.word(),
            );
        }
    }
    text
}
