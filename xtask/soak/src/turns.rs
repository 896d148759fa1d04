//! Gives attacks their turns until the time is over or one of them finds a difference.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use crate::attack::Attack;
use crate::state::{Progress, State, StateError};
use crate::tally::{Differs, Tally};

/// How long a turn is, at most. A seed that has been started is finished.
const TURN: Duration = Duration::from_secs(10);

/// What a run found.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    Nothing,
    /// An attack failed at a seed. The next run starts with the same seed.
    Difference {
        attack: &'static str,
        seed: u64,
    },
}

/// Runs the attacks for this time, and at least one of them.
pub(crate) fn run(attacks: &[Attack], state: &mut State, time: Duration) -> Result<Found, StateError> {
    let commit = commit();
    let begin = Instant::now();
    let mut seconds = vec![0.0; attacks.len()];
    let mut calls = vec![Tally::default(); attacks.len()];
    loop {
        // The attack that is farthest from its share is next.
        let spent = |n: &usize| seconds[*n] / attacks[*n].share;
        let Some(n) = (0..attacks.len()).min_by(|a, b| spent(a).total_cmp(&spent(b))) else {
            return Ok(Found::Nothing);
        };
        let attack = &attacks[n];
        let mut progress = state.progress(attack.name);
        let turn = Instant::now();
        let until = TURN.min(time.saturating_sub(begin.elapsed()));
        let mut made = Tally::default();
        let mut differs = false;
        while !differs && (made == Tally::default() || turn.elapsed() < until) {
            match attack.run(progress.next_seed) {
                Ok(tally) => {
                    made += tally;
                    progress.next_seed += 1;
                }
                Err(Differs) => differs = true,
            }
        }
        let took = turn.elapsed().as_secs_f64();
        progress.add(made, took);
        progress.commit.clone_from(&commit);
        progress.date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        seconds[n] += took;
        calls[n] += made;
        println!("{}", line(attack, made, calls[n], &progress, took));
        let seed = progress.next_seed;
        state.save(attack.name, progress)?;
        if differs {
            return Ok(Found::Difference { attack: attack.name, seed });
        }
        if begin.elapsed() >= time {
            return Ok(Found::Nothing);
        }
    }
}

fn line(attack: &Attack, made: Tally, run: Tally, progress: &Progress, took: f64) -> String {
    let each = took * 1e6 / made.calls().max(1) as f64;
    format!(
        "{:<12} next seed {:>8}  {:>13} calls in this run, {:>13} in all ({} refused), {each:.2} µs each",
        attack.name,
        progress.next_seed,
        run.calls(),
        progress.calls(),
        progress.refused,
    )
}

/// Returns the commit that runs. A change that is not committed adds `-dirty`.
fn commit() -> String {
    let describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
    let output = Command::new("git").args(describe).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.map_or_else(|| "unknown".to_owned(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Found, run};
    use crate::attack::Attack;
    use crate::state::State;
    use crate::tally::Tally;

    fn counts(seed: u64) -> Tally {
        Tally { accepted: seed, refused: 1 }
    }

    fn fails_at_three(seed: u64) -> Tally {
        assert!(seed < 3, "seed {seed} differs");
        Tally { accepted: 1, refused: 0 }
    }

    #[test]
    fn a_run_continues_and_a_difference_keeps_its_seed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.toml");
        let good = [Attack::here("good", "counts", 1.0, counts)];
        let mut state = State::open(&path).unwrap();
        assert_eq!(run(&good, &mut state, Duration::from_millis(20)).unwrap(), Found::Nothing);
        let first = state.progress("good");
        assert!(first.next_seed > 0);
        assert_eq!(first.accepted, (0..first.next_seed).sum::<u64>());
        drop(state);
        let mut state = State::open(&path).unwrap();
        assert_eq!(run(&good, &mut state, Duration::from_millis(20)).unwrap(), Found::Nothing);
        let second = state.progress("good");
        assert!(second.next_seed > first.next_seed);
        assert_eq!(second.accepted, (0..second.next_seed).sum::<u64>(), "no seed is left out or repeated");

        let bad = [Attack::here("bad", "fails", 1.0, fails_at_three)];
        for _ in 0..2 {
            let found = run(&bad, &mut state, Duration::from_secs(9)).unwrap();
            assert_eq!(found, Found::Difference { attack: "bad", seed: 3 });
            assert_eq!((state.progress("bad").next_seed, state.progress("bad").accepted), (3, 3));
        }
    }
}
