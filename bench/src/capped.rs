//! Rows that are measured with fewer instructions than the machine has, each in a process of its own: the library
//! reads its limit once.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::results::{CaseResults, Results, RowResults};
use crate::suite::Row;

/// What the library reads.
const MAX_ISA: &str = "KVSCATTER_MAX_ISA";

/// Whether the row asks for instructions that this process is not limited to.
pub(crate) fn needs_a_process(row: &Row) -> bool {
    row.isa.is_some() && env::var(MAX_ISA).ok() != row.isa
}

/// This program again, for this row alone.
pub(crate) fn measure_row(row: &Row, isa: &str, quick: bool, out: &Path) -> RowResults {
    let measured = run(row, isa, quick, &out.join(isa));
    let mut results = RowResults::new(row);
    for parameters in &row.cases {
        let found = measured.as_ref().map_err(Clone::clone).and_then(|cases| {
            let of_case = cases.iter().find(|case| case.case == *parameters);
            of_case.ok_or_else(|| "the process that was to measure it left it out".to_owned())
        });
        let case = found
            .and_then(|case| used(case, isa))
            .unwrap_or_else(|why| CaseResults::refused(parameters, why, &row.targets));
        results.push(case, row.flat.as_ref());
    }
    results
}

fn run(row: &Row, isa: &str, quick: bool, out: &Path) -> Result<Vec<CaseResults>, String> {
    let say = |error: std::io::Error| format!("a process limited to {isa}: {error}");
    let mut command = Command::new(env::current_exe().map_err(say)?);
    command.env(MAX_ISA, isa).arg("--out").arg(out).stdin(Stdio::null());
    command.args(row.cases.iter().flat_map(|case| ["--case", &case.name])).args(quick.then_some("--quick"));
    let output = command.output().map_err(say)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("a process limited to {isa}: {}", said.lines().last().unwrap_or("failed")));
    }
    let text = fs::read_to_string(out.join("results.json")).map_err(say)?;
    let results: Results = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Ok(results.rows.into_iter().flat_map(|row| row.cases).collect())
}

/// The case, if it was measured with the instructions that were asked for.
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
