//! The same write by other libraries, each as an implementation of [`Engine`].

pub(crate) mod candle;
mod limits;
mod ndarray;
mod onnxruntime;

use kvscatter_bench::Engine;

/// The libraries that are present.
#[derive(Default)]
pub(crate) struct Peers {
    onnxruntime: Option<onnxruntime::Library>,
    absent: Vec<String>,
}

impl Peers {
    /// Loads the libraries that are loaded at run time.
    pub(crate) fn find() -> Self {
        match onnxruntime::Library::load() {
            Ok(library) => Self { onnxruntime: Some(library), absent: Vec::new() },
            Err(why) => Self { onnxruntime: None, absent: vec![format!("onnxruntime is skipped: {why}")] },
        }
    }

    /// Returns a line for each library that is missing.
    pub(crate) fn absent(&self) -> &[String] {
        &self.absent
    }

    /// Returns the engines of the libraries that are present.
    pub(crate) fn engines(&self) -> Vec<Box<dyn Engine>> {
        let mut engines: Vec<Box<dyn Engine>> = Vec::new();
        engines.extend(candle::engines());
        engines.push(Box::new(ndarray::Ndarray));
        engines.extend(self.onnxruntime.iter().flat_map(onnxruntime::Library::engines));
        engines
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvscatter_bench::{Budget, Case, Outcome, Scene, measure};

    use super::Peers;

    /// Each case with the engines that support it. The engines of ONNX Runtime are last.
    const CASES: [(&str, &[&str]); 6] = [
        ("", &["candle slice_set", "candle scatter_set", "ndarray assign", SHARED, PLAIN]),
        ("starts = 'equal'", &["candle slice_set", "candle scatter_set", "ndarray assign", SHARED, PLAIN]),
        ("mode = 'circular'\nstarts = 'wrap'", &["candle scatter_set", "ndarray assign", SHARED, PLAIN]),
        ("form = 'functional'", &["ndarray assign", PLAIN]),
        ("update = 'bshd'", &["ndarray assign"]),
        ("temperature = 'unflushed'\nlayers = 8", &["ndarray assign"]),
    ];
    const SHARED: &str = "onnxruntime, shared buffer";
    const PLAIN: &str = "onnxruntime, run()";

    /// This is one test, because a process has one ONNX Runtime.
    #[test]
    fn every_peer_does_what_it_says_it_can_and_does_it_right() {
        let peers = Peers::find();
        let is_here = |name: &&&str| !name.starts_with("onnxruntime") || peers.absent().is_empty();
        let budget = Budget { time: Duration::ZERO, min_rounds: 1 };
        for (more, expected) in CASES {
            let text = format!("shape = [3, 2, 16, 5]\nrows = 4\npages = '4k'\n{more}");
            let case = Case::new(toml::from_str(&text).unwrap()).unwrap();
            let mut scene = Scene::new(&case).unwrap();
            let report = measure(&mut scene, &peers.engines(), budget, |_| ()).unwrap();
            let done = report.entries.iter().filter_map(|entry| match &entry.outcome {
                Outcome::Measured(_) => Some(&entry.engine),
                Outcome::Unsupported(_) => None,
                other => panic!("{more}: {}: {other:?}", entry.engine),
            });
            assert!(done.eq(expected.iter().filter(is_here)), "{more}: {:?}", report.entries);
        }
    }
}
