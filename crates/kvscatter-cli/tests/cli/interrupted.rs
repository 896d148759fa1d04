//! Sends a signal in the middle of a write. The command leaves no unfinished file, and still ends by the
//! signal.
//!
//! A small library, loaded before the C library, stops the command inside the write, so that the signal
//! always arrives during the write.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::support::{BINARY, Folder, is_built, listing, npy_f32};

/// Every command that writes files. Each entry has the command line, and a part of the path of the file
/// during whose write the command is stopped.
const COMMANDS: [(&str, &str); 10] = [
    (
        "apply tensor-scatter --past-cache cache.npy --update update.npy --axis 1 --present-cache out.npy",
        "/.tmp",
    ),
    ("plan tensor-scatter --cache 1,4,1 --update 1,1,1 --svg out.svg", "/.tmp"),
    ("run testdata/onnx-node/test_tensorscatter --output present_cache=out.npy", "/.tmp"),
    ("convert testdata/optimum-llama/model.onnx -o out.onnx --max-seq 8", "/.tmp"),
    ("convert testdata/mobius-llama-dynamic/model.onnx -o empty/out.onnx --max-seq 8", "/.tmp"),
    ("lower testdata/mobius-llama-static/model.onnx --to scatter-nd -o out.onnx", "/.tmp"),
    ("certify testdata/mobius-llama-static/model.onnx --engine tract --no-timing --html out.html", "/.tmp"),
    ("certify testdata/mobius-llama-static/model.onnx --engine tract --steps 1 --prompt 2", "/kvscatter-"),
    ("cases -o out --count 50", "input_0.pb"),
    ("cases -o empty --count 50", "input_0.pb"),
];

fn folder() -> Folder {
    let folder = Folder::with_testdata();
    folder.write_cache_and_update();
    for empty in ["empty", "temporary"] {
        std::fs::create_dir(folder.path(empty)).unwrap();
    }
    folder
}

/// Returns the library, which is compiled once. Returns `None` without a C compiler.
fn stalling() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compiled = LIBRARY.get_or_init(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libstall.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/stall.c");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&library).arg(source).arg("-ldl");
        let status = compile.status();
        if status.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            // Writes to standard error itself, because the harness hides what a passing test prints.
            let why = b"skipped: signals in the middle of a write, since there is no `cc`\n";
            io::stderr().write_all(why).unwrap();
            return None;
        }
        assert!(status.unwrap().success(), "{compile:?}");
        Some(library)
    });
    compiled.as_deref()
}

/// A command that is stopped in the middle of a write.
struct Stopped(Child);

impl Stopped {
    fn new(folder: &Folder, line: &str, at: &str, library: &Path) -> Self {
        Self::for_seconds(1, folder, line, at, library)
    }

