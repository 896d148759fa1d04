//! Steps, which have a name and a few commands. Running steps prints them, times them and lists the results.

use std::fmt;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cargo::root;

/// A named list of commands, run in order until one fails.
pub(crate) struct Step {
    name: &'static str,
    needs: &'static [Tool],
    skipped_without: &'static [Tool],
    commands: Vec<Command>,
}

/// A program, or anything else that a machine may lack besides the toolchain that the README requires.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// A command that succeeds exactly if the tool is present.
    pub(crate) probe: &'static str,
    /// The command that installs the tool, or another way to get it.
    pub(crate) install: &'static str,
}

pub(crate) const NIGHTLY: Tool = Tool {
    name: "a nightly toolchain",
    probe: "cargo +nightly --version",
    install: "rustup toolchain install nightly",
};

/// What a missing [`Tool`] means for a step that needs it.
#[derive(Clone, Copy)]
pub(crate) enum Missing {
    IsSkipped,
    Fails,
}

enum Outcome {
    Passed,
    Skipped(&'static Tool),
    Failed,
}

/// Runs every step, even after a failure. Returns `true` if none failed.
pub(crate) fn run(steps: Vec<Step>, missing: Missing) -> bool {
    let begin = Instant::now();
    let count = steps.len();
    let mut results = Vec::with_capacity(count);
    for (position, step) in steps.into_iter().enumerate() {
        println!("[{}/{count}] {}", position + 1, step.name);
        let begin = Instant::now();
        let line = Line { name: step.name, outcome: step.run(missing), time: begin.elapsed() };
        println!("{line}\n");
        results.push(line);
    }
    summarise(&results, begin.elapsed());
    !results.iter().any(|line| matches!(line.outcome, Outcome::Failed))
}

impl Step {
    pub(crate) fn new(name: &'static str, commands: Vec<Command>) -> Self {
        Self { name, needs: &[], skipped_without: &[], commands }
    }

    pub(crate) fn needs(self, needs: &'static [Tool]) -> Self {
        Self { needs, ..self }
    }

    /// Sets tools without which the step is always skipped. This is for one of several steps that one command
    /// runs.
    pub(crate) fn skipped_without(self, skipped_without: &'static [Tool]) -> Self {
        Self { skipped_without, ..self }
    }

    fn run(mut self, missing: Missing) -> Outcome {
        let absent = |tools: &'static [Tool]| tools.iter().find(|tool| !tool.is_installed());
        if let Some(tool) = absent(self.needs) {
            return match missing {
                Missing::IsSkipped => Outcome::Skipped(tool),
                Missing::Fails => {
                    println!("  needs {}: {}", tool.name, tool.install);
                    Outcome::Failed
                }
            };
        }
        if let Some(tool) = absent(self.skipped_without) {
            return Outcome::Skipped(tool);
        }
        for command in &mut self.commands {
            println!("  $ {}", Shown(command));
            if let Err(why) = execute(command) {
                println!("  {}: {why}; to repeat it, in the repository's root:", self.name);
                println!("  $ {}", Shown(command));
                return Outcome::Failed;
            }
        }
        Outcome::Passed
    }
}

impl Tool {
    pub(crate) fn is_installed(&self) -> bool {
        program(self.probe)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}

/// Creates a command from a program and its arguments, separated by spaces.
pub(crate) fn program(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

fn execute(command: &mut Command) -> io::Result<()> {
    io::stdout().flush()?;
    let status = command.current_dir(root()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

fn summarise(results: &[Line], total: Duration) {
    if results.len() > 1 {
        println!("summary");
        for line in results {
            println!("{line}");
        }
    }
    let count = |wanted: fn(&Outcome) -> bool| results.iter().filter(|line| wanted(&line.outcome)).count();
    println!(
        "{} passed, {} failed, {} skipped in {}",
        count(|outcome| matches!(outcome, Outcome::Passed)),
        count(|outcome| matches!(outcome, Outcome::Failed)),
        count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        Seconds(total),
    );
}

struct Line {
    name: &'static str,
    outcome: Outcome,
    time: Duration,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<20}", self.name)?;
        match &self.outcome {
            Outcome::Passed => write!(f, "passed in {}", Seconds(self.time)),
            Outcome::Failed => write!(f, "FAILED after {}", Seconds(self.time)),
            Outcome::Skipped(tool) => write!(f, "skipped: needs {}: {}", tool.name, tool.install),
        }
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

/// Displays a command as a line for a shell.
struct Shown<'a>(&'a Command);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in self.0.get_envs() {
            let value = value.unwrap_or_default().to_string_lossy();
            write!(f, "{}={} ", key.to_string_lossy(), quoted(&value))?;
        }
        f.write_str(&quoted(&self.0.get_program().to_string_lossy()))?;
        for argument in self.0.get_args() {
            write!(f, " {}", quoted(&argument.to_string_lossy()))?;
        }
        Ok(())
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_pasted_into_a_shell() {
        let mut command = Command::new("cargo");
        command.args(["test", "it's", "a b", ""]).env("RUSTFLAGS", "-Dwarnings");
        assert_eq!(Shown(&command).to_string(), r"RUSTFLAGS=-Dwarnings cargo test 'it'\''s' 'a b' ''");
    }

    #[test]
    fn a_step_stops_at_its_first_failure_and_later_steps_still_run() {
        let step = |name, programs: &[&str]| Step::new(name, programs.iter().map(Command::new).collect());
        assert!(run(vec![step("good", &["true", "true"])], Missing::Fails));
        assert!(!run(vec![step("bad", &["false", "true"]), step("good", &["true"])], Missing::Fails));
        assert!(!run(vec![step("absent", &["./no-such-program"])], Missing::Fails));
    }

    #[test]
    fn a_missing_tool_skips_or_fails() {
        const ABSENT: Tool =
            Tool { name: "absent", probe: "cargo no-such-command", install: "cargo install absent" };
        let step = || Step::new("step", vec![Command::new("false")]);
        assert!(run(vec![step().needs(&[ABSENT])], Missing::IsSkipped));
        assert!(!run(vec![step().needs(&[ABSENT])], Missing::Fails));
        let marker = std::env::temp_dir().join(format!("kvscatter-xtask-{}", std::process::id()));
        let mut touch = Command::new("touch");
        touch.arg(&marker);
        let steps = vec![step().needs(&[ABSENT]), Step::new("another", vec![touch])];
        assert!(!run(steps, Missing::Fails));
        assert!(std::fs::remove_file(&marker).is_ok(), "what is not missing anything runs all the same");
        assert!(run(vec![step().skipped_without(&[ABSENT])], Missing::Fails));
        assert!(!run(vec![step().needs(&[ABSENT]).skipped_without(&[ABSENT])], Missing::Fails));
    }
}
