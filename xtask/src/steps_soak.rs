//! Compares everything with the oracle for hours, with seeds that go on where the last run stopped.

use std::ffi::OsString;

use crate::cargo::{cargo, target_dir};
use crate::step::Step;
use crate::{steps_c, steps_ort, steps_python};

/// How long to run, and which attacks.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long all attacks run together
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    minutes: f64,
    /// Runs only this attack: core, attention, sessions, c, python or plugin. Can be given several times
    #[arg(long, value_name = "ATTACK")]
    only: Vec<String>,
    /// Runs one seed, and does not record it
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Builds the programs of each attack, and runs the attacks. The programs of an attack are not built if its tools are
/// missing, and the attack is then skipped.
pub(crate) fn soak(options: &Options) -> Vec<Step> {
    let is_chosen = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let (c, c_files) = steps_c::cases("soak-c");
    let (python, package) = steps_python::package("soak-python");
    let (plugin, plugin_files) = steps_ort::plugin("soak-plugin");

    let mut run = cargo("run --quiet --profile soak -p kvscatter-soak -- --state");
    run.arg(target_dir().join("soak/state.toml")).args(["--minutes", &options.minutes.to_string()]);
    let mut steps = Vec::new();
    let programs: [(&str, Step, Vec<OsString>); 3] = [
        ("c", c, c_files.into()),
        ("python", python, vec![package]),
        ("plugin", plugin, plugin_files.into()),
    ];
    for (name, step, files) in programs {
        if is_chosen(name) {
            steps.push(step);
            run.arg(format!("--{name}")).args(files);
        }
    }
    for only in &options.only {
        run.args(["--only", only]);
    }
    if let Some(seed) = options.seed {
        run.args(["--seed", &seed.to_string()]);
    }
    steps.push(Step::new("soak", vec![run]));
    steps
}
