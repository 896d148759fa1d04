//! Measures the write: kvscatter, other libraries and the yardsticks.
//!
//! A *hot* case repeats a call on one cache. A *cold* case writes the keys and values of many layers in turn, at new
//! positions in every step, as a decoder does.

mod candle;
mod candle_caches;
mod case;
mod copies;
mod expected;
mod ndarray;
mod onnxruntime;
mod scene;
mod subject;
mod writer;
mod writers;

use std::time::Duration;

pub(crate) use case::Write;

use self::case::Dims;
use self::scene::Scene;
use crate::measure::{Budget, Prepared};
use crate::results::Numbers;
use crate::runtimes::Runtimes;
use crate::suite::Case;

pub(crate) const CASES: &str = include_str!("../cases.toml");
/// The cases of the adapter for candle.
pub(crate) const CANDLE_CASES: &str = include_str!("../candle.toml");

impl Case for Write {
    type Scene = Scene;
    type Libraries = Runtimes;

    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<(), String> {
        Self::check(self)
    }

    fn numbers(&self) -> Numbers {
        let Dims { batch, capacity, .. } = self.dims();
        let numbers = [("batch", batch), ("capacity", capacity), ("bytes", self.moved_bytes())];
        numbers.map(|(name, number)| (name, number as f64)).into()
    }

    fn scene(&self) -> Result<Scene, String> {
        Scene::new(self)
    }

    fn subject(name: &str, scene: &Scene, runtimes: &Runtimes) -> Prepared<Scene> {
        subject::prepare(name, scene.case(), runtimes)
    }

    /// A call that moves hundreds of megabytes takes so long that few rounds suffice. Cold calls cannot be repeated
    /// within a sample, so they get more time.
    fn budget(&self, quick: bool) -> Budget {
        const LARGE: usize = 256 << 20;
        let (time, rounds) = if quick { (250, 9) } else { (3000, 41) };
        let time = Duration::from_millis(time) * if self.is_cold() { 3 } else { 1 };
        Budget { time, min_rounds: if self.moved_bytes() >= LARGE { rounds / 3 } else { rounds } }
    }

    /// Gives a cold case as few layers as its subjects need, because painting gigabytes takes most of the time.
    fn shorten(&mut self) {
        const LAYERS: usize = 8;
        self.layers = self.layers.min(LAYERS);
    }
}

#[cfg(test)]
mod tests {
    use super::{CANDLE_CASES, CASES, Write, case};
    use crate::measure::tests::SHORT;
    use crate::measure::{Measured, measure};
    use crate::runtimes::Runtimes;
    use crate::suite::{Case, Suite};

    fn run(text: &str, subjects: &[&str], runtimes: &Runtimes) -> Measured {
        let case: Write = toml::from_str(&format!("name = 'small'\npages = '4k'\n{text}")).unwrap();
        case.check().unwrap_or_else(|why| panic!("{text}: {why}"));
        let mut scene = case.scene().unwrap();
        let prepared = subjects.iter().map(|&name| (name.to_owned(), Write::subject(name, &scene, runtimes)));
        let prepared = prepared.collect();
        measure(&mut scene, prepared, SHORT).unwrap()
    }