    /// Starts a command whose write takes `seconds` after the command continues.
    fn for_seconds(seconds: u32, folder: &Folder, line: &str, at: &str, library: &Path) -> Self {
        // A command inherits ignored signals, and these tests may run under `nohup`.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM,HUP", BINARY]);
        command.args(line.split_whitespace()).current_dir(folder.path(""));
        command.env("STALL_SECONDS", seconds.to_string());
        command.env("LD_PRELOAD", library).env("STALL_AT", at).env("TMPDIR", folder.path("temporary"));
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn().unwrap();
        let (_, status) = waitpid(Some(Pid::from_child(&child)), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{line}: {status:?}: it does not write where it is to be stopped");
        Self(child)
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Returns whether a signal was sent and has not reached a handler yet.
    fn is_pending(&self, signal: Signal) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
        u64::from_str_radix(pending.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
    }

    fn end(mut self) -> ExitStatus {
        self.send(Signal::CONT);
        self.0.wait().unwrap()
    }
}

#[test]
fn leaves_nothing_and_ends_the_command() {
    let Some(library) = stalling() else { return };
    let folder = folder();
    let before = listing(&folder.path(""));
    for (line, at) in COMMANDS.into_iter().filter(|(line, _)| is_built(line)) {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let stopped = Stopped::new(&folder, line, at, library);
            assert_ne!(listing(&folder.path("")), before, "{line}: it has begun a file");
            stopped.send(signal);
            let status = stopped.end();
            assert_eq!(status.signal(), Some(signal.as_raw()), "{line}");
            assert_eq!(listing(&folder.path("")), before, "{line}, {signal:?}");
        }
    }
}

/// Checks that the command also removes the weights that it wrote before the model, and the folders that it
/// made for them.
#[test]
fn takes_weights_back() {
    let Some(library) = stalling() else { return };
    let folder = Folder::with_testdata();
    std::fs::create_dir(folder.path("other")).unwrap();
    let before = listing(&folder.path(""));
    let line =
        "convert testdata/mobius-llama-dynamic/model.onnx -o other/out.onnx --max-seq 8 --weights link";
    let stopped = Stopped::new(&folder, line, "/.tmp", library);
    assert!(folder.path("other/model.onnx.data").exists());
    stopped.send(Signal::TERM);
    assert_eq!(stopped.end().signal(), Some(Signal::TERM.as_raw()));
    assert_eq!(listing(&folder.path("")), before);
}

/// Checks that a write in place ends before the command does. The command is stopped when it waits for the disk, and
/// has to wait for another second.
#[test]
fn a_write_in_place_is_completed() {
    let Some(library) = stalling() else { return };
    let folder = folder();
    let line = "apply tensor-scatter --past-cache cache.npy --update update.npy --axis 1 --in-place";
    let stopped = Stopped::new(&folder, line, "msync", library);
    stopped.send(Signal::INT);
    let begun = Instant::now();
    assert_eq!(stopped.end().signal(), Some(Signal::INT.as_raw()));
    assert!(begun.elapsed() >= Duration::from_secs(1), "the signal ended the write");
    assert_eq!(folder.read("cache.npy"), npy_f32(&[1, 4], [1.0, 0.0, 0.0, 0.0]));
}

/// Checks that an existing file does not change.
#[test]
fn keeps_the_file_that_was_to_be_replaced() {
    let Some(library) = stalling() else { return };
    let (folder, (line, at)) = (folder(), COMMANDS[0]);
    folder.write("out.npy", b"old");
    let stopped = Stopped::new(&folder, line, at, library);
    stopped.send(Signal::INT);
    assert_eq!(stopped.end().signal(), Some(Signal::INT.as_raw()));
    assert_eq!(folder.read("out.npy"), b"old");
}

/// Checks that an ignored signal stays ignored, because `nohup` relies on this.
#[test]
fn ignored_from_the_start_stays_ignored() {
    let Some(library) = stalling() else { return };
    let (folder, (line, at)) = (folder(), COMMANDS[0]);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", BINARY]).args(line.split_whitespace());
    command.current_dir(folder.path("")).env("LD_PRELOAD", library).env("STALL_AT", at);
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    let (_, status) = waitpid(Some(Pid::from_child(&child)), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped());
    let stopped = Stopped(child);
    stopped.send(Signal::HUP);
    assert_eq!(stopped.end().code(), Some(0));
    assert!(folder.path("out.npy").exists());
}

/// Kills `cases` with SIGKILL, which has no handler. `verify` must refuse the remaining cases.
#[test]
fn a_kill_leaves_cases_that_verify_refuses() {
    let Some(library) = stalling() else { return };
    for out in ["out", "empty"] {
        let folder = folder();
        let line = format!("cases -o {out} --count 50");
        let stopped = Stopped::new(&folder, &line, "00030_", library);
        stopped.send(Signal::KILL);
        let _ = stopped.end();
        let verified = folder.run(&format!("verify {out}"));
        assert_ne!(verified.code, Some(0), "{verified}");
        let marked =
            verified.stdout.lines().any(|line| line.starts_with("ERR") && line.contains(".incomplete-"));
        assert!(marked, "{verified}");
        assert!(folder.run(&line).refused().contains("must be new or empty"));
    }
}

/// Checks that a second signal ends the command at once, because removing files can take long.
#[test]
fn a_second_one_ends_it_at_once() {
    let Some(library) = stalling() else { return };
    let folder = folder();
    // The thread of the signal waits until the current case is complete, which takes a minute.
    let stopped = Stopped::for_seconds(60, &folder, "cases -o out --count 50", "input_0.pb", library);
    stopped.send(Signal::INT);
    stopped.send(Signal::CONT);
    while stopped.is_pending(Signal::INT) {
        std::thread::yield_now();
    }
    stopped.send(Signal::TERM);
    // A command that waited would end by the first signal.
    assert_eq!(stopped.end().signal(), Some(Signal::TERM.as_raw()));
}
