//! Compares the project with its oracle for a given time, with seeds that go on where the last run stopped.
//! `cargo xtask soak` runs it.

#![expect(clippy::panic, reason = "a difference is a panic, which is reported with its seed")]

mod attack;
mod attention;
mod core;
mod programs;
mod sessions;
mod state;
mod tally;
mod turns;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use self::attack::Attack;
use self::programs::Program;
use self::state::{State, StateError};
use self::tally::Differs;
use self::turns::Found;

/// Compares the core, attention and the interfaces with the oracle, on seeds that no run has used before.
#[derive(Parser)]
struct Arguments {
    /// How long to run
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    minutes: f64,
    /// The file with the progress of every attack
    #[arg(long, value_name = "FILE")]
    state: PathBuf,
    /// Runs this attack only. Can be given several times
    #[arg(long, value_name = "ATTACK")]
    only: Vec<String>,
    /// The programs that write the cases and check the C interface
    #[arg(long, num_args = 2, value_names = ["EXPORT", "CHECK"])]
    c: Option<Vec<PathBuf>>,
    /// The Python that has the package
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// The Python that has ONNX Runtime, the plugin, and the programs that write cases of writes and of attention
    #[arg(long, num_args = 4, value_names = ["PYTHON", "LIBRARY", "COMMAND", "EXPORT"])]
    plugin: Option<Vec<PathBuf>>,
    /// Runs one seed of the attacks, and leaves the file as it is
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut attacks = attack::built_in();
    attacks.extend(arguments.programs());
    if let Some(unknown) = arguments.only.iter().find(|only| attacks.iter().all(|a| a.name != **only)) {
        let names: Vec<_> = attacks.iter().map(|attack| attack.name).collect();
        eprintln!("{unknown} is not an attack: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    attacks
        .retain(|attack| arguments.only.is_empty() || arguments.only.iter().any(|only| attack.name == only));
    let found = match arguments.seed {
        Some(seed) => Ok(one_seed(&attacks, seed)),
        None => soak(&attacks, &arguments),
    };
    match found {
        Ok(Found::Nothing) => ExitCode::SUCCESS,
        Ok(Found::Difference { attack, seed }) => {
            eprintln!("\n{attack} differs from the oracle at seed {seed}. To repeat it:");
            eprintln!("  cargo xtask soak --only {attack} --seed {seed}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

impl Arguments {
    /// Returns the attacks on other languages whose programs exist, and prints which ones are skipped.
    fn programs(&self) -> Vec<Attack> {
        let c = match self.c.as_deref() {
            Some([export, check]) => Some(Program::C { export: export.clone(), check: check.clone() }),
            _ => None,
        };
        let python = self.python.clone().map(|python| Program::Python { python });
        let plugin = match self.plugin.clone().map(<[PathBuf; 4]>::try_from) {
            Some(Ok([python, library, command, export])) => {
                Some(Program::Plugin { python, library, command, export })
            }
            _ => None,
        };
        let programs = [
            ("c", "cases of the C interface", c),
            ("python", "cases of the Python package", python),
            ("plugin", "cases of the plugin in ONNX Runtime", plugin),
        ];
        let attack = |(name, about, program): (_, _, Option<Program>)| {
            let program = program?;
            match program.missing() {
                None => Some(Attack::program(name, about, 0.25, program)),
                Some(missing) => {
                    println!("{name:<12} skipped, because {} does not exist", missing.display());
                    None
                }
            }
        };
        programs.into_iter().filter_map(attack).collect()
    }
}

fn soak(attacks: &[Attack], arguments: &Arguments) -> Result<Found, StateError> {
    let mut state = State::open(&arguments.state)?;
    for attack in attacks {
        println!("{:<12} {}, from seed {}", attack.name, attack.about, state.progress(attack.name).next_seed);
    }
    turns::run(attacks, &mut state, Duration::from_secs_f64(arguments.minutes.max(0.0) * 60.0))
}

fn one_seed(attacks: &[Attack], seed: u64) -> Found {
    for attack in attacks {
        match attack.run(seed) {
            Ok(calls) => println!("{:<12} {} calls agree", attack.name, calls.calls()),
            Err(Differs) => return Found::Difference { attack: attack.name, seed },
        }
    }
    Found::Nothing
}
