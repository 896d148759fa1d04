//! Engines are checked before they are timed.

use kvscatter_bench::engines::{HAND_LOOP, KVSCATTER, MEMCPY, SINGLE, UNWRAPPED, built_in};
use kvscatter_bench::{Call, Case, Engine, Failed, Form, Outcome, Reference, Run, Scene, Task, Unsupported};

use crate::support::{case, run};

/// Small cases of every kind, and the built-in engines that can do them.
const KINDS: [(&str, &[&str]); 16] = [
    ("shape = [3, 2, 16, 8]\nrows = 1", &[MEMCPY, HAND_LOOP, KVSCATTER]),
    ("shape = [3, 2, 16, 8]\nrows = 16\ntype = \"float32\"", &[MEMCPY, HAND_LOOP, KVSCATTER]),
    ("shape = [3, 2, 16, 8]\nrows = 1\nstarts = \"equal\"\ntype = \"i8\"", &[MEMCPY, HAND_LOOP, KVSCATTER]),
    ("shape = [3, 16, 5]\naxis = 1\nrows = 7\ntype = \"complex128\"", &[MEMCPY, HAND_LOOP, KVSCATTER]),
    ("shape = [3, 2, 5, 16]\naxis = -1\nrows = 3\ntype = \"int64\"", &[MEMCPY, HAND_LOOP, KVSCATTER]),
    (
        "shape = [3, 2, 16, 8]\nrows = 5\nmode = \"circular\"\nstarts = \"wrap\"",
        &[MEMCPY, HAND_LOOP, KVSCATTER, UNWRAPPED],
    ),
    (
        "shape = [2, 2, 5, 16]\naxis = 3\nrows = 9\nmode = \"circular\"\nstarts = [15, 1]",
        &[MEMCPY, HAND_LOOP, KVSCATTER, UNWRAPPED],
    ),
    ("shape = [3, 2, 16, 8]\nrows = 3\nform = \"functional\"", &[MEMCPY, HAND_LOOP, KVSCATTER]),
    ("shape = [3, 2, 16, 8]\nrows = 2\nform = \"functional\"\naxis = 1", &[MEMCPY, HAND_LOOP, KVSCATTER]),
    ("shape = [3, 2, 16, 8]\nrows = 3\nupdate = \"bshd\"", &[MEMCPY, HAND_LOOP, KVSCATTER]),
    ("shape = [3, 2, 16, 8]\nrows = 3\ntype = \"int4\"", &[MEMCPY, HAND_LOOP, KVSCATTER]),
    ("shape = [3, 2, 16, 7]\nrows = 3\ntype = \"uint4\"", &[MEMCPY, KVSCATTER]),
    ("shape = [3, 1, 5, 7]\nrows = 3\ntype = \"uint4\"", &[MEMCPY, KVSCATTER]),
    ("shape = [3, 1, 5, 7]\nrows = 3\ntype = \"uint4\"\nform = \"functional\"", &[MEMCPY, KVSCATTER]),
    (
        "shape = [3, 2, 16, 8]\nrows = 2\ntemperature = \"unflushed\"\nlayers = 9",
        &[MEMCPY, HAND_LOOP, KVSCATTER],
    ),
    (
        "shape = [3, 2, 16, 8]\nrows = 2\ntemperature = \"flushed-rows\"\nlayers = 9",
        &[MEMCPY, HAND_LOOP, KVSCATTER],
    ),
];

