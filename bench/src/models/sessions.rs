//! Measures what it costs to copy, save, load and undo the samples of a session.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kvscatter_onnx::convert::{ConvertOptions, convert};
use kvscatter_onnx::internal::text::units;
use kvscatter_session::{KvSession, Sample};

use super::decoder::{Decoder, Style};
use super::measure::repeated;
use crate::measure::{Budget, measure_calls};
use crate::results::{CaseResults, Results, RowResults};
use crate::runtimes::{Runtime, Runtimes};
use crate::target::Target;

/// The number of tokens of the sample that is copied, saved and loaded.
const TOKENS: usize = 2000;
/// The capacity of the caches, and a larger one.
const CAPACITY: usize = 2304;
const LARGE: usize = 16384;
/// The number of tokens that are undone.
const UNDONE: usize = 64;

const FORK: &str = "fork";
const MEMCPY: &str = "memcpy of the rows";
const DENSE: &str = "memcpy of as many bytes";
const SAVE: &str = "save";
const LOAD: &str = "load";
const COPY: &str = "cp";
const ROLLBACK: &str = "rollback, 2304 slots";
const ROLLBACK_LARGE: &str = "rollback, 16384 slots";

/// Measures how long a session takes to copy, save, load and undo samples.
pub(crate) fn measure(runtimes: &Runtimes, quick: bool) -> Result<Results, String> {
    let budget = |rounds| Budget::rounds(quick, rounds);
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
    let description = format!("copies and files of {TOKENS} tokens, and {UNDONE} tokens that are undone");
    let mut row = RowResults::new("sessions", &description);
    let targets = [Target::new(FORK, MEMCPY, 1.1)];
    row.push(timed_in_turn("copies", &[FORK, MEMCPY, DENSE], &targets, budget(41), |call| match call {
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
    })?);
    drop((from, to));
    let limit = 1.0 / 0.7;
    let targets = [SAVE, LOAD].map(|call| Target::new(call, COPY, limit));
    row.push(timed_in_turn("files", &[SAVE, LOAD, COPY], &targets, budget(25), |call| match call {
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
    })?);
    let bytes = [bytes as u64, fs::metadata(&path).map_err(text)?.len()];
    drop(session);

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
    row.push(timed_in_turn(
        "undone steps",
        &names,
        &[Target::new(ROLLBACK_LARGE, ROLLBACK, 2.0)],
        budget(101),
        |call| {
            let (session, sample) = (&mut sessions[1 - call], samples[1 - call]);
            session.begin(sample).map_err(text)?;
            session.step(&[(sample, &prompt[..UNDONE])]).map_err(text)?;
            let start = Instant::now();
            session.rollback(sample).map_err(text)?;
            Ok(start.elapsed())
        },
    )?);
    let [rows, file] = bytes.map(units::bytes);
    Ok(Results::new("sessions", !quick, vec![row])
        .fact("runtime", runtimes.label())
        .fact("sample", format!("{TOKENS} tokens; rows of {rows}, a file of {file}")))
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

/// Times calls in turn, by their indices.
fn timed_in_turn(
    name: &str,
    names: &[&str],
    targets: &[Target],
    budget: Budget,
    mut time: impl FnMut(usize) -> Result<Duration, String>,
) -> Result<CaseResults, String> {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    let measured = measure_calls(&names, budget, |call, count| repeated(count, || Ok(time(call)?)))?;
    Ok(CaseResults::new(name, &measured, targets))
}
