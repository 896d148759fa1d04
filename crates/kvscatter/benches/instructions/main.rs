//! Instructions per call, counted by valgrind and compared with `counts.txt`: `cargo xtask instructions`.
//!
//! A count does not depend on other work on the machine, so it shows a regression of a few percent anywhere.
//! A count is not a time, because a miss of a CPU cache is a single instruction. Valgrind does not support
//! AVX-512, so the AVX2 kernels are counted. The rows are short enough to be copied without the C library,
//! whose instructions are not under test.
//!
//! Every case runs in a separate process, once with few calls and once with many. The difference excludes the
//! cost of starting and preparing.

mod calls;
mod table;

use std::env;
use std::error::Error;
use std::hint::black_box;
use std::process::{Command, ExitCode};

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Isa};

use crate::table::{Change, Counts};

/// Kernels are chosen once per process. The instruction set is set explicitly, although the CPU that valgrind
/// emulates would select the same kernels.
const MAX_ISA: (&str, &str) = ("KVSCATTER_MAX_ISA", "avx2");

const FEW: u64 = 100;
const MANY: u64 = 300;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<_> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let passed = match *arguments.as_slice() {
        [] => compare(),
        ["--bless"] => bless(),
        ["--case", case, calls] => repeat(case, calls),
        _ => Err("usage: instructions [--bless | --case NAME CALLS]".into()),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("instructions: {why}");
            ExitCode::FAILURE
        }
    }
}

fn compare() -> Result<bool> {
    let (old, rustc) = (Counts::read()?, rustc()?);
    let mut changes = Vec::new();
    for (name, _) in calls::CASES {
        let change = Change { name, was: old.instructions.get(*name).copied(), is: count(name)? };
        println!("{change}");
        changes.push(change);
    }
    let slower = changes.iter().filter(|change| change.is_regression()).count();
    let faster = changes.iter().filter(|change| change.is_gain()).count();
    let new = changes.iter().filter(|change| change.was.is_none()).count();
    let removed =
        old.instructions.keys().filter(|&old| !calls::CASES.iter().any(|(name, _)| name == old)).count();
    println!("{} cases: {slower} slower, {faster} faster, {new} new, {removed} removed", changes.len());
    if slower + faster > 0 && rustc != old.rustc {
        println!("counted with another compiler than the table, which alone may be the reason:");
        println!("  table {}\n  here  {rustc}", old.rustc);
    }
    if slower + faster + new + removed > 0 {
        println!("if that is meant to be, `cargo xtask instructions --bless` rewrites the table");
    }
    Ok(slower + new + removed == 0)
}

fn bless() -> Result<bool> {
    let mut counts = Counts { rustc: rustc()?, ..Counts::default() };
    for (name, _) in calls::CASES {
        counts.instructions.insert((*name).to_owned(), count(name)?);
    }
    counts.write()?;
    println!("{} cases written", counts.instructions.len());
    Ok(true)
}

/// Returns the number of instructions of one call of the case.
fn count(case: &str) -> Result<u64> {
    let [few, many] = [FEW, MANY].map(|calls| collected(case, calls));
    Ok((many? - few?).div_ceil(MANY - FEW))
}

/// Returns valgrind's count for a process that makes this many calls.
fn collected(case: &str, calls: u64) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe()?)
        .args(["--case", case, &calls.to_string()])
        .env(MAX_ISA.0, MAX_ISA.1)
        .output()
        .map_err(|why| format!("valgrind: {why}"))?;
    let printed = String::from_utf8_lossy(&output.stderr);
    let count = printed.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    match count {
        Some(count) if output.status.success() => Ok(count),
        _ => Err(format!("{case}: {printed}").into()),
    }
}

fn repeat(case: &str, calls: &str) -> Result<bool> {
    let (_, prepare) = calls::CASES.iter().find(|(name, _)| *name == case).ok_or("no such case")?;
    let calls: u64 = calls.parse()?;
    let isa = TensorScatter::new().prepare(ElementType::Int8, &[1, 1, 1], &[1, 1, 1])?.isa();
    if isa != Isa::Avx2 {
        return Err(format!("the table counts AVX2 kernels; this machine's are {isa}").into());
    }
    prepare(&mut |call| (0..calls).try_for_each(|_| black_box(&mut *call)()))?;
    Ok(true)
}

fn rustc() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Ok(String::from_utf8(Command::new(rustc).arg("--version").output()?.stdout)?.trim().to_owned())
}
