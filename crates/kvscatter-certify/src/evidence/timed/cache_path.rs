//! The time of the nodes between a cache's past and its present, at two capacities.

use std::collections::BTreeMap;

use kvscatter_onnx::Model;
use kvscatter_onnx::internal::file::UnfinishedFiles;
use kvscatter_onnx::internal::text::units;
use kvscatter_onnx::internal::{CachePath, CachePathError};
use kvscatter_session::{CachePort, Engine, InPlaceCache, LoadOptions, Session, Step, Tensor, by_name};

use super::subject::{Timed, median};
use crate::CertifyError;
use crate::certificate::{CachePathTimes, CapacityTime, Check, Failure};

const ID: &str = "cache-path-flat";
const CLAIM: &str = "The time of each cache's own nodes does not grow with the capacity.";

/// The minimum size of the smaller cache in bytes. Copying so many bytes takes far longer than the rest of
/// the call.
const SMALL_BYTES: usize = 4 << 20;
/// The larger capacity divided by the smaller one.
const FACTOR: usize = 4;
/// The largest ratio of times that counts as equal. It is half of the ratio for a copied cache.
const FLAT_UP_TO: f64 = 2.0;
const ROUNDS: usize = 25;
/// The number of measurements. The claim fails only if all of them exceed the limit.
const ATTEMPTS: usize = 3;
/// The index of the slot that is written, in both caches.
const CONTEXT: usize = 60;

/// Times every cache of a model separately.
pub(super) fn time(
    engine: &dyn Engine,
    timed: Timed<'_>,
) -> Result<(Option<CachePathTimes>, Check), CertifyError> {
    let batch = timed.interface.batch.unwrap_or(1);
    let mut unfinished = UnfinishedFiles::new();
    let folder = unfinished
        .folder_in(&std::env::temp_dir(), "kvscatter-")
        .map_err(|cause| CertifyError::Io { path: std::env::temp_dir(), cause })?;
    let (mut worst, mut failures, mut inseparable): (Option<CachePathTimes>, _, _) =
        (None, Vec::new(), Vec::new());
    let mut caches = 0;
    let ports: BTreeMap<_, _> =
        timed.interface.caches.iter().map(|port| (port.past.as_str(), port)).collect();
    for path in CachePath::from_model(timed.model)? {
        let path = match path {
            Ok(path) => path,
            Err(why) => {
                inseparable.push(why);
                continue;
            }
        };
        let Some(&port) = ports.get(path.past.0.as_str()) else {
            continue;
        };
        // A ring is timed at two capacities too, of which neither is its own.
        let port = &CachePort { ring: None, ..port.clone() };
        let file = folder.join("cache_path.onnx");
        path.model.save(&file)?;
        let session = engine.load(&Model::load(&file)?.file()?, LoadOptions { threads: Some(1) })?;
        let times = SingleCachePath { session, path: &path, port, batch }.time()?;
        caches += 1;
        if times.ratio > FLAT_UP_TO {
            failures.push(failure(&times));
        }
        if worst.as_ref().is_none_or(|worst| worst.ratio < times.ratio) {
            worst = Some(times);
        }
    }
    if let Some(worst) = &mut worst {
        worst.caches = caches;
    }
    let check = check(worst.as_ref(), failures, &inseparable);
    Ok((worst, check))
}

fn check(worst: Option<&CachePathTimes>, failures: Vec<Failure>, inseparable: &[CachePathError]) -> Check {
    let evidence = worst.map(|times| {
        let [small, large] = [times.at.first(), times.at.last()].map(|at| at.map_or(0, |at| at.cache_bytes));
        format!(
            "{} caches timed one by one at {} and {}, in {} interleaved rounds. The largest ratio of the shortest times \
             is {:.2}. A ratio up to {FLAT_UP_TO:.2} counts as constant, and a copied cache takes about {FACTOR} times \
             as long.",
            times.caches,
            units::bytes(small),
            units::bytes(large),
            times.rounds,
            times.ratio,
        )
    });
    match (evidence, inseparable) {
        (Some(evidence), []) => Check::unless(ID, CLAIM, evidence, failures),
        (Some(evidence), _) if !failures.is_empty() => Check::unless(ID, CLAIM, evidence, failures),
        (_, [why, ..]) => Check::not_measured(
            ID,
            CLAIM,
            format!(
                "{} caches could not be timed separately: {why}. The whole step was timed.",
                inseparable.len()
            ),
        ),
        (None, []) => Check::not_applicable(ID, CLAIM, "The model has no cache."),
    }
}

