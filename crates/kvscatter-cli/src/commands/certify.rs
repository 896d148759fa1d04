//! `kvscatter certify`: a decoder run in an engine, and what that shows of its caches.

mod show;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kvscatter_certify::certificate::{Certificate, Machine, Verdict};
use kvscatter_certify::{CertifyOptions, Progress, certify, report};
use kvscatter_onnx::file::OutputFileKind;
use kvscatter_onnx::{DEFAULT_MEMORY_LIMIT, Model};

use crate::engines::{self, EngineName};
use crate::error::CommandError;
use crate::files;
use crate::numbers::{integer, tolerance};
use crate::output::{Outcome, Output, quoted};

/// Run a static-cache decoder and certify that its KV cache is written in place
///
/// The engine runs prefill, chunked prefill and ragged decode, with past and present in one memory. After every step,
/// every byte of every cache is compared with a copy. Only the rows that the write indices name may have changed. The
/// logits are compared with the original's. Without --original, they are compared with those of each sequence run alone,
/// with separate memory for its present. Every run is made with caches of zeros and with caches of finite canaries.
///
/// The certificate separates what the graph shows (structural), what was seen (observed) and how long it took (timed).
/// The last lines name what the logits were compared with, and claims that cannot be judged. The exit code is 1 if a
/// claim fails. Claims that are not comparable, not measured or not applicable do not change it.
///
/// Scales that are computed for a whole tensor (DynamicQuantizeLinear) make a sample's logits depend on its neighbours,
/// on padding and on chunks. Such models are compared only for each sequence alone, not in batches.
///
/// ONNX Runtime 1.25 or later is taken from an installed Python package: the library or folder that --ort-lib names,
/// else that of KVSCATTER_ORT_LIB or ORT_DYLIB_PATH, else the active Python's. Use 1.31 or later. Version 1.25 aligns the
/// causal mask wrongly if Attention has no mask input, and the certificate then fails. ONNX Runtime parses the model, and
/// a model contains no code that could run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter certify testdata/mobius-llama-static/model.onnx
  kvscatter certify static.onnx --engine tract
  kvscatter certify static.onnx --original growing.onnx --html certificate.html
  kvscatter certify static.onnx --prompt 100,7,30 --steps 64 --json
  kvscatter certify static.onnx --ort-lib venv/lib/python3.11/site-packages")]
pub(crate) struct Certify {
    /// The .onnx file to certify
    model: PathBuf,

    /// The .onnx file it was made from, which must give the same logits
    #[arg(long, value_name = "ORIG")]
    original: Option<PathBuf>,

    /// Write the certificate as one HTML page, too; an existing file of another kind is not replaced
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// What runs the model
    #[arg(long, default_value = "ort")]
    engine: EngineName,

    /// The library of ONNX Runtime, or a folder with the package
    #[arg(long, value_name = "PATH")]
    ort_lib: Option<PathBuf>,

    /// Tokens in each sample's prompt [default: 7,3,5 as far as they fit]
    #[arg(long, value_name = "N,...", value_delimiter = ',', help_heading = "What is run", value_parser = integer::<NonZeroUsize>)]
    prompt: Option<Vec<NonZeroUsize>>,

    /// Samples in a batch [default: the model's, or 3]
    #[arg(long, value_name = "N", help_heading = "What is run", value_parser = integer::<NonZeroUsize>)]
    batch: Option<NonZeroUsize>,

    /// Decode steps after the prompts [default: 16, or what fits]
    #[arg(long, value_name = "N", help_heading = "What is run", value_parser = integer::<usize>)]
    steps: Option<usize>,

    /// Tokens in the largest chunk of a chunked prefill [default: 4]
    #[arg(long, value_name = "N", help_heading = "What is run", value_parser = integer::<NonZeroUsize>)]
    chunk: Option<NonZeroUsize>,

    /// Slots of the caches, where the model leaves them open
    #[arg(long, value_name = "N", help_heading = "What is run", value_parser = integer::<NonZeroUsize>)]
    capacity: Option<NonZeroUsize>,

