//! Reports which lines in unsafe blocks the tests have executed. `cargo xtask unsafe-coverage` runs it after the
//! tests, and it writes the table of `docs/unsafe-code.md`.
//!
//! An unsafe block is found in the tokens of a source file, so blocks in the body of a macro count too. Code for
//! tests does not count. The counters are those of the compiler, which LLVM's tools read.
//!
//! It fails if a line in an unsafe block was not executed and `unexecuted.txt` does not give the reason, and also
//! if a reason there is no longer needed.
//!
//! Usage: `unsafe_coverage BUILD_FOLDER`. The folder contains the instrumented programs, and in `profiles` what
//! they counted.

mod blocks;
mod counters;
mod reasons;
mod table;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use blocks::Block;
use counters::{Counters, Executed};

/// The crates with unsafe code, as `instrument.sh` and ARCHITECTURE.md list them.
const CRATES: [&str; 12] = [
    "kvscatter",
    "kvscatter-attention",
    "kvscatter-bench",
    "kvscatter-candle",
    "kvscatter-capi",
    "kvscatter-certify",
    "kvscatter-cli",
    "kvscatter-cuda",
    "kvscatter-onnxruntime",
    "kvscatter-ort",
    "kvscatter-python",
    "kvscatter-xla",
];

/// A file with unsafe blocks.
struct File {
    krate: &'static str,
    /// The path below the crate's folder.
    path: String,
    blocks: usize,
    /// The lines with code in unsafe blocks, and whether a test has executed them. `None` if no program contained
    /// the file.
    lines: Option<Vec<(usize, bool)>>,
}

impl File {
    /// Returns the path below `crates`.
    fn name(&self) -> String {
        format!("{}/{}", self.krate, self.path)
    }

    fn count(&self) -> usize {
        self.lines.iter().flatten().count()
    }

    fn executed(&self) -> usize {
        self.lines.iter().flatten().filter(|(_, executed)| *executed).count()
    }

    fn unexecuted(&self) -> Vec<usize> {
        self.lines.iter().flatten().filter(|(_, executed)| !executed).map(|(line, _)| *line).collect()
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let folder = env::args_os().nth(1).ok_or("name the folder of the build")?;
    let counters = Counters::read(Path::new(&folder))?;
    let mut files = Vec::new();
    for krate in CRATES {
        files.extend(read_crate(krate, &counters)?);
    }
    let reasons = reasons::read()?;
    let page = root().join("docs/unsafe-code.md");
    let text = format!("{}\n\n{}", conditions()?, table::written(&files, &reasons));
    let text = table::replace(&fs::read_to_string(&page)?, &text)?;
    fs::write(&page, text)?;
    println!("{}", table::total(&files));
    let faults = reasons::faults(&files, &reasons);
    faults.iter().for_each(|fault| eprintln!("{fault}"));
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a sentence with the day, the processor and the compiler.
fn conditions() -> Result<String, Box<dyn Error>> {
    let first_line = |program: &str, argument: &str| -> Result<String, Box<dyn Error>> {
        let printed = Command::new(program).arg(argument).output()?.stdout;
        Ok(String::from_utf8(printed)?.lines().next().unwrap_or_default().to_owned())
    };
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let processor =
        processors.lines().find_map(|line| line.strip_prefix("model name\t: ")).unwrap_or("a processor");
    let (day, compiler) = (first_line("date", "+%F")?, first_line("rustc", "--version")?);
    Ok(format!("Measured on {day}, on {processor}, with {compiler}."))
}

/// Returns the files of a crate that contain unsafe blocks.
fn read_crate(krate: &'static str, counters: &Counters) -> Result<Vec<File>, Box<dyn Error>> {
    let folder = root().join("crates").join(krate);
    let mut files = Vec::new();
    for source in sources(&folder.join("src"))? {
        let blocks = blocks::find(&fs::read_to_string(&source)?)?;
        if !blocks.is_empty() {
            let path = source.strip_prefix(&folder)?.display().to_string();
            let lines = lines(&blocks, counters, &source);
            files.push(File { krate, path, blocks: blocks.len(), lines });
        }
    }
    Ok(files)
}

fn lines(blocks: &[Block], counters: &Counters, source: &Path) -> Option<Vec<(usize, bool)>> {
    let file = counters.file(source)?;
    let executed = |(line, columns)| match file.executed(line, columns) {
        Executed::Yes => Some((line, true)),
        Executed::No => Some((line, false)),
        Executed::HasNoCode => None,
    };
    let mut lines: Vec<_> = blocks.iter().flat_map(Block::lines).filter_map(executed).collect();
    lines.sort_unstable();
    // Two blocks can share a line. The line counts once, and as executed only if both were.
    lines.dedup_by_key(|(line, _)| *line);
    Some(lines)
}

/// Returns the Rust files below a folder, without those that contain only tests.
fn sources(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    let mut found = Vec::new();
    for path in paths.into_iter().filter(|path| path.file_stem().is_some_and(|name| name != "tests")) {
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_crates_are_those_of_the_architecture_and_are_built_with_counters() {
        let page = include_str!("../../../ARCHITECTURE.md");
        let (_, table) = page.split_once("These crates contain `unsafe` code:\n\n").unwrap_or_default();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let listed: BTreeSet<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        assert_eq!(listed, BTreeSet::from(CRATES));
        let script = include_str!("instrument.sh").split([' ', ')', '\n']);
        let counted: BTreeSet<&str> = script.filter(|word| word.starts_with("kvscatter")).collect();
        assert_eq!(counted, listed);
    }

    #[test]
    fn a_line_of_two_blocks_is_executed_if_both_are() {
        let counted = |count| Counters::of(Path::new("file.rs"), &[(1, 1, 5), (1, 20, count)]);
        let blocks = blocks::find("fn f() { unsafe { a() }; unsafe { b() } }").unwrap_or_default();
        let lines = |count| lines(&blocks, &counted(count), Path::new("file.rs"));
        assert_eq!(lines(1), Some(vec![(1, true)]));
        assert_eq!(lines(0), Some(vec![(1, false)]));
    }
}