#[test]
fn every_kind_of_case_is_measured() {
    for (text, engines) in KINDS {
        let case = case(text);
        let report = run(&case, &built_in(&case)).unwrap();
        let of = |outcome: &Outcome| match outcome {
            Outcome::Measured(_) | Outcome::Unsupported(_) => (),
            outcome => panic!("{text}: {outcome:?}"),
        };
        report.entries.iter().for_each(|entry| of(&entry.outcome));
        let timed: Vec<_> =
            report.entries.iter().filter(|entry| report.times(&entry.engine).is_some()).collect();
        assert_eq!(timed.iter().map(|entry| entry.engine.as_str()).collect::<Vec<_>>(), engines, "{text}");
        for entry in timed {
            let times = report.times(&entry.engine).unwrap();
            assert!(times.write.by_round().len() >= 4 && times.write.spread().p10 > 0.0, "{text}");
            let read = times.write_and_read.as_ref().map(|read| read.minus(&times.write).p10);
            assert_eq!(read.is_some_and(|read| read > 0.0), text.contains("flushed"), "{text}");
            assert!(report.bandwidth(&entry.engine).unwrap() > 0.0);
        }
        assert_eq!(report.checked_by, Reference::Oracle, "{text}");
        assert!(
            report
                .noise
                .is_some_and(|noise| noise.engine == engines[engines.len().min(2) - 1] || engines.len() == 2)
        );
    }
}

/// Threads share a write, on machines that have at least two cores.
#[test]
fn threads_share_a_write() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    for form in ["in-place", "functional"] {
        // The write is long enough for the library to use threads.
        let case = case(&format!("shape = [2, 4, 8192, 128]\nrows = 4097\nform = \"{form}\"\nthreads = 2"));
        let report = run(&case, &built_in(&case)).unwrap();
        for engine in [MEMCPY, HAND_LOOP, "2 × memcpy", KVSCATTER, SINGLE] {
            assert!(report.times(engine).is_some(), "{engine}: {:?}", report.entries);
        }
    }
}

/// The updates are too long for the oracle.
#[test]
fn large_cases_are_checked_by_a_loop_over_rows() {
    for text in [
        "shape = [2, 2, 4096, 128]\nrows = 2049\ntype = \"int8\"",
        "shape = [2, 2, 4096, 129]\nrows = 2048\ntype = \"int4\"\nmode = \"circular\"\nstarts = \"wrap\"",
        "shape = [2, 2, 4096, 128]\nrows = 2049\ntype = \"int8\"\nupdate = \"bshd\"",
    ] {
        let case = case(text);
        let report = run(&case, &built_in(&case)).unwrap();
        assert_eq!(report.checked_by, Reference::RowLoop);
        assert!(report.times(KVSCATTER).is_some(), "{text}: {:?}", report.entries);
    }
}

