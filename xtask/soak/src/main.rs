//! Compares the project with its oracle for as long as it is told, with seeds that go on where the last run stopped.
//! `cargo xtask soak` runs it.

#![expect(clippy::panic, reason = "a difference is a panic, which is reported with its seed")]

mod attack;
mod attention;
mod core;
mod state;
mod tally;
mod turns;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use self::attack::{Attack, Differs};
use self::state::{State, StateError};
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
    /// Runs one seed of the attacks, and leaves the file as it is
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut attacks = attack::built_in();
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
