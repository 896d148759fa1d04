//! Times a token of converted test decoders in tract, against the capacity of their caches.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvscatter_bench::{Budget, MedianSpread, Spread, Timings, measure_calls};
use kvscatter_onnx::convert::convert;
use kvscatter_onnx::text::units;
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_session::{KvSession, Sample, SessionOptions};
use kvscatter_tract::Tract;
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::suite::Target;
use crate::table;
use crate::target::Verdict;

/// The folders in `testdata/` of exports that `convert` makes static and that run in tract. Others have tables of
/// positions that end before these capacities.
const DECODERS: [&str; 6] = [
    "optimum-llama",
    "decoders/torch-2.15-llama",
    "decoders/optimum-0.1-qwen3-float16",
    "decoders/optimum-0.1-qwen3-moe",
    "decoders/optimum-llama-4bit",
    "decoders/optimum-llama-int8",
];

const CAPACITIES: [usize; 5] = [128, 512, 2048, 8192, 32768];

/// The number of cached tokens.
const LENGTH: usize = 100;

/// The largest allowed ratio of a token's time to that with the smallest capacity.
const FLAT: f64 = 1.05;

/// All decoders of a run, and the machine.
#[derive(Serialize, Deserialize)]
pub(super) struct Results {
    host: Host,
    decoders: Vec<Times>,
}

/// The times of one decoder.
#[derive(Serialize, Deserialize)]
struct Times {
    name: String,
    /// The time of a token in nanoseconds at each capacity, or why there is none.
    times: Vec<Result<Spread, String>>,
    noise: MedianSpread,
    verdicts: Vec<Verdict>,
}

pub(super) fn measure(quick: bool) -> Result<Results, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let budget = if quick {
        Budget { time: Duration::ZERO, min_rounds: 3 }
    } else {
        Budget { time: Duration::from_secs(1), min_rounds: 41 }
    };
    let mut decoders = Vec::new();
    for path in DECODERS {
        let name = path.rsplit('/').next().unwrap_or(path);
        let folder = folder.path();
        println!("{name} in tract");
        let sessions: Vec<_> = CAPACITIES.iter().map(|&capacity| session(path, capacity, folder)).collect();
        decoders.push(Times::measure(name, sessions, budget)?);
    }
    Ok(Results { host: Host::read(), decoders })
}

impl Times {
    fn measure(
        name: &str,
        sessions: Vec<Result<(KvSession, Sample), String>>,
        budget: Budget,
    ) -> Result<Self, String> {
        let mut open = Vec::new();
        let places: Vec<_> = sessions
            .into_iter()
            .map(|session| {
                session.map(|session| {
                    open.push(session);
                    open.len() - 1
                })
            })
            .collect();
        let nothing = MedianSpread { lowest: 1.0, highest: 1.0 };
        let (times, noise) = if open.is_empty() {
            (Vec::new(), nothing)
        } else {
            check(name, &mut open)?;
            measure_calls(open.len(), budget, |lane, calls| Ok(token(&mut open[lane], calls)?.0))
                .map_err(|error| format!("{name}: {error}"))?
        };
        let of_capacity = |slots: &str| {
            let at = CAPACITIES.iter().position(|capacity| capacity.to_string() == slots)?;
            times.get(*places.get(at)?.as_ref().ok()?)
        };
        let target = |capacity: &usize| Target {
            engine: capacity.to_string(),
            baseline: CAPACITIES[0].to_string(),
            at_most: FLAT,
            slack_ns: None,
        };
        let targets = CAPACITIES.iter().zip(&places).skip(1).filter(|(_, place)| place.is_ok());
        let verdicts =
            targets.map(|(capacity, _)| Verdict::new(&target(capacity), of_capacity, noise)).collect();
        let times = places
            .iter()
            .map(|place| place.as_ref().map(|&at| Timings::spread(&times[at])).map_err(Clone::clone))
            .collect();
        Ok(Self { name: name.to_owned(), times, noise, verdicts })
    }
}