/// An engine that does the write correctly and then changes something else.
struct Slip {
    name: &'static str,
    slip: fn(&mut Call<'_>),
    fails: bool,
}

struct Slipping {
    right: Box<dyn Run>,
    slip: fn(&mut Call<'_>),
    fails: bool,
}

impl Engine for Slip {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&self, case: &Case, scene: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        let right = kvscatter_bench::engines::HandLoop.prepare(case, scene)?;
        Ok(Box::new(Slipping { right, slip: self.slip, fails: self.fails }))
    }
}

impl Run for Slipping {
    fn aim(&mut self, starts: &[i64]) {
        self.right.aim(starts);
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        if self.fails {
            return Err("out of order".into());
        }
        self.right.run(call)?;
        (self.slip)(call);
        Ok(())
    }
}

#[test]
fn a_wrong_engine_is_named_and_never_timed() {
    let first = |call: &mut Call<'_>| call.keys.cache[0] ^= 1;
    let last = |call: &mut Call<'_>| *call.keys.cache.last_mut().unwrap() ^= 0x80;
    let values = |call: &mut Call<'_>| call.values.as_mut().unwrap().cache[7] ^= 1;
    let present = |call: &mut Call<'_>| call.keys.present[9] ^= 1;
    let cold = "temperature = \"unflushed\"\nlayers = 4";
    let (hot, functional) = ("", "form = \"functional\"");
    let slips: [(_, fn(&mut Call<'_>), _); 6] = [
        (hot, first, "step 0: cache of keys: byte 0 of 1536 is"),
        (hot, last, "step 0: cache of keys: byte 1535 of 1536 is"),
        (cold, values, "step 0: cache of values: byte 7 of 1536 is"),
        (functional, first, "step 0: past: byte 0 of 1536 is"),
        (functional, present, "step 0: present: byte 9 of 1536 is"),
        (functional, |call| call.keys.present.fill(0), "bytes differ"),
    ];
    for (kind, slip, message) in slips {
        let case = case(&format!("shape = [3, 2, 16, 8]\nrows = 3\n{kind}"));
        let mut engines = built_in(&case);
        engines.push(Box::new(Slip { name: "slips", slip, fails: false }));
        let report = run(&case, &engines).unwrap();
        let wrong = &report.entries.last().unwrap().outcome;
        assert!(matches!(wrong, Outcome::Wrong(text) if text.contains(message)), "{message}: {wrong:?}");
        assert!(report.times("slips").is_none() && report.ratio("slips", MEMCPY).is_none());
        assert!(report.ratio(KVSCATTER, HAND_LOOP).is_some(), "the others go on");
    }
}

/// An engine that ignores new positions, or does nothing, fails the check of the second step.
#[test]
fn an_engine_that_does_not_follow_the_positions_is_wrong() {
    struct Stays;
    struct Still(Box<dyn Run>, bool);
    impl Engine for Stays {
        fn name(&self) -> &str {
            "stays"
        }
        fn prepare(&self, case: &Case, scene: &Scene) -> Result<Box<dyn Run>, Unsupported> {
            Ok(Box::new(Still(kvscatter_bench::engines::HandLoop.prepare(case, scene)?, false)))
        }
    }
    impl Run for Still {
        fn aim(&mut self, starts: &[i64]) {
            if !std::mem::replace(&mut self.1, true) {
                self.0.aim(starts);
            }
        }
        fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
            self.0.run(call)
        }
    }
    let case = case("shape = [3, 2, 16, 8]\nrows = 3\ntemperature = \"unflushed\"");
    let report = run(&case, &[Box::new(Stays)]).unwrap();
    let outcome = &report.entries[0].outcome;
    assert!(matches!(outcome, Outcome::Wrong(text) if text.starts_with("step 5: ")), "{outcome:?}");
    assert!(report.noise.is_none(), "no engine was measured");
}

#[test]
fn failures_and_refusals_are_told() {
    struct Refuses;
    impl Engine for Refuses {
        fn name(&self) -> &str {
            "refuses"
        }
        fn task(&self) -> Task {
            Task::Memcpy
        }
        fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
            assert_eq!(case.parameters().form, Form::InPlace);
            Err(Unsupported("no such type".to_owned()))
        }
    }
    let case = case("shape = [3, 2, 16, 8]\nrows = 3");
    let fails = Slip { name: "fails", slip: |_| (), fails: true };
    let report = run(&case, &[Box::new(Refuses), Box::new(fails)]).unwrap();
    let outcomes: Vec<_> = report.entries.iter().map(|entry| &entry.outcome).collect();
    assert!(matches!(outcomes[0], Outcome::Unsupported(text) if text == "no such type"), "{outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Failed(text) if text == "out of order"), "{outcomes:?}");
}

/// Engines have separate layers, because only the engine itself may have warmed its memory.
#[test]
fn a_cold_case_has_layers_for_everyone() {
    let three = case("shape = [3, 2, 16, 8]\nrows = 3\ntemperature = \"unflushed\"\nlayers = 3");
    let error = run(&three, &built_in(&three)).expect_err("three engines, one of them twice");
    assert_eq!(
        error.to_string(),
        "layers = 3: must be at least 4, 1 for each engine and 1 more for the engine that is timed twice"
    );
    let seven = case("shape = [3, 2, 16, 8]\nrows = 3\ntemperature = \"flushed-rows\"\nlayers = 7");
    let error = run(&seven, &built_in(&seven)).expect_err("a layer before each");
    assert_eq!(
        error.to_string(),
        "layers = 7: must be at least 8, 2 for each engine and 2 more for the engine that is timed twice"
    );
}