    /// Runs a case, and returns the subjects that did it. The others must say that they do not support it.
    fn done<'s>(text: &str, subjects: &[&'s str], runtimes: &Runtimes) -> Vec<&'s str> {
        let measured = run(text, subjects, runtimes);
        for (name, times) in &measured.subjects {
            let why = times.as_ref().err().map_or("", String::as_str);
            assert!(!why.contains("wrong") && !why.contains("failed"), "{text}: {name}: {why}");
        }
        subjects.iter().copied().filter(|name| measured.times(name).is_some()).collect()
    }

    const OURS: &[&str] = &["hand loop", "memcpy", "kvscatter"];

    #[test]
    fn every_kind_of_write_is_done_and_right() {
        let none = Runtimes::none();
        let nibbles = &["memcpy", "kvscatter"];
        for (text, expected) in [
            ("shape = [3, 2, 16, 8]\nrows = 1", OURS),
            ("shape = [3, 2, 16, 8]\nrows = 16\ntype = 'float32'", OURS),
            ("shape = [3, 2, 16, 8]\nrows = 1\nstarts = 'equal'\ntype = 'i8'", OURS),
            ("shape = [3, 16, 5]\naxis = 1\nrows = 7\ntype = 'complex128'", OURS),
            ("shape = [3, 2, 5, 16]\naxis = -1\nrows = 3\ntype = 'int64'", OURS),
            ("shape = [3, 2, 16, 8]\nrows = 3\nform = 'functional'", OURS),
            ("shape = [3, 2, 16, 8]\nrows = 2\nform = 'functional'\naxis = 1", OURS),
            ("shape = [3, 2, 16, 8]\nrows = 3\nupdate = 'bshd'", OURS),
            ("shape = [3, 2, 16, 8]\nrows = 3\ntype = 'int4'", OURS),
            ("shape = [3, 2, 16, 7]\nrows = 3\ntype = 'uint4'", nibbles),
            ("shape = [3, 1, 5, 7]\nrows = 3\ntype = 'uint4'", nibbles),
            ("shape = [3, 1, 5, 7]\nrows = 3\ntype = 'uint4'\nform = 'functional'", nibbles),
            ("shape = [3, 2, 16, 8]\nrows = 2\ntemperature = 'unflushed'\nlayers = 9", OURS),
            ("shape = [3, 2, 16, 8]\nrows = 2\ntemperature = 'flushed-rows'\nlayers = 9", OURS),
        ] {
            assert_eq!(done(text, OURS, &none), expected, "{text}");
        }
        let unwrapped = ["memcpy", "hand loop", "kvscatter", "kvscatter, unwrapped"];
        for text in [
            "shape = [3, 2, 16, 8]\nrows = 5\nmode = 'circular'\nstarts = 'wrap'",
            "shape = [2, 2, 5, 16]\naxis = 3\nrows = 9\nmode = 'circular'\nstarts = [15, 1]",
        ] {
            assert_eq!(done(text, &unwrapped, &none), unwrapped, "{text}");
        }
        let read = ["kvscatter, then read", "hand loop, then read"];
        let text = "shape = [3, 2, 16, 8]\nrows = 2\ntemperature = 'unflushed'\nlayers = 3";
        assert_eq!(done(text, &read, &none), read);
    }

    /// The updates of the last cases are too long for the oracle.
    #[test]
    fn large_writes_are_done_also_on_two_threads() {
        let none = Runtimes::none();
        for text in [
            "shape = [2, 2, 4096, 128]\nrows = 2049\ntype = 'int8'",
            "shape = [2, 2, 4096, 128]\nrows = 2049\ntype = 'int8'\nupdate = 'bshd'",
            "shape = [2, 2, 4096, 129]\nrows = 2048\ntype = 'int4'\nmode = 'circular'\nstarts = 'wrap'",
        ] {
            assert!(done(text, OURS, &none).contains(&"kvscatter"), "{text}");
        }
        let threads = ["memcpy", "hand loop", "2 × memcpy", "kvscatter", "kvscatter, 1 thread"];
        for form in ["in-place", "functional"] {
            // The write is long enough for the library to use threads.
            let text = format!("shape = [2, 4, 8192, 128]\nrows = 4097\nform = '{form}'\nthreads = 2");
            assert_eq!(done(&text, &threads, &none), threads);
        }
    }

    /// This is one test, because a process has one ONNX Runtime.
    #[test]
    fn every_library_does_its_cases_and_does_them_right() {
        let runtimes = Runtimes::find(None, None).unwrap();
        let (slices, scatter, assign) = ("candle slice_set", "candle scatter_set", "ndarray assign");
        let (shared, plain) = ("onnxruntime, shared buffer", "onnxruntime, run()");
        let all = [slices, scatter, assign, shared, plain];
        let base = "shape = [3, 2, 16, 5]\nrows = 4";
        for (more, expected) in [
            ("", all.as_slice()),
            ("starts = 'equal'", &all),
            ("mode = 'circular'\nstarts = 'wrap'", &[scatter, assign, shared, plain]),
            ("form = 'functional'", &[assign, plain]),
            ("update = 'bshd'", &[assign]),
            ("temperature = 'unflushed'\nlayers = 8", &[assign]),
        ] {
            let mut expected = expected.to_vec();
            expected.retain(|name| !name.starts_with("onnxruntime") || runtimes.stock().is_ok());
            assert_eq!(done(&format!("{base}\n{more}"), &all, &runtimes), expected, "{more}");
        }
    }

    #[test]
    fn every_subject_of_the_adapter_for_candle_is_right() {
        let none = Runtimes::none();
        for row in &Suite::<Write>::parse(CANDLE_CASES).unwrap().rows {
            let subjects: Vec<_> = row.subjects.iter().map(String::as_str).collect();
            for case in &row.cases {
                let (batch, rows) = (case.shape[0].min(3), case.rows.min(5));
                let starts = if case.starts == case::Starts::default() { "ragged" } else { "equal" };
                let element = case.element;
                let text = format!(
                    "shape = [{batch}, 2, 24, 4]\nrows = {rows}\ntype = '{element}'\nstarts = '{starts}'"
                );
                let done = done(&text, &subjects, &none);
                // `cat` needs the same start for all samples.
                let expected = subjects.len() - usize::from(starts == "ragged");
                assert_eq!(done.len(), expected, "{text}: {done:?}");
            }
        }
    }

    #[test]
    fn every_4_bit_run_moves_to_the_other_half_of_its_bytes() {
        let suite = Suite::<Write>::parse(CASES).unwrap();
        let rows = suite.rows.iter().filter(|row| row.id.starts_with("nibbles-"));
        let cases: Vec<_> = rows.flat_map(|row| &row.cases).collect();
        assert_eq!(cases.len(), 12);
        for case in cases {
            assert!(super::copies::crosses_halves(case), "{}", case.name);
        }
    }
}