fn failure(times: &CachePathTimes) -> Failure {
    let shown = |at: Option<&CapacityTime>| {
        at.map(|at| format!("{} at {} slots", units::time(at.fastest_ns), at.capacity)).unwrap_or_default()
    };
    let (small, large) = (shown(times.at.first()), shown(times.at.last()));
    Failure {
        cache: Some(times.cache.clone()),
        ..Failure::new(format!("{small}, {large}: {:.1} times as long", times.ratio))
    }
}

/// A session that runs only the nodes of one cache.
struct SingleCachePath<'a> {
    session: Box<dyn Session>,
    path: &'a CachePath,
    port: &'a CachePort,
    batch: usize,
}

/// The tensors of a step at one capacity.
struct Bound {
    cache: Tensor,
    /// The present of a growing cache, in separate memory. `None` for a static cache.
    present: Option<Tensor>,
    inputs: Vec<(String, Tensor)>,
}

impl SingleCachePath<'_> {
    fn time(mut self) -> Result<CachePathTimes, CertifyError> {
        let slot = self.port.element.storage_len(&self.port.shape(self.batch, 1)).unwrap_or(1).max(1);
        let small = SMALL_BYTES.div_ceil(slot).max(CONTEXT + 1);
        let capacities = [small, small * FACTOR];
        let mut bound = [self.bind(capacities[0])?, self.bind(capacities[1])?];
        let mut best = self.attempt(&mut bound)?;
        for _ in 1..ATTEMPTS {
            if best.ratio <= FLAT_UP_TO {
                break;
            }
            let again = self.attempt(&mut bound)?;
            if again.ratio < best.ratio {
                best = again;
            }
        }
        Ok(best)
    }

    fn attempt(&mut self, bound: &mut [Bound; 2]) -> Result<CachePathTimes, CertifyError> {
        let mut samples = [Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS)];
        for round in 0..=ROUNDS {
            for (bound, samples) in bound.iter_mut().zip(&mut samples) {
                let nanoseconds = self.step(bound)?;
                // The first round is a warm-up for the engine and the memory.
                if round > 0 {
                    samples.push(nanoseconds);
                }
            }
        }
        let at = bound.iter().zip(samples).map(|(bound, samples)| CapacityTime {
            capacity: bound.cache.shape().get(self.path.axis).copied().unwrap_or_default(),
            cache_bytes: bound.cache.bytes().len() as u64,
            fastest_ns: samples.iter().copied().fold(f64::INFINITY, f64::min),
            median_ns: median(samples),
        });
        let at: Vec<_> = at.collect();
        let fastest = |at: Option<&CapacityTime>| at.map_or(f64::NAN, |at| at.fastest_ns);
        Ok(CachePathTimes {
            caches: 1,
            cache: self.path.past.0.clone(),
            batch: self.batch,
            context: CONTEXT,
            rounds: ROUNDS,
            ratio: fastest(at.last()) / fastest(at.first()),
            at,
            flat_up_to: FLAT_UP_TO,
        })
    }

    fn bind(&self, capacity: usize) -> Result<Bound, CertifyError> {
        let shape = |length| self.port.shape(self.batch, length);
        let mut inputs = Vec::new();
        for (name, element) in &self.path.updates {
            inputs.push((name.clone(), Tensor::zeros(*element, &shape(1))?));
        }
        let starts = vec![i64::try_from(CONTEXT).unwrap_or_default(); self.batch];
        for name in &self.path.write_indices {
            inputs.push((name.clone(), Tensor::int64s(&[self.batch], &starts)?));
        }
        let rows = self.path.updates.len();
        let grown = || Tensor::zeros(self.path.past.1, &shape(capacity + rows));
        Ok(Bound {
            cache: self.session.zeros(self.path.past.1, &shape(capacity))?,
            present: self.path.grows.then(grown).transpose()?,
            inputs,
        })
    }

    /// Runs one call, and returns its time in nanoseconds.
    fn step(&mut self, bound: &mut Bound) -> Result<f64, CertifyError> {
        let (past, present) = (self.path.past.0.as_str(), self.path.present.as_str());
        let mut step = Step { inputs: by_name(&bound.inputs), ..Step::default() };
        match &mut bound.present {
            Some(tensor) => {
                step.inputs.push((past, &bound.cache));
                step.outputs.push((present, tensor));
            }
            None => step.shared.push(InPlaceCache { past, present, cache: &mut bound.cache }),
        }
        Ok(self.session.run(step)?.elapsed.as_secs_f64() * 1e9)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kvscatter_onnx::Model;
    use kvscatter_onnx::decoder::Decoder;
    use kvscatter_onnx::internal::proto::NodeProto;

    use super::{FACTOR, FLAT_UP_TO, time};
    use crate::certificate::{CachePathTimes, Check, Verdict};
    use crate::evidence::timed::Timed;
    use kvscatter_ort_engine::OnnxRuntime;
    use kvscatter_session::Interface;

    fn testdata(name: &str) -> Model {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
        Model::load(&folder.join(name).join("model.onnx")).unwrap()
    }

    fn timed(model: &Model) -> (Option<CachePathTimes>, Check) {
        let engine = OnnxRuntime::load(None).unwrap();
        let graph = model.graph().unwrap();
        let mut interface = Interface::new(model, &Decoder::from_graph(&graph).unwrap()).unwrap();
        interface.caches.iter_mut().for_each(|port| {
            port.dims.iter_mut().skip(1).for_each(|dim| *dim = dim.or(Some(16)));
        });
        let file = testdata("mobius-llama-static").file().unwrap();
        time(&engine, Timed { file: &file, model, interface: &interface }).unwrap()
    }

    #[test]
    #[ignore = "needs ONNX Runtime"]
    fn a_static_cache_is_flat() {
        let (times, check) = timed(&testdata("mobius-llama-static"));
        assert_eq!(check.verdict, Verdict::Passed, "{check:?}");
        let times = times.unwrap();
        assert!(times.caches == 4 && times.ratio <= FLAT_UP_TO, "{times:?}");
        assert_eq!(times.at[1].capacity, FACTOR * times.at[0].capacity);
    }

    /// One of four caches is read through two nodes that undo each other. The cache is copied although its
    /// address and its rows are right.
    #[test]
    #[ignore = "needs ONNX Runtime"]
    fn one_copied_cache_among_others_is_found() {
        let mut model = testdata("mobius-llama-static");
        let graph = model.proto_mut().graph.get_or_insert_default();
        let at =
            graph.node.iter().rposition(|node| node.op_type.as_deref() == Some("TensorScatter")).unwrap();
        let past = std::mem::replace(&mut graph.node[at].input[0], "twice".to_owned());
        let neg = |input: &str, output: &str| NodeProto::new("Neg", &[input], &[output]);
        graph.node.splice(at..at, [neg(&past, "once"), neg("once", "twice")]);
        let (times, check) = timed(&model);
        assert_eq!((check.verdict, check.failure_count), (Verdict::Failed, 1), "{check:?}");
        assert_eq!(check.failures[0].cache.as_deref(), Some(past.as_str()));
        assert_eq!(times.unwrap().cache, past);
    }

    #[test]
    #[ignore = "needs ONNX Runtime"]
    fn a_growing_cache_is_not_flat_and_attention_has_no_nodes_of_its_own_to_time() {
        let (_, check) = timed(&testdata("optimum-llama"));
        assert_eq!((check.verdict, check.failure_count), (Verdict::Failed, 4), "{check:?}");
        let (times, check) = timed(&testdata("mobius-llama-dynamic"));
        assert_eq!((check.verdict, times), (Verdict::NotMeasured, None), "{check:?}");
    }
}
