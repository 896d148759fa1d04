//! Measures in other processes.
//!
//! One kind of process limits the instruction set, because the library reads its limit only once. The other
//! kind repeats a measurement, because the addresses of a process's memory are chosen only once.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use kvscatter_bench::Parameters;

use crate::host::{MAX_ISA, TUNABLES};
use crate::results::{CaseResults, Results, RowResults};
use crate::suite::Row;

/// The setting that keeps libc's memcpy from using AVX-512.
const WITHOUT_AVX512: &str =
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD,-AVX512ER,-AVX512PF";

/// The number of processes that measure a case again.
const PROCESSES: usize = 3;

/// Runs this program again with the same arguments, limited to this instruction set. The limit also applies
/// to memcpy and the hand loop, as on a machine without newer instructions.
pub(crate) fn run_limited(isa: &str) -> Result<(), String> {
    let say = |error: std::io::Error| format!("a process limited to {isa}: {error}");
    let mut command = Command::new(env::current_exe().map_err(say)?);
    command.args(env::args_os().skip(1)).env(MAX_ISA, isa).env(TUNABLES, WITHOUT_AVX512);
    match command.status().map_err(say)? {
        status if status.success() => Ok(()),
        status => Err(format!("a process limited to {isa}: {status}")),
    }
}

/// Whether this process and its libc are limited to this instruction set.
pub(crate) fn is_limited(isa: &str) -> bool {
    env::var(MAX_ISA).is_ok_and(|limit| limit == isa)
        && env::var(TUNABLES).is_ok_and(|set| set == WITHOUT_AVX512)
}

/// Measures a case in fresh processes, without the engines of other libraries.
pub(crate) fn measure_again(row: &Row, case: &Parameters, out: &Path) -> Result<Vec<CaseResults>, String> {
    let again = || {
        let mut command = this_program("a process that measures again", &out.join("again"))?;
        command.args(["--quick", "--alone", "--case", &case.name]);
        if let Some(isa) = &row.isa {
            command.env(MAX_ISA, isa);
        }
        let cases = cases_of(command, "a process that measures again", &out.join("again"))?;
        cases.into_iter().find(|result| result.case == *case).ok_or_else(|| "it left the case out".to_owned())
    };
    (0..PROCESSES).map(|_| again()).collect()
}

/// Whether the row requires a limit that this process does not have.
pub(crate) fn needs_a_process(row: &Row) -> bool {
    row.isa.is_some() && env::var(MAX_ISA).ok() != row.isa
}

/// Measures a row in a process that is limited to `isa`.
pub(crate) fn measure_row(row: &Row, isa: &str, quick: bool, out: &Path) -> RowResults {
    let measured = run(row, isa, quick, &out.join(isa));
    let mut results = RowResults::new(row);
    for parameters in &row.cases {
        let result = measured.as_ref().map_err(Clone::clone).and_then(|cases| {
            let of_case = cases.iter().find(|case| case.case == *parameters);
            of_case.ok_or_else(|| "the process that was to measure it left it out".to_owned())
        });
        let case = result
            .and_then(|case| used(case, isa))
            .unwrap_or_else(|why| CaseResults::refused(parameters, why, &row.targets));
        results.push(case, row.flat.as_ref());
    }
    results
}

fn run(row: &Row, isa: &str, quick: bool, out: &Path) -> Result<Vec<CaseResults>, String> {
    let name = format!("a process limited to {isa}");
    let mut command = this_program(&name, out)?;
    command.env(MAX_ISA, isa);
    command.args(row.cases.iter().flat_map(|case| ["--case", &case.name])).args(quick.then_some("--quick"));
    cases_of(command, &name, out)
}

fn this_program(name: &str, out: &Path) -> Result<Command, String> {
    let program = env::current_exe().map_err(|error| format!("{name}: {error}"))?;
    let mut command = Command::new(program);
    command.arg("--out").arg(out).stdin(Stdio::null());
    Ok(command)
}

/// Runs such a process, and returns the cases that it wrote to its folder.
fn cases_of(mut command: Command, name: &str, out: &Path) -> Result<Vec<CaseResults>, String> {
    let say = |error: std::io::Error| format!("{name}: {error}");
    let output = command.output().map_err(say)?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name}: {}", stderr.lines().last().unwrap_or("failed")));
    }
    let text = fs::read_to_string(out.join("results.json")).map_err(say)?;
    let results: Results = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Ok(results.rows.into_iter().flat_map(|row| row.cases).collect())
}

/// Returns the case if it was measured with the required instruction set.
fn used(case: &CaseResults, isa: &str) -> Result<CaseResults, String> {
    match case.isa.as_deref() {
        Some(used) if used != isa => Err(format!("kvscatter uses {used} here, must be {isa}")),
        _ => Ok(case.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::used;
    use crate::results::tests::example;

    #[test]
    fn other_instructions_are_refused() {
        let case = example().rows.remove(0).cases.remove(0);
        assert_eq!(used(&case, "avx2").unwrap(), case);
        assert_eq!(used(&case, "sse2").unwrap_err(), "kvscatter uses avx2 here, must be sse2");
    }
}
