//! Runs the decoder, and prints and writes the certificate.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use indicatif::{ProgressBar, ProgressStyle};
use kvscatter_certify::certificate::{Certificate, Machine, Verdict};
use kvscatter_certify::{CertifyOptions, Progress, certify, report};
use kvscatter_onnx::Model;
use kvscatter_onnx::internal::file::OutputFileKind;
use kvscatter_onnx::source::ModelSource;

use super::{Certify, show};
use crate::engines;
use crate::error::CommandError;
use crate::files;
use crate::host::Invocation;
use crate::output::{Outcome, Output, quoted};

pub(crate) fn run(
    args: Certify,
    invocation: &Invocation<'_>,
    output: &mut Output,
) -> Result<Outcome, CommandError> {
    let find = |path: &PathBuf| ModelSource::find(path).map(|source| source.model);
    let original = args.original.as_ref().map(find).transpose()?;
    let args = Certify { model: find(&args.model)?, original, ..args };
    let inputs = args.inputs()?;
    let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
    if let Some(html) = &args.html {
        // This is checked first, because certifying is slow.
        files::check_page(html, OutputFileKind::Html, &inputs)?;
    }
    let engine = engines::open(args.engine, &args.ort, invocation.host)?;
    let bar = output.progress(0);
    let options = args.options(invocation.arguments);
    let certificate = certify(&*engine, &options, &mut |progress| show_progress(&bar, progress));
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

/// Returns the outcome of a certificate. Every verdict but "passed" is a failure.
fn outcome(certificate: &Certificate) -> Outcome {
    match certificate.verdict {
        Verdict::Passed => Outcome::Passed,
        Verdict::Failed | Verdict::NotApplicable | Verdict::NotMeasured | Verdict::NotComparable => {
            Outcome::Failed
        }
    }
}

impl Certify {
    fn options(&self, arguments: &[OsString]) -> CertifyOptions {
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
            command: command(arguments),
            machine: Machine::read(),
            made_at: Some(humantime::format_rfc3339_seconds(SystemTime::now()).to_string()),
        }
    }

    /// Returns the input files, which must not be overwritten.
    fn inputs(&self) -> Result<Vec<PathBuf>, CommandError> {
        let mut inputs = Vec::new();
        for model in [Some(&self.model), self.original.as_ref()].into_iter().flatten() {
            inputs.push(model.clone());
            inputs.extend(Model::load(model)?.external_files());
        }
        Ok(inputs)
    }
}

/// Returns the command line, quoted so that it can be pasted into a shell.
fn command(arguments: &[OsString]) -> String {
    let mut arguments = arguments.iter();
    let program = arguments
        .next()
        .map(Path::new)
        .and_then(Path::file_name)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
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
