//! Runs a history of operations on a session, so that a program can compare the logits with those of the same tokens
//! that are fed from scratch.
//!
//! ```sh
//! cargo run -p kvscatter-tract --example session_histories -- MODEL [--engine tract|onnxruntime] [--ort-lib PATH] \
//!     [--batch N] [--capacity N]
//! ```
//!
//! A decoder whose caches grow is first converted, with `--capacity` slots and rings of the default sizes.
//!
//! The first line of the output contains facts about the session. Each line of the input is then a request in JSON,
//! and has one line as its reply. A request names samples by their index in the batch. The reply is one of these:
//!
//! - `{"logits": …}`, with the logits after each new token of each sample, and `null` for NaN and infinities;
//! - `{"done": null}`;
//! - `{"refused": message}`, and the samples are then as they were before;
//! - `{"error": message}`, if the request is malformed or the engine fails.

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use kvscatter_onnx::convert::{RingSize, convert};
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_ort_engine::OnnxRuntime;
use kvscatter_session::{
    Engine, KvSession, Sample, SessionError, SessionOptions, engine_label, saved_tokens,
};
use kvscatter_tract::Tract;
use serde::Deserialize;
use serde_json::{Value, json};

/// The number of samples, and of slots of a decoder whose caches grow, without options.
const BATCH: usize = 3;
const CAPACITY: usize = 64;

/// The logits after each token of each sample.
type AllLogits = Vec<Vec<Vec<f32>>>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse(env::args().skip(1))?;
    let engine: Box<dyn Engine> = match arguments.engine.as_deref() {
        None | Some("tract") => Box::new(Tract),
        Some("onnxruntime") => Box::new(OnnxRuntime::load(arguments.ort_lib.as_deref())?),
        Some(other) => return Err(format!("no engine is called {other:?}").into()),
    };
    let mut history = History::open(&*engine, &arguments)?;
    let mut out = io::stdout();
    writeln!(out, "{}", history.facts(&*engine)?)?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        writeln!(out, "{}", history.reply(&line?))?;
        out.flush()?;
    }
    Ok(())
}

#[derive(Default)]
struct Arguments {
    model: PathBuf,
    engine: Option<String>,
    ort_lib: Option<PathBuf>,
    batch: Option<usize>,
    capacity: Option<usize>,
}

impl Arguments {
    fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut arguments =
            Self { model: given.next().ok_or("no model is given")?.into(), ..Self::default() };
        while let Some(option) = given.next() {
            let value = given.next().ok_or_else(|| format!("{option} has no value"))?;
            match option.as_str() {
                "--engine" => arguments.engine = Some(value),
                "--ort-lib" => arguments.ort_lib = Some(value.into()),
                "--batch" => arguments.batch = Some(value.parse()?),
                "--capacity" => arguments.capacity = Some(value.parse()?),
                _ => return Err(format!("no option is called {option}").into()),
            }
        }
        Ok(arguments)
    }
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
        rows: Vec<Vec<i64>>,
    },
    /// Takes one sample back. The others keep their numbers of tokens.
    Truncate {
        lengths: Vec<usize>,
    },
    /// Sets a point for each sample, in place of an earlier one.
    Begin {},
    /// Keeps the first tokens that were fed since the point of each sample.
    Accept {
        counts: Vec<usize>,
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
    /// Replaces each sample by the one with this index.
    Reorder {
        parents: Vec<usize>,
    },
    Save {
        sample: usize,
        path: PathBuf,
    },
    /// Replaces a sample by a saved one.
    Load {
        sample: usize,
        path: PathBuf,
    },
}

const OPERATIONS: [&str; 11] =
    ["start", "feed", "truncate", "begin", "accept", "add", "fork", "remove", "reorder", "save", "load"];

struct History {
    session: KvSession,
    samples: Vec<Sample>,
}

