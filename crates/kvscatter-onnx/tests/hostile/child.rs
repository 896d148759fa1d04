//! Reads the files of a range of seeds in this process.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::bounds::Meter;
use crate::counts::{Counts, number};
use crate::generator::Case;
use crate::generator::dice::Dice;
use crate::scene::{Scene, changed};

/// The variable with the range of a child process, `FROM..TO`.
pub(crate) const RANGE: &str = "KVSCATTER_HOSTILE_RANGE";

/// The variable with the file for the counts. The file `NAME.now` beside it has the seed and the pass of the moment.
pub(crate) const REPORT: &str = "KVSCATTER_HOSTILE_REPORT";

/// The passes that must succeed for many files.
pub(crate) const PASSES: &str = "read, tensors, fingerprint, save, evaluate, unmerge, graph, find caches, hazards, \
    refusals of TensorRT, cache paths, lower, convert, lower a converted model";

/// The time after which a pass counts as hanging. It is long, because other processes may use the processor.
const HANGS: Duration = Duration::from_secs(900);

/// The pass that runs, and when it started.
static NOW: Mutex<Option<(u64, String, Instant)>> = Mutex::new(None);

/// Returns the seeds of this process if it is a child process.
pub(crate) fn range() -> Option<Range<u64>> {
    let text = std::env::var(RANGE).ok()?;
    let (from, to) = text.split_once("..").expect("FROM..TO");
    Some(from.parse().unwrap()..to.parse().unwrap())
}

/// Reads the files of these seeds, and writes the counts after each.
pub(crate) fn run(seeds: Range<u64>) {
    let report = PathBuf::from(std::env::var_os(REPORT).expect("the file for the counts"));
    std::thread::spawn(watch);
    let scene = Scene::new().unwrap();
    // A relative path that leads out would be found here.
    std::env::set_current_dir(scene.working()).unwrap();
    let mut counts = Counts::default();
    for seed in seeds {
        std::fs::write(now(&report), format!("{seed}")).unwrap();
        one(seed, &scene, &mut counts);
        std::fs::write(&report, serde_json::to_vec(&counts).unwrap()).unwrap();
    }
}

pub(crate) fn now(report: &std::path::Path) -> PathBuf {
    report.with_extension("now")
}

fn one(seed: u64, scene: &Scene, counts: &mut Counts) {
    let case = Case::new(&mut Dice::new(seed, &[]));
    let before = scene.place(&case).unwrap();
    counts.files += 1;
    counts.bytes += u64::try_from(case.bytes.len()).unwrap();
    let starts = |pass: &str| *NOW.lock().unwrap() = Some((seed, pass.to_owned(), Instant::now()));
    let len = number(u64::try_from(case.bytes.len()).unwrap());
    // A build without optimisation is slower.
    let slower = if cfg!(debug_assertions) { 8.0 } else { 1.0 };
    let mut meter = Meter {
        counts,
        seed,
        slower,
        len,
        failures: Vec::new(),
        passed: BTreeSet::new(),
        starts: &starts,
        ends: &|_, _| {},
    };
    scene.run(&mut meter, &case);
    *NOW.lock().unwrap() = None;
    let changed = changed(&before, &scene.files().unwrap());
    if !changed.is_empty() {
        meter.fail("all", &format!("these files changed: {changed:?}"));
    }
    let Meter { passed, failures, .. } = meter;
    passed.iter().for_each(|pass| counts.passed(pass));
    for failure in failures {
        let failure = format!("seed {seed}: {}: {failure}", case.describe());
        println!("FAILED {failure}\n  to repeat it: {}", repeat(seed));
        counts.failures.push(failure);
    }
    if let Some(path) = std::env::var_os("KVSCATTER_HOSTILE_KEEP") {
        std::fs::write(path, &case.bytes).unwrap();
        println!("seed {seed}: {}", case.describe());
    }
}

/// Returns the command that reads one file again.
pub(crate) fn repeat(seed: u64) -> String {
    format!(
        "KVSCATTER_HOSTILE=1 KVSCATTER_HOSTILE_FROM={seed} KVSCATTER_HOSTILE_KEEP=/tmp/hostile.onnx \
         cargo test -p kvscatter-onnx --test hostile -- --nocapture"
    )
}

/// Ends the process if a pass hangs.
fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        if let Some((seed, pass, start)) = &*NOW.lock().unwrap()
            && start.elapsed() > HANGS
        {
            println!("seed {seed}: {pass} has not ended after {HANGS:?}");
            std::process::abort();
        }
    }
}
