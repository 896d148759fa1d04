//! Repeats the random tests for hours, with a new seed in each round.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cargo::{cargo, target_dir};
use crate::command::With;
use crate::step::{self, Missing, Step};
use crate::{steps_c, steps_ort, steps_python};

/// How long to run, and which tests.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long to begin new rounds
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    minutes: f64,
    /// Runs only these tests. Can be given several times
    #[arg(long, value_name = "TESTS", value_parser = ["core", "sessions", "c", "python", "plugin"])]
    only: Vec<String>,
    /// Runs one round with this seed, which a failed round has printed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Builds the programs of all chosen tests, and runs rounds until one fails or the time is over. Tests whose tools are
/// missing are skipped. Returns `true` if no round failed.
pub(crate) fn soak(options: &Options) -> bool {
    let chosen = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let (c, c_files) = steps_c::cases("soak-c");
    let (python, package) = steps_python::package("soak-python");
    let (plugin, plugin_files) = steps_ort::plugin("soak-plugin");
    let builds = [("c", c), ("python", python), ("plugin", plugin)];
    let builds = builds.into_iter().filter(|(name, _)| chosen(name)).map(|(_, step)| step);
    if !step::run(builds.collect(), Missing::IsSkipped) {
        return false;
    }
    let begin = Instant::now();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    for seed in options.seed.unwrap_or(now).. {
        println!("seed {seed}");
        let mut round = Vec::new();
        if chosen("core") {
            let tests = ["oracle", "paged"].map(|test| random_tests("kvscatter", test, seed));
            round.push(Step::new("core", tests.into()));
        }
        if chosen("sessions") {
            round.push(Step::new("sessions", vec![random_tests("kvscatter-session", "histories", seed)]));
        }
        if chosen("c") && c_files.iter().all(is_there) {
            round.push(Step::new("c", c_cases(&c_files, seed).into()));
        }
        if chosen("python") && is_there(&package) {
            round.push(Step::new("python", vec![script(&package, "package", seed)]));
        }
        if chosen("plugin") && plugin_files.iter().all(is_there) {
            round.push(Step::new("plugin", vec![plugin_cases(&plugin_files, seed)]));
        }
        if round.is_empty() {
            println!("no test can run, because its tools are missing");
            return false;
        }
        if !step::run(round, Missing::Fails) {
            println!("`cargo xtask soak --seed {seed}` repeats this round");
            return false;
        }
        if options.seed.is_some() || begin.elapsed() >= Duration::from_secs_f64(60.0 * options.minutes) {
            break;
        }
    }
    true
}

/// Runs a crate's random tests, with about a minute's cases of this seed. Arithmetic must not overflow in any of them.
fn random_tests(package: &str, test: &str, seed: u64) -> Command {
    let tests = cargo(&format!("test --quiet --profile soak -p {package} --test {test}"));
    // proptest reads the first two variables.
    let tests = tests.with_env("PROPTEST_CASES", "20000").with_env("PROPTEST_RNG_SEED", seed.to_string());
    tests.with_env("KVSCATTER_HISTORIES", "4000").with_env("KVSCATTER_SEED", seed.to_string())
}

/// Writes the oracle's cases to a file, and checks the C interface on them.
fn c_cases([export, check]: &[OsString; 2], seed: u64) -> [Command; 2] {
    let file = target_dir().join("soak-cases.bin");
    let write = Command::new(export).with(&file).with_all(["20000", &seed.to_string()]);
    [write, Command::new(check).with(file)]
}

/// Checks the plugin in ONNX Runtime, on writes and calls of attention.
fn plugin_cases(files: &[OsString; 5], seed: u64) -> Command {
    let [python, library, command, attention, group_query] = files;
    let plugin = script(python, "plugin", seed).with_env("KVSCATTER_ATTENTION_CASES", attention);
    let plugin = plugin.with_env("KVSCATTER_GROUP_QUERY_CASES", group_query);
    plugin.with_env("KVSCATTER_ORT_LIBRARY", library).with_env("KVSCATTER_COMMAND", command)
}

fn script(python: &OsString, name: &str, seed: u64) -> Command {
    Command::new(python).with(format!("xtask/soak/{name}.py")).with(seed.to_string())
}

fn is_there(file: &OsString) -> bool {
    Path::new(file).exists()
}
