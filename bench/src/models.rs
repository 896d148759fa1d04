//! Measures what a static cache saves in a decode step.
//!
//! A generated decoder with growing caches and the decoder that `kvscatter convert` makes from it run in ONNX
//! Runtime, in turn.

mod decoder;
mod measure;
mod page;
mod results;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use kvscatter_onnx::convert::convert;
use kvscatter_onnxruntime::OnnxRuntime;

use self::decoder::Decoder;
use self::results::Results;
use crate::host::Host;
use crate::output::write;

/// The number of slots of the static caches.
const CAPACITY: usize = 4096;
/// The numbers of tokens in the caches before the timed step.
const CONTEXTS: [usize; 6] = [128, 256, 512, 1024, 2048, CAPACITY - 1];
const COMMAND: &str = "cargo xtask bench-models --write-docs";

/// Times a decode step of a generated decoder with growing and with static caches, in ONNX Runtime
///
/// The decoder has 4 layers of 8 heads of 128 float32. At 4096 slots the caches take 128 MiB. The nodes
/// between past and present are timed alone, as a separate model, and so is the whole step. Before a length
/// is timed, the logits of both decoders are compared. The measurement takes about ten seconds and 2 GiB of
/// memory. Close other programs first.
#[derive(Args)]
#[command(bin_name = "cargo xtask bench-models")]
pub(crate) struct Arguments {
    /// Measures few rounds, as a test that everything works
    #[arg(long, conflicts_with = "write_docs")]
    quick: bool,
    /// Also rewrites docs/models.md between its markers, and docs/models/*.svg
    #[arg(long)]
    write_docs: bool,
    /// Reads the results of an earlier run instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    from: Option<PathBuf>,
    /// The library of ONNX Runtime. Default: KVSCATTER_ORT_LIB, ORT_DYLIB_PATH or the active Python
    #[arg(long, value_name = "PATH")]
    ort_lib: Option<PathBuf>,
    /// The folder for models.json and the plots
    #[arg(long, value_name = "FOLDER", default_value = "target/bench")]
    out: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let results = match &arguments.from {
        Some(file) => {
            let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?
        }
        None => {
            let results = measure_all(arguments)?;
            let text = serde_json::to_string_pretty(&results).map_err(|error| error.to_string())?;
            write(&arguments.out.join("models.json"), &text)?;
            results
        }
    };
    println!("{}", page::table(&results));
    let figures = page::figures(&results);
    for figure in &figures {
        write(&arguments.out.join(figure.file_stem()).with_extension("svg"), &figure.svg()?)?;
    }
    if arguments.write_docs {
        let page = Path::new("docs/models.md");
        let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
        write(page, &crate::page::replace(&text, COMMAND, &page::generate(&results, &figures))?)?;
        for figure in &figures {
            let file = page.with_extension("").join(figure.file_stem()).with_extension("svg");
            write(&file, &figure.svg()?)?;
        }
    }
    page::check(&results)
}

fn measure_all(arguments: &Arguments) -> Result<Results, String> {
    if cfg!(debug_assertions) {
        println!("this is a debug build: its times mean nothing");
    }
    let engine = OnnxRuntime::load(arguments.ort_lib.as_deref()).map_err(|error| error.to_string())?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let decoder = Decoder::default();
    let original = decoder.model(CAPACITY);
    let converted = convert(&original, CAPACITY).map_err(|error| error.to_string())?;
    let rounds = if arguments.quick { 3 } else { 21 };
    let mut pair = measure::Pair::load(&engine, folder.path(), &decoder, &original, &converted, CAPACITY)?;
    let mut at = Vec::new();
    for context in CONTEXTS {
        println!("{context} tokens in the caches");
        at.push(pair.measure(context, rounds)?);
    }
    let runtime = {
        use kvscatter_session::Engine as _;
        format!("{} {}", engine.name(), engine.version())
    };
    Ok(Results { host: Host::read(), runtime, quick: arguments.quick, decoder, capacity: CAPACITY, at })
}
