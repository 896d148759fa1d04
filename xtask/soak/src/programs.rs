//! Attacks on other languages, which run programs. A program is missing if its compiler or its interpreter is.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::tally::{Differs, Tally};

/// The number of cases of a seed that the C program runs.
const C_CASES: &str = "4000";

pub(crate) enum Program {
    /// Writes the oracle's cases to a file, and checks the C interface on them.
    C { export: PathBuf, check: PathBuf },
    /// Checks the Python package that is installed for this interpreter.
    Python { python: PathBuf },
    /// Checks the plugin in the ONNX Runtime of this interpreter. The two last write the oracle's cases.
    Plugin { python: PathBuf, library: PathBuf, command: PathBuf, export: PathBuf },
}

impl Program {
    /// Returns the first file that the program needs and that does not exist.
    pub(crate) fn missing(&self) -> Option<&Path> {
        let files: &[&PathBuf] = match self {
            Self::C { export, check } => &[export, check],
            Self::Python { python } => &[python],
            Self::Plugin { python, library, command, export } => &[python, library, command, export],
        };
        files.iter().map(|file| file.as_path()).find(|file| !file.exists())
    }

    /// Runs the cases of a seed, and prints what a program prints if it fails.
    pub(crate) fn run(&self, seed: u64) -> Result<Tally, Differs> {
        let script = |python: &Path, name: &str| {
            let mut script = Command::new(python);
            script.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name)).arg(seed.to_string());
            script
        };
        match self {
            Self::C { export, check } => run_c(export, check, seed),
            Self::Python { python } => tally(&output(&mut script(python, "package.py"))?),
            Self::Plugin { python, library, command, export } => {
                let mut script = script(python, "plugin.py");
                script.env("KVSCATTER_ORT_LIBRARY", library).env("KVSCATTER_COMMAND", command);
                script.env("KVSCATTER_ATTENTION_CASES", export);
                tally(&output(&mut script)?)
            }
        }
    }
}

fn run_c(export: &Path, check: &Path, seed: u64) -> Result<Tally, Differs> {
    let folder = TempDir::new().map_err(|error| failed(&error))?;
    let file = folder.path().join("cases.bin");
    let exported = output(Command::new(export).arg(&file).args([C_CASES, &seed.to_string()]))?;
    let checked = output(Command::new(check).arg(&file))?;
    // "FILE: 7834 cases, of which 3119 must be refused", and "7802 cases, 0 failed".
    let words: Vec<_> = exported.split_whitespace().rev().collect();
    let refused = words.get(3).and_then(|word| word.parse::<u64>().ok());
    let checked = checked.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    match (checked, refused) {
        (Some(checked), Some(refused)) => Ok(Tally { accepted: checked.saturating_sub(refused), refused }),
        _ => Err(failed(&exported)),
    }
}

/// Runs a command, and returns what it prints.
fn output(command: &mut Command) -> Result<String, Differs> {
    let output = command.output().map_err(|error| failed(&format!("{command:?}: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    eprintln!("{text}{}", String::from_utf8_lossy(&output.stderr));
    Err(failed(&format!("{command:?}: {}", output.status)))
}

/// Reads the last line of a script: the numbers of accepted and refused calls.
fn tally(text: &str) -> Result<Tally, Differs> {
    let last = text.lines().last().unwrap_or_default();
    let numbers: Vec<_> = last.split(' ').filter_map(|word| word.parse().ok()).collect();
    match numbers.as_slice() {
        &[accepted, refused] => Ok(Tally { accepted, refused }),
        _ => Err(failed(&format!("not a number of calls: {last}"))),
    }
}

fn failed(why: &dyn std::fmt::Display) -> Differs {
    eprintln!("{why}");
    Differs
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Program, output, tally};
    use crate::tally::Tally;

    #[test]
    fn a_program_must_exist_succeed_and_count() {
        let (export, check) = ("/".into(), "/no/such/program".into());
        assert_eq!(Program::C { export, check }.missing(), Some("/no/such/program".as_ref()));
        assert!(output(&mut Command::new("false")).is_err());
        assert!(output(&mut Command::new("/no/such/program")).is_err());
        assert_eq!(tally("a line\n12 3\n").ok(), Some(Tally { accepted: 12, refused: 3 }));
        assert!(tally("12 cases").is_err() && tally("").is_err());
    }
}
