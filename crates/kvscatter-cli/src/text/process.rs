//! Evaluates a template in another process of this command, which ends if the template exceeds a limit.
//!
//! A deep expression overflows the stack of the parser, and filters such as `indent` allocate any amount at once. Both
//! abort the process that they run in. The limit of memory needs a system that limits the address space of a process,
//! such as Linux. Elsewhere, only what the system gives to a process limits the memory.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::host::Host;

use super::jinja::{MAX_TEXT, Refusal, Request, evaluate as evaluate_here};

/// The only argument of the process.
pub(crate) const ARGUMENT: &str = "--evaluate-chat-template";

/// The longest time that a template may take.
pub(super) const MAX_TIME: Duration = Duration::from_secs(10);

/// The address space of the process. The command itself takes less than a quarter of it.
pub(super) const MAX_MEMORY: u64 = 1 << 30;

/// The stack of the thread that evaluates a template.
const STACK: usize = 64 << 20;

/// The longest answer of the process: a line with a short problem, and the text.
const MAX_ANSWER: usize = MAX_TEXT + (64 << 10);

/// The reason why the process gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("takes too long, so it was stopped")]
    Time,
    #[error("needs more than {} MiB of stack or {} MiB of memory, so it was stopped", STACK >> 20, MAX_MEMORY >> 20)]
    Memory,
    #[error("cannot be evaluated in another process: {0}")]
    NotStarted(io::Error),
}

/// Evaluates a template in another process.
pub(super) fn evaluate(request: &Request, host: &Host) -> Result<Result<String, Refusal>, Ended> {
    let input = serde_json::to_vec(request).map_err(|error| Ended::NotStarted(error.into()))?;
    let mut command = evaluator(host).map_err(Ended::NotStarted)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(Ended::NotStarted)?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // A process that has ended takes no input, and its answer shows this.
        let _ = stdin.map(|mut stdin| stdin.write_all(&input));
        let mut answer = Vec::new();
        let most = u64::try_from(MAX_ANSWER).unwrap_or(u64::MAX);
        let _ = stdout.map(|stdout| stdout.take(most).read_to_end(&mut answer));
        // A receiver that stopped waiting needs no answer.
        let _ = sender.send(answer);
    });
    let answer = receiver.recv_timeout(MAX_TIME);
    if answer.is_err() {
        // This fails if the process has ended.
        let _ = child.kill();
    }
    let status = child.wait().map_err(Ended::NotStarted)?;
    match answer {
        Err(RecvTimeoutError::Timeout) => Err(Ended::Time),
        Err(RecvTimeoutError::Disconnected) => Err(Ended::Memory),
        Ok(answer) => parsed(answer).filter(|_| status.success()).ok_or(Ended::Memory),
    }
}

/// Returns the program that calls [`serve`].
fn evaluator(host: &Host) -> io::Result<Command> {
    let mut words = match host {
        Host::Program => vec![executable()?.into(), ARGUMENT.into()],
        Host::Python(package) => package.template_evaluator.clone(),
    }
    .into_iter();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    Ok(command)
}

/// Returns this program. On Linux this works if its file was replaced meanwhile.
fn executable() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// Parses an answer. Returns `None` if it is not complete.
fn parsed(mut answer: Vec<u8>) -> Option<Result<String, Refusal>> {
    let end = answer.iter().position(|byte| *byte == b'\n')?;
    let text = answer.split_off(end.saturating_add(1));
    match serde_json::from_slice(&answer).ok()? {
        Some(refusal) => Some(Err(refusal)),
        None => String::from_utf8(text).ok().map(Ok),
    }
}

/// Evaluates the template on standard input, and writes the answer to standard output. This is the work of the other
/// process.
pub(crate) fn serve() -> u8 {
    limit();
    let evaluated = || -> io::Result<Result<String, Refusal>> {
        let mut input = Vec::new();
        io::stdin().lock().read_to_end(&mut input)?;
        let request: Request = serde_json::from_slice(&input)?;
        let thread = thread::Builder::new().stack_size(STACK).spawn(move || evaluate_here(&request))?;
        let panicked = |_| Err(Refusal::Failed { line: 1, problem: "it cannot be evaluated".to_owned() });
        Ok(thread.join().unwrap_or_else(panicked))
    };
    let answered = evaluated().and_then(|evaluated| {
        let (refusal, text) = match evaluated {
            Ok(text) => (None, text),
            Err(refusal) => (Some(refusal), String::new()),
        };
        let mut stdout = io::stdout().lock();
        serde_json::to_writer(&mut stdout, &refusal)?;
        stdout.write_all(b"\n")?;
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    });
    u8::from(answered.is_err())
}

/// Limits the resources of this process. It writes no core dump when a limit ends it.
#[cfg(unix)]
fn limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    for (resource, most) in [
        #[cfg(not(target_os = "openbsd"))]
        (Resource::As, MAX_MEMORY),
        (Resource::Data, MAX_MEMORY),
        // The command stops the process earlier, unless it was killed itself.
        (Resource::Cpu, MAX_TIME.as_secs().saturating_add(1)),
        (Resource::Core, 0),
    ] {
        let most = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
        // A system that lacks a limit still has the others.
        let _ = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    }
}

#[cfg(not(unix))]
fn limit() {}