    /// What tokens and canaries are drawn from
    #[arg(long, value_name = "N", default_value = "1", help_heading = "What is run", value_parser = integer::<u64>)]
    seed: u64,

    /// Threads of the engine; several may sum in another order
    #[arg(long, value_name = "N", default_value = "1", value_parser = engines::threads, help_heading = "What is run")]
    threads: NonZeroUsize,

    /// Largest absolute difference between logits that counts as equal [default: by type and magnitude]
    #[arg(long, value_name = "A", value_parser = tolerance)]
    tolerance: Option<f64>,

    /// Do not time anything
    #[arg(long)]
    no_timing: bool,

    /// Bytes that caches and logits may take at once
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MEMORY_LIMIT, value_parser = integer::<u64>)]
    memory: u64,
}

pub(crate) fn run(args: Certify, output: &mut Output) -> Result<Outcome, CommandError> {
    let inputs = args.inputs()?;
    let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
    if let Some(html) = &args.html {
        // This is checked first, because certifying is slow.
        files::check_page(html, OutputFileKind::Html, &inputs)?;
    }
    let engine = engines::open(args.engine, args.ort_lib.as_deref())?;
    let bar = ProgressBar::no_length();
    let certificate = certify(&*engine, &args.options(), &mut |progress| show_progress(&bar, progress));
    bar.finish_and_clear();
    let certificate = certificate?;
    let written = args.html.as_ref().map_or(Ok(()), |html| {
        files::write_page(html, &report::html(&certificate), OutputFileKind::Html, &inputs)
    });
    // Certifying is slow, so the certificate is printed even if the page cannot be written.
    let html = args.html.as_deref().filter(|_| written.is_ok());
    if output.is_json() {
        output.json(&certificate)?;
    } else {
        show::show(&certificate, html, output)?;
    }
    written?;
    Ok(outcome(&certificate))
}

/// Only an issued certificate is a success.
fn outcome(certificate: &Certificate) -> Outcome {
    match certificate.verdict {
        Verdict::Passed => Outcome::Passed,
        Verdict::Failed | Verdict::NotApplicable | Verdict::NotMeasured | Verdict::NotComparable => {
            Outcome::Failed
        }
    }
}

impl Certify {
    fn options(&self) -> CertifyOptions {
        let machine = kvscatter_bench::Machine::read();
        CertifyOptions {
            model: self.model.clone(),
            original: self.original.clone(),
            batch: self.batch.map(NonZeroUsize::get),
            prompts: self.prompt.as_ref().map(|prompts| prompts.iter().map(|prompt| prompt.get()).collect()),
            steps: self.steps,
            chunk: self.chunk.map(NonZeroUsize::get),
            capacity: self.capacity.map(NonZeroUsize::get),
            seed: self.seed,
            tolerance: self.tolerance,
            threads: self.threads.get(),
            memory: self.memory,
            is_timed: !self.no_timing,
            command: command(),
            machine: Machine {
                cpu: machine.cpu,
                cores: machine.cores,
                os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            },
            made_at: Some(jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M").to_string()),
        }
    }

    /// The files that are read, and so are not written.
    fn inputs(&self) -> Result<Vec<PathBuf>, CommandError> {
        let mut inputs = Vec::new();
        for model in [Some(&self.model), self.original.as_ref()].into_iter().flatten() {
            inputs.push(model.clone());
            inputs.extend(Model::load(model)?.external_files());
        }
        Ok(inputs)
    }
}

/// The command as typed, to be pasted into a shell again.
fn command() -> String {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut words = vec![program];
    words.extend(arguments.map(|argument| quoted(&argument.to_string_lossy())));
    words.join(" ")
}

fn show_progress(bar: &ProgressBar, progress: Progress<'_>) {
    let template = if progress.total > 0 { "{wide_bar} {pos}/{len} {msg}" } else { "{spinner} {msg}" };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    if progress.total > 0 {
        bar.set_length(u64::try_from(progress.total).unwrap_or(u64::MAX));
        bar.set_position(u64::try_from(progress.done).unwrap_or(u64::MAX));
    }
    bar.set_message(progress.doing.to_owned());
    bar.tick();
}