impl History {
    fn open(engine: &dyn Engine, arguments: &Arguments) -> Result<Self, Box<dyn Error>> {
        let batch = Some(arguments.batch.unwrap_or(BATCH));
        let options = SessionOptions { batch, capacity: arguments.capacity, ..SessionOptions::default() };
        let session = match KvSession::open(engine, &arguments.model, options) {
            Err(SessionError::NotStatic { .. }) => {
                let folder = tempfile::tempdir()?;
                let path = folder.path().join("model.onnx");
                let slots = arguments.capacity.unwrap_or(CAPACITY);
                let converted = convert(&Model::load(&arguments.model)?, slots)?;
                converted.model.save_with_weights(&path, WeightTransfer::Copy)?;
                let session = KvSession::open(engine, path, options)?;
                // Saved samples contain the fingerprint of the model's files, which the first call reads.
                session.fingerprint()?;
                session
            }
            session => session?,
        };
        Ok(Self { session, samples: Vec::new() })
    }

    fn facts(&mut self, engine: &dyn Engine) -> Result<Value, SessionError> {
        // If the model does not declare its vocabulary, the first step determines it.
        self.run(Request::Start { samples: 1 }).and(self.run(Request::Feed { rows: vec![vec![0]] }))?;
        let interface = self.session.interface();
        let rings = |size: fn(RingSize) -> usize| interface.rings().map(size).collect::<BTreeSet<_>>();
        // A model whose caches are all rings has no capacity.
        let is_linear = interface.caches.iter().any(|cache| cache.ring.is_none());
        Ok(json!({
            "name": format!("kvscatter in {}", engine_label(engine.name(), engine.version(), engine.plugin())),
            "vocabulary": self.session.vocabulary(),
            "capacity": is_linear.then(|| self.session.capacity()),
            "batch": self.session.batch(),
            "ragged": true,
            "windows": rings(|ring| ring.window),
            "edges": rings(|ring| ring.capacity),
            "operations": OPERATIONS,
        }))
    }

    fn reply(&mut self, line: &str) -> Value {
        let request = serde_json::from_str(line).map_err(Box::<dyn Error>::from);
        match request.and_then(|request| self.checked_run(request)) {
            Ok(Some(logits)) => json!({ "logits": logits }),
            Ok(None) => json!({ "done": null }),
            Err(error) if error.downcast_ref().is_some_and(is_refusal) => {
                json!({ "refused": error.to_string() })
            }
            Err(error) => json!({ "error": error.to_string() }),
        }
    }

    /// Checks the indices and the lengths of lists, and runs a request.
    fn checked_run(&mut self, request: Request) -> Result<Option<AllLogits>, Box<dyn Error>> {
        let samples = self.samples.len();
        let of_list = |list: usize| if list == samples { Ok(()) } else { Err("one entry for each sample") };
        let of_index = |index: usize| if index < samples { Ok(()) } else { Err("no such sample") };
        match &request {
            Request::Feed { rows } => of_list(rows.len())?,
            Request::Truncate { lengths: list }
            | Request::Accept { counts: list }
            | Request::Reorder { parents: list } => of_list(list.len())?,
            Request::Fork { sample }
            | Request::Remove { sample }
            | Request::Save { sample, .. }
            | Request::Load { sample, .. } => of_index(*sample)?,
            Request::Start { .. } | Request::Begin {} | Request::Add {} => {}
        }
        Ok(self.run(request)?)
    }

    fn run(&mut self, request: Request) -> Result<Option<AllLogits>, SessionError> {
        let Self { session, samples } = self;
        match request {
            Request::Start { samples: count } => {
                let batch = session.batch();
                if count > batch {
                    return Err(SessionError::BatchFull { batch });
                }
                samples.drain(..).try_for_each(|sample| session.remove(sample))?;
                *samples = (0..count).map(|_| session.add()).collect::<Result<_, _>>()?;
            }
            Request::Feed { rows } => return feed(session, samples, &rows).map(Some),
            Request::Truncate { lengths } => {
                for (&sample, length) in samples.iter().zip(lengths) {
                    session.truncate(sample, length)?;
                }
            }
            Request::Begin {} => {
                for &sample in &*samples {
                    if session.begun(sample)?.is_some() {
                        session.commit(sample)?;
                    }
                }
                session.begin_all(samples)?;
            }
            Request::Accept { counts } => {
                session.accept_all(&samples.iter().copied().zip(counts).collect::<Vec<_>>())?;
            }
            Request::Add {} => samples.push(session.add()?),
            Request::Fork { sample } => samples.extend(session.fork(samples[sample], 1)?),
            Request::Remove { sample } => {
                session.remove(samples[sample])?;
                samples.remove(sample);
            }
            Request::Reorder { parents } => *samples = session.reorder(samples, &parents)?,
            Request::Save { sample, path } => session.save(samples[sample], path)?,
            Request::Load { sample, path } => {
                // The sample stays if the file cannot be read.
                saved_tokens(&path)?;
                session.remove(samples[sample])?;
                samples[sample] = session.load(path)?;
            }
        }
        Ok(None)
    }
}

