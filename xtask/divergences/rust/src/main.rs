//! Runs one conformance case in a Rust library: `kvscatter-divergences tract FOLDER OUT PLACE` or
//! `kvscatter-divergences candle FOLDER OUT AXIS MODE`.
//!
//! Reads the inputs of the test directory FOLDER. Writes the outputs to OUT, and after a write in place also the
//! buffer of the cache. Prints `same_memory` if the output is in the memory of the cache. The exit code is 1 if the
//! library returns an error. A panic of the library ends the process.

mod candle;
mod tract;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use kvscatter_onnx::{Tensor, load_tensor_pb, write_tensor_pb};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done = match *words {
        ["tract", folder, out, place] => tract::run(Path::new(folder), Path::new(out), place == "in-place"),
        ["candle", folder, out, axis, mode] => candle::run(Path::new(folder), Path::new(out), axis, mode),
        _ => return ExitCode::from(2),
    };
    match done {
        Ok(true) => println!("same_memory"),
        Ok(false) => {}
        Err(error) => {
            // Alternate formatting has the causes in the same line.
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Returns the inputs of a test directory, in the order of the graph's inputs.
fn inputs(folder: &Path) -> Result<Vec<Tensor>> {
    let path = |number: usize| folder.join(format!("test_data_set_0/input_{number}.pb"));
    let paths: Vec<PathBuf> = (0..).map(path).take_while(|path| path.exists()).collect();
    if paths.is_empty() {
        bail!("{} has no inputs", folder.display());
    }
    paths.iter().map(|path| load_tensor_pb(path).with_context(|| path.display().to_string())).collect()
}

/// Writes a tensor to `OUT/NAME.pb`.
fn write(out: &Path, name: &str, tensor: &Tensor) -> Result<()> {
    std::fs::write(out.join(format!("{name}.pb")), write_tensor_pb(name, tensor)?)?;
    Ok(())
}
