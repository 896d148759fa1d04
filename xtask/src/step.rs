//! Steps, which have a name and a few commands. Running steps prints them, times them and lists the results.

use std::cmp::Reverse;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cargo::{root, target_dir};

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
        let line = step.timed(missing, &Output::Inherited);
        println!("{line}\n");
        results.push(line);
    }
    summarise(results, begin.elapsed())
}

/// Runs several lists of steps at once, each in its order, as [`run()`] does. Many steps use one processor only.
///
/// The output of a step goes to a file of the build folder, and is printed from there while the step runs. If this
/// program is killed, only the output of the last seconds has not been printed.
pub(crate) fn run_at_once(lists: Vec<Vec<Step>>, missing: Missing) -> bool {
    let begin = Instant::now();
    let log = Mutex::new(Log { out: io::stdout(), name: "" });
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for steps in lists {
            scope.spawn(|| {
                for step in steps {
                    let line = step.logged(missing, &log, PERIOD);
                    log.lock().unwrap_or_else(PoisonError::into_inner).print(line.name, &format!("{line}\n"));
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            });
        }
    });
    summarise(results.into_inner().unwrap_or_else(PoisonError::into_inner), begin.elapsed())
}

/// The time between two prints of the output of a step.
const PERIOD: Duration = Duration::from_secs(10);

/// The outputs of steps that run at once.
struct Log<W> {
    out: W,
    /// The step whose output was printed last.
    name: &'static str,
}

impl<W: Write> Log<W> {
    /// Prints lines of a step, after its name if the lines before are those of another step.
    fn print(&mut self, name: &'static str, lines: &str) {
        let heading = if self.name == name { String::new() } else { format!("\n[{name}]\n") };
        self.name = name;
        // Without a reader of the output, the steps still run.
        drop(write!(self.out, "{heading}{lines}").and_then(|()| self.out.flush()));
    }
}

/// Where a step and its commands print.
enum Output {
    Inherited,
    File(File),
}

impl Output {
    fn print(&self, line: impl fmt::Display) {
        match self {
            Self::Inherited => println!("{line}"),
            // A step whose output cannot be written still runs.
            Self::File(file) => drop(writeln!(&*file, "{line}")),
        }
    }

    fn execute(&self, command: &mut Command) -> io::Result<()> {
        match self {
            Self::Inherited => io::stdout().flush()?,
            Self::File(file) => {
                command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
            }
        }
        let status = command.current_dir(root()).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
    }
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

    /// Runs the step, and prints its output after each period.
    fn logged<W: Write + Send>(self, missing: Missing, log: &Mutex<Log<W>>, period: Duration) -> Line {
        let (name, folder) = (self.name, target_dir().join("steps"));
        let path = folder.join(format!("{name}.log"));
        let files = fs::create_dir_all(&folder)
            .and_then(|()| File::create(&path))
            .and_then(|to| File::open(&path).map(|from| (to, from)));
        let Ok((to, mut from)) = files else {
            return self.timed(missing, &Output::Inherited);
        };
        let mut output = Vec::new();
        let mut print = |is_whole: bool| {
            // What cannot be read stays in the file.
            drop(from.read_to_end(&mut output));
            let end = output.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            let lines: Vec<_> = output.drain(..if is_whole { output.len() } else { end }).collect();
            if !lines.is_empty() {
                let lines = String::from_utf8_lossy(&lines);
                log.lock().unwrap_or_else(PoisonError::into_inner).print(name, &lines);
            }
        };
        let (running, ended) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                    print(false);
                }
                print(true);
            });
            let line = self.timed(missing, &Output::File(to));
            drop(running);
            line
        })
    }

    fn timed(self, missing: Missing, output: &Output) -> Line {
        let begin = Instant::now();
        Line { name: self.name, outcome: self.run(missing, output), time: begin.elapsed() }
    }

    fn run(mut self, missing: Missing, output: &Output) -> Outcome {
        let absent = |tools: &'static [Tool]| tools.iter().find(|tool| !tool.is_installed());
        if let Some(tool) = absent(self.needs) {
            return match missing {
                Missing::IsSkipped => Outcome::Skipped(tool),
                Missing::Fails => {
                    output.print(format_args!("  needs {}: {}", tool.name, tool.install));
                    Outcome::Failed
                }
            };
        }
        if let Some(tool) = absent(self.skipped_without) {
            return Outcome::Skipped(tool);
        }
        for command in &mut self.commands {
            output.print(format_args!("  $ {}", Shown(command)));
            if let Err(why) = output.execute(command) {
                output.print(format_args!("  {}: {why}; to repeat it, in the repository's root:", self.name));
                output.print(format_args!("  $ {}", Shown(command)));
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

/// Prints the results, with the longest step first. Returns `true` if no step failed.
fn summarise(mut results: Vec<Line>, total: Duration) -> bool {
    results.sort_by_key(|line| Reverse(line.time));
    if results.len() > 1 {
        println!("summary, the longest step first");
        for line in &results {
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
    count(|outcome| matches!(outcome, Outcome::Failed)) == 0
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
    use std::path::PathBuf;

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

    fn script(name: &'static str, line: &str) -> Step {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]);
        Step::new(name, vec![shell])
    }

    #[test]
    fn steps_that_run_at_once_fail_alone() {
        let good = || script("test-of-good", "true");
        assert!(run_at_once(vec![vec![good()], vec![]], Missing::Fails));
        assert!(!run_at_once(vec![vec![good()], vec![script("test-of-bad", "false")]], Missing::Fails));
    }

    /// The step waits until its first line is printed, and at most ten seconds.
    #[test]
    fn the_output_of_a_step_is_printed_while_the_step_runs() {
        struct Printed(String, PathBuf);
        impl Write for Printed {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push_str(&String::from_utf8_lossy(bytes));
                if self.0.contains("\nearly\n") {
                    File::create(&self.1)?;
                }
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let marker = std::env::temp_dir().join(format!("kvscatter-xtask-early-{}", std::process::id()));
        let path = marker.display();
        let wait = format!("for i in $(seq 1000); do test -e {path} && exit 3; sleep 0.01; done");
        let log = Mutex::new(Log { out: Printed(String::new(), marker.clone()), name: "" });
        let step = script("test-of-logged", &format!("echo early; echo err >&2; {wait}"));
        let line = step.logged(Missing::Fails, &log, Duration::from_millis(10));
        assert!(matches!(line.outcome, Outcome::Failed), "the line was printed too late");
        fs::remove_file(marker).unwrap();
        let printed = log.into_inner().unwrap().out.0;
        let printed: Vec<_> = printed.trim().lines().filter(|line| !line.contains('$')).collect();
        let why = "  test-of-logged: exit status: 3; to repeat it, in the repository's root:";
        assert_eq!(printed, ["[test-of-logged]", "early", "err", why]);
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
