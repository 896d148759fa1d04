//! Runs one pass, and compares its time and its memory with limits that follow from the size of the file.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use allocation_counter::AllocationInfo;
use rustix::time::{ClockId, clock_gettime};

use crate::counts::{Counts, number};

/// The time and the memory that a pass may take: a fixed part, and a part for each byte of the file.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    seconds: f64,
    seconds_a_byte: f64,
    bytes: f64,
    bytes_a_byte: f64,
}

impl Bounds {
    /// A pass that reads a file or follows a graph.
    pub(crate) const STRUCTURE: Self =
        Self { seconds: 0.05, seconds_a_byte: 5e-6, bytes: 400e3, bytes_a_byte: 150.0 };

    /// A pass that makes another model, and may write it. Files are compared and copied in parts.
    pub(crate) const REWRITE: Self = Self { bytes: 4e6, bytes_a_byte: 600.0, ..Self::STRUCTURE };

    /// The lowering of `TensorScatter`, which adds at most 100,000 nodes.
    pub(crate) const LOWER: Self = Self { seconds: 3.0, bytes: 260e6, ..Self::REWRITE };

    /// A pass that evaluates graphs. Its limit on work allows values of 512 MiB, which takes a few seconds.
    pub(crate) const EVALUATION: Self =
        Self { seconds: 8.0, seconds_a_byte: 100e-6, bytes: 600e6, bytes_a_byte: 1000.0 };
}

/// Returns the time that the thread has worked. Other processes do not count.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    number(time.tv_sec.cast_unsigned()) + number(time.tv_nsec.cast_unsigned()) / 1e9
}

/// The passes over one file.
pub(crate) struct Meter<'c> {
    pub(crate) counts: &'c mut Counts,
    pub(crate) seed: u64,
    /// The factor of all limits of time.
    pub(crate) slower: f64,
    /// The number of bytes of the file.
    pub(crate) len: f64,
    pub(crate) failures: Vec<String>,
    /// The passes that succeeded.
    pub(crate) passed: BTreeSet<String>,
    /// Is called with the name of each pass before it starts.
    pub(crate) starts: &'c dyn Fn(&str),
    /// Is called with the name of each pass and its allocations after it ends.
    pub(crate) ends: &'c dyn Fn(&str, &AllocationInfo),
}

impl Meter<'_> {
    /// Runs a pass. Counts its success or its error, and notes a failure if it panics or exceeds its bounds.
    pub(crate) fn pass<T>(
        &mut self,
        name: &str,
        bounds: Bounds,
        run: impl FnOnce() -> Result<T, Refusal>,
    ) -> Option<T> {
        (self.starts)(name);
        let start = cpu_seconds();
        let mut result = Ok(Err(Refusal::Nothing));
        let memory = allocation_counter::measure(|| result = catch_unwind(AssertUnwindSafe(run)));
        let seconds = cpu_seconds() - start;
        (self.ends)(name, &memory);
        let shares = [
            ("time", seconds / (self.slower * (bounds.seconds + bounds.seconds_a_byte * self.len))),
            ("memory", number(memory.bytes_max) / (bounds.bytes + bounds.bytes_a_byte * self.len)),
        ];
        for (what, share) in shares {
            self.counts.most(format!("{what} of {name}"), share, self.seed);
            if share > 1.0 {
                let took = format!("{seconds:.3} s and {} bytes", memory.bytes_max);
                self.fail(name, &format!("took {took}, which is {share:.2} times the limit of its {what}"));
            }
        }
        match result {
            Ok(Ok(value)) => {
                self.passed.insert(name.to_owned());
                Some(value)
            }
            Ok(Err(refusal)) => {
                self.note(name, &refusal);
                None
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                self.fail(name, &format!("panicked: {text}"));
                None
            }
        }
    }

    pub(crate) fn fail(&mut self, pass: &str, what: &str) {
        self.failures.push(format!("{pass}: {what}"));
    }

    /// Counts an error by its variant, and checks its text.
    fn note(&mut self, pass: &str, refusal: &Refusal) {
        let Refusal::Error { variant, text } = refusal else { return };
        if text.is_empty() || text.contains('\n') {
            self.fail(pass, &format!("the text of an error is not one line: {text:?}"));
        }
        self.counts.error(variant.clone());
    }
}

/// Why a pass returned no value.
pub(crate) enum Refusal {
    /// The model does not have what the pass needs.
    Nothing,
    Error {
        variant: String,
        text: String,
    },
}

impl From<kvscatter_onnx::OnnxError> for Refusal {
    fn from(error: kvscatter_onnx::OnnxError) -> Self {
        Self::Error { variant: variant(error.root()), text: error.to_string() }
    }
}

/// Returns the name of a variant, with the names of the variants that it wraps.
fn variant(error: &impl std::fmt::Debug) -> String {
    let mut names = Vec::new();
    for part in format!("{error:?}").split('(').take_while(|part| part.starts_with(char::is_uppercase)) {
        let name: String = part.chars().take_while(|letter| letter.is_alphanumeric()).collect();
        let is_whole = name.len() == part.len();
        names.push(name);
        if !is_whole {
            break;
        }
    }
    names.join(" ")
}