fn feed(session: &mut KvSession, samples: &[Sample], rows: &[Vec<i64>]) -> Result<AllLogits, SessionError> {
    let step: Vec<_> = samples.iter().copied().zip(rows.iter().map(Vec::as_slice)).collect();
    let fed: Vec<_> = step.iter().copied().filter(|(_, tokens)| !tokens.is_empty()).collect();
    let logits = if fed.is_empty() { None } else { Some(session.step(&fed)?) };
    let after = |sample, token| logits.as_ref().and_then(|logits| logits.after(sample, token));
    let of_sample = |(sample, tokens): &(Sample, &[i64])| {
        (0..tokens.len()).map(|token| after(*sample, token).unwrap_or_default().to_vec()).collect()
    };
    Ok(step.iter().map(of_sample).collect())
}

/// Returns `true` for an error of an operation that the samples do not permit.
fn is_refusal(error: &SessionError) -> bool {
    matches!(
        error,
        SessionError::BatchFull { .. }
            | SessionError::NoRoom { .. }
            | SessionError::CapacityExceeded { .. }
            | SessionError::TruncateBeyond { .. }
            | SessionError::TruncateRing { .. }
            | SessionError::TruncateBegun { .. }
            | SessionError::TruncateState { .. }
            | SessionError::NotBegun { .. }
            | SessionError::AcceptBeyond { .. }
    )
}

#[test]
fn every_request_has_a_reply() {
    let model =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/mobius-llama-static/model.onnx");
    let mut history = History::open(&Tract, &Arguments { model, ..Arguments::default() }).unwrap();
    let facts = history.facts(&Tract).unwrap();
    assert_eq!(
        (&facts["batch"], &facts["vocabulary"], &facts["windows"]),
        (&json!(3), &json!(256), &json!([]))
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved.kv");
    for (request, reply) in [
        (json!({"start": {"samples": 4}}), "refused"),
        (json!({"start": {"samples": 2}}), "done"),
        (json!({"feed": {"rows": [[5, 9, 200], []]}}), "logits"),
        (json!({"truncate": {"lengths": [4, 0]}}), "refused"),
        (json!({"truncate": {"lengths": [2, 0]}}), "done"),
        (json!({"accept": {"counts": [0, 0]}}), "refused"),
        (json!({"begin": {}}), "done"),
        (json!({"begin": {}}), "done"),
        (json!({"feed": {"rows": [[1], [2, 3]]}}), "logits"),
        (json!({"accept": {"counts": [0, 3]}}), "refused"),
        (json!({"accept": {"counts": [0, 1]}}), "done"),
        (json!({"add": {}}), "done"),
        (json!({"fork": {"sample": 0}}), "refused"),
        (json!({"remove": {"sample": 2}}), "done"),
        (json!({"fork": {"sample": 0}}), "done"),
        (json!({"reorder": {"parents": [2, 2, 1]}}), "done"),
        (json!({"save": {"sample": 0, "path": path}}), "done"),
        (json!({"load": {"sample": 2, "path": path}}), "done"),
        (json!({"load": {"sample": 2, "path": folder.path().join("none")}}), "error"),
        (json!({"feed": {"rows": [[7]]}}), "error"),
        (json!({"fork": {"sample": 3}}), "error"),
        (json!({"feed": {"rows": [[200], [200], [200]]}}), "logits"),
    ] {
        let got = history.reply(&request.to_string());
        assert!(got.get(reply).is_some(), "{request}: {got}");
        if request == json!({"feed": {"rows": [[200], [200], [200]]}}) {
            // All three samples continue the first one.
            assert_eq!((&got["logits"][0], &got["logits"][0]), (&got["logits"][1], &got["logits"][2]));
        }
    }
}