/// Compares the logits of all capacities.
fn check(name: &str, sessions: &mut [(KvSession, Sample)]) -> Result<(), String> {
    const TOLERANCE: f32 = 1e-3;
    let mut logits = Vec::new();
    for session in sessions {
        logits.push(token(session, 1).map_err(|error| error.to_string())?.1);
    }
    let Some((first, others)) = logits.split_first() else { return Ok(()) };
    let largest = first.iter().fold(1.0_f32, |largest, logit| largest.max(logit.abs()));
    let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= TOLERANCE * largest;
    if others.iter().all(|other| other.len() == first.len() && first.iter().zip(other).all(is_close)) {
        Ok(())
    } else {
        Err(format!("{name}: the logits depend on the capacity"))
    }
}

/// Feeds one token so often, and returns the time of the steps and the logits of the last.
fn token(
    (session, sample): &mut (KvSession, Sample),
    calls: usize,
) -> Result<(Duration, Vec<f32>), kvscatter_session::SessionError> {
    let (mut elapsed, mut logits) = (Duration::ZERO, Vec::new());
    for call in 0..calls {
        let began = Instant::now();
        let step = session.step(&[(*sample, &[9])])?;
        elapsed += began.elapsed();
        if call + 1 == calls {
            logits = step.last(*sample).unwrap_or_default().to_vec();
        }
        session.truncate(*sample, LENGTH)?;
    }
    Ok((elapsed, logits))
}

/// Converts a decoder of `testdata/` and opens it, with tokens in its cache.
fn session(name: &str, capacity: usize, folder: &Path) -> Result<(KvSession, Sample), String> {
    let path = converted(name, capacity, folder)?;
    let open = || {
        let mut session = KvSession::open(&Tract, path, SessionOptions::default())?;
        let sample = session.add()?;
        session.prefill(&[(sample, &[7; LENGTH])], LENGTH)?;
        Ok::<_, kvscatter_session::SessionError>((session, sample))
    };
    open().map_err(|error| error.to_string())
}

fn converted(name: &str, capacity: usize, folder: &Path) -> Result<PathBuf, String> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata");
    let model = Model::load(&testdata.join(name).join("model.onnx")).map_err(|error| error.to_string())?;
    let converted = convert(&model, capacity).map_err(|error| error.to_string())?;
    let folder = folder.join(format!("{name}-{capacity}"));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let path = folder.join("model.onnx");
    converted.model.save_with_weights(&path, WeightTransfer::Copy).map_err(|error| error.to_string())?;
    Ok(path)
}

/// Returns the table and the missed targets for a terminal.
pub(super) fn table(results: &Results) -> String {
    let mut text = rows(results);
    for (times, verdict) in results.decoders.iter().flat_map(|d| d.verdicts.iter().map(move |v| (d, v))) {
        text += &format!("{}: {}\n", times.name, table::target(verdict));
    }
    text
}

/// Returns the generated part of the page.
pub(super) fn generate(results: &Results) -> String {
    let mut text = format!(
        "A token of each converted test decoder in tract, with one sample and {LENGTH} cached tokens. Times are \
         medians of steps that alternate between the capacities. The logits of all capacities are compared first. \
         Exports whose tables of positions end before {} slots are left out. The ratio compares the largest capacity with the smallest, and must be at most {FLAT}.\n\n",
        CAPACITIES.last().copied().unwrap_or_default()
    );
    text += &rows(results);
    text += "\n| | |\n|---|---|\n";
    for (name, fact) in &results.host.facts {
        text += &format!("| {name} | {fact} |\n");
    }
    text.trim_end().to_owned()
}

fn rows(results: &Results) -> String {
    let mut text = "| decoder |".to_owned();
    CAPACITIES.iter().for_each(|capacity| text += &format!(" {capacity} slots |"));
    text += &format!(" ratio | A/A spread | |\n|---|{}---|\n", "--:|".repeat(CAPACITIES.len() + 2));
    for Times { name, times, noise, verdicts } in &results.decoders {
        text += &format!("| {name} |");
        for time in times {
            let time = time.as_ref().map_or("–".to_owned(), |time| units::time(time.median));
            text += &format!(" {time} |");
        }
        let last = verdicts.last();
        let ratio =
            last.and_then(|verdict| verdict.ratio).map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        let word = last.map_or("not measured", |verdict| verdict.status.word());
        text += &format!(" {ratio} | {:.2} – {:.2} | {word} |\n", noise.lowest, noise.highest);
    }
    for Times { name, times, .. } in &results.decoders {
        if let Some(why) = times.iter().find_map(|time| time.as_ref().err()) {
            text += &format!("\n{name} has no time where: {why}\n");
        }
    }
    text
}
