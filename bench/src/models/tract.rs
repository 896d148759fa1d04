//! Times a token of converted test decoders in tract, against the capacity of their caches.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvscatter_onnx::convert::convert;
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_session::{KvSession, Sample, SessionError, SessionOptions};
use kvscatter_tract::Tract;

use crate::measure::{Budget, measure_calls};
use crate::results::{CaseResults, Results, RowResults};
use crate::target::Target;

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

/// Times a token of every decoder. Those that cannot be opened have no times.
pub(crate) fn measure(quick: bool) -> Result<Results, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let budget = match quick {
        true => Budget::rounds(true, 3),
        false => Budget { time: Duration::from_secs(1), min_rounds: 41 },
    };
    let description = format!("a token in tract, with one sample and {LENGTH} cached tokens");
    let mut row = RowResults::new("tract", &description);
    let capacities = CAPACITIES.map(|capacity| format!("{capacity} slots"));
    let flat = |slots: &String| Target::new(slots, &capacities[0], FLAT);
    let targets: Vec<_> = capacities.iter().skip(1).map(flat).collect();
    for path in DECODERS {
        let name = path.rsplit('/').next().unwrap_or(path);
        let open = CAPACITIES.iter().map(|&capacity| session(path, capacity, folder.path()));
        let measured = open.collect::<Result<Vec<_>, _>>().and_then(|mut open| {
            check(name, &mut open)?;
            measure_calls(&capacities, budget, |lane, calls| Ok(token(&mut open[lane], calls)?.0))
        });
        row.push(match measured {
            Ok(measured) => CaseResults::new(name, &measured, &targets),
            Err(why) => CaseResults::refused(name, why),
        });
    }
    Ok(Results::new("tract", !quick, vec![row]))
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
) -> Result<(Duration, Vec<f32>), SessionError> {
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
        Ok::<_, SessionError>((session, sample))
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
