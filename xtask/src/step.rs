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

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::cargo::{root, target_dir};
use crate::command::program;
use crate::seconds::{self, Spent};

/// A named list of commands, run in order until one fails.
pub(crate) struct Step {
    name: &'static str,
    needs: Vec<&'static Tool>,
    skipped_without: Vec<&'static Tool>,
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

    /// Runs a command, and adds the time that it used to `processor`.
    fn execute(&self, command: &mut Command, processor: &mut Duration) -> io::Result<()> {
        match self {
            Self::Inherited => io::stdout().flush()?,
            Self::File(file) => {
                command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
            }
        }
        let mut child = command.current_dir(root()).spawn()?;
        // The system forgets the times of a process when its parent has waited for it, so they are read before that.
        let pid = Pid::from_child(&child);
        if waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_ok() {
            *processor +=
                processor_time(&fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default());
        }
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
    }
}

/// Returns the time that a process and those that it has waited for have used, from the text of its `/proc/PID/stat`.
fn processor_time(stat: &str) -> Duration {
    // The fields after the name, which is in parentheses and may contain spaces: state, ppid, …, utime, stime, cutime
    // and cstime in hundredths of a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(4);
    Duration::from_millis(10) * fields.filter_map(|field| field.parse::<u32>().ok()).sum::<u32>()
}

impl Step {
    pub(crate) fn new(name: &'static str, commands: Vec<Command>) -> Self {
        Self { name, needs: Vec::new(), skipped_without: Vec::new(), commands }
    }

    pub(crate) fn needs(mut self, tools: &'static [Tool]) -> Self {
        self.needs.extend(tools);
        self
    }

    /// Sets tools without which the step is always skipped. This is for one of several steps that one command
    /// runs.
    pub(crate) fn skipped_without(mut self, tools: &'static [Tool]) -> Self {
        self.skipped_without.extend(tools);
        self
    }

    /// Returns the name and the commands, for tests.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> (&'static str, &[Command]) {
        (self.name, &self.commands)
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
        let (name, mut processor) = (self.name, Duration::ZERO);
        let outcome = self.run(missing, output, &mut processor);
        let has_failed = matches!(outcome, Outcome::Failed);
        Line { name, outcome, spent: Spent { time: begin.elapsed(), processor, has_failed } }
    }

    fn run(mut self, missing: Missing, output: &Output, processor: &mut Duration) -> Outcome {
        let absent = |tools: &[&'static Tool]| tools.iter().copied().find(|tool| !tool.is_installed());
        if let Some(tool) = absent(&self.needs) {
            return match missing {
                Missing::IsSkipped => Outcome::Skipped(tool),
                Missing::Fails => {
                    output.print(format_args!("  needs {}: {}", tool.name, tool.install));
                    Outcome::Failed
                }
            };
        }
        if let Some(tool) = absent(&self.skipped_without) {
            return Outcome::Skipped(tool);
        }
        for command in &mut self.commands {
            output.print(format_args!("  $ {}", Shown(command)));
            if let Err(why) = output.execute(command, processor) {
                output.print(format_args!("  {}: {why}; to repeat it, in the repository's root:", self.name));
                output.print(format_args!("  $ {}", Shown(command)));
                return Outcome::Failed;
            }
        }
        Outcome::Passed
    }
}

/// Checks that the last runs of these steps have together used at most `budget` of processors, and prints the sum.
pub(crate) fn is_within(budget: Duration, steps: &[Step]) -> bool {
    let known = seconds::read();
    let sum: Duration =
        steps.iter().filter_map(|step| known.get(step.name)).map(|spent| spent.processor).sum();
    println!("all steps used {} of processors, the budget is {}", Seconds(sum), Seconds(budget));
    sum <= budget
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

/// Prints the results, with the longest step first, and records their times. Returns `true` if no step failed.
fn summarise(mut results: Vec<Line>, total: Duration) -> bool {
    results.sort_by_key(|line| Reverse(line.spent.time));
    let ran = results.iter().filter(|line| !matches!(line.outcome, Outcome::Skipped(_)));
    let times: Vec<_> = ran.map(|line| (line.name, line.spent)).collect();
    // The steps of unit tests are none of this repository.
    if !cfg!(test)
        && let Err(error) = seconds::record(&times)
    {
        println!("the times are not in {}: {error}", seconds::file().display());
    }
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
    spent: Spent,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<20}", self.name)?;
        match &self.outcome {
            Outcome::Passed => {
                let Spent { time, processor, .. } = self.spent;
                write!(f, "passed in {}, {} of processors", Seconds(time), Seconds(processor))
            }
            Outcome::Failed => write!(f, "FAILED after {}", Seconds(self.spent.time)),
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
    use crate::command::With;

    #[test]
    fn a_shown_command_can_be_pasted_into_a_shell() {
        let command = Command::new("cargo").with_all(["test", "it's", "a b", ""]);
        let command = command.with_env("RUSTFLAGS", "-Dwarnings");
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
    fn the_processor_time_of_a_step_is_that_of_its_programs() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 20 3 1 20 0";
        assert_eq!(processor_time(stat), Duration::from_millis(1240));
        assert_eq!(processor_time(""), Duration::ZERO);
        let busy = "end=$(($(date +%s) + 2)); while [ $(date +%s) -lt $end ]; do :; done";
        let line = script("test-of-time", busy).timed(Missing::Fails, &Output::Inherited);
        let Spent { time, processor, .. } = line.spent;
        assert!(Duration::ZERO < processor && processor < time * 4, "{processor:?} of {time:?}");
    }

    fn script(name: &'static str, line: &str) -> Step {
        Step::new(name, vec![program("sh -c").with(line)])
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
        let touch = program("touch").with(&marker);
        let steps = vec![step().needs(&[ABSENT]), Step::new("another", vec![touch])];
        assert!(!run(steps, Missing::Fails));
        assert!(std::fs::remove_file(&marker).is_ok(), "what is not missing anything runs all the same");
        assert!(run(vec![step().skipped_without(&[ABSENT])], Missing::Fails));
        assert!(!run(vec![step().needs(&[ABSENT]).skipped_without(&[ABSENT])], Missing::Fails));
    }
}
