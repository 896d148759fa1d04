//! `kvscatter convert`: converts a decoder with growing caches into one whose caches are written in place.

mod args;
mod cost;
mod document;
mod show;

use std::path::{Path, PathBuf};

use kvscatter_onnx::convert::{self, CacheLayout, CacheNames, ConvertOptions, Converted};
use kvscatter_onnx::internal::file::Identity;
use kvscatter_onnx::source::ModelSource;
use kvscatter_onnx::{Model, join_encoder};
use kvscatter_session::{KvSession, SessionError, SessionOptions};

use crate::error::CommandError;
use crate::output::{Outcome, Output};
pub(crate) use args::Convert;
use args::Layout;

pub(crate) fn run(args: Convert, output: &mut Output) -> Result<Outcome, CommandError> {
    let args = Convert { model: ModelSource::find(&args.model)?.model, ..args };
    check_paths(&args)?;
    let model = Model::load(&args.model)?;
    let options =
        ConvertOptions::new(args.max_seq).keep_attention(args.keep_attention).windowed(args.windowed()?);
    let options = args.onnxruntime.map_or(options, |oldest| options.onnxruntime(oldest));
    let (cache_type, rotates) = args.caches.checked()?;
    let options = options.caches(cache_type, rotates);
    let options = options.layout(match args.layout {
        Layout::ByHead => CacheLayout::ByHead,
        Layout::Flat => CacheLayout::Flat,
    });
    let names = args.names.as_deref().map(|past| CacheNames::new(past, args.present_names.as_deref()));
    let names = names.transpose()?;
    let options = options.may_stay(names.is_some());
    let renamed = convert::convert(&model, options).and_then(|mut converted| {
        names.as_ref().map_or(Ok(()), |names| converted.rename_caches(names)).map(|()| converted)
    });
    let converted = renamed.map_err(|cause| kvscatter_onnx::OnnxError::InFile {
        path: args.model.clone(),
        cause: Box::new(cause),
    })?;
    let encoder = args.encoder_output.as_ref().map(|_| joined_encoder(&args, &model)).transpose()?;
    let mut files = Vec::new();
    if let Some((encoder, path)) = encoder.zip(args.encoder_output.as_ref()) {
        files.extend(encoder.save_with_weights(path, args.weights.into())?);
    }
    files.extend(converted.model.save_with_weights(&args.output, args.weights.into())?);
    let refusal = refusal(&converted);
    if output.is_json() {
        output.json(&document::document(&args, &converted, refusal.as_ref(), &files))?;
    } else {
        show::show(&args, &converted, refusal.as_ref(), &files, output)?;
        if args.explain {
            show::explain(&converted.report, output)?;
        }
    }
    Ok(Outcome::Passed)
}

/// Returns the reason why sessions do not run a converted model, or `None` if they do. The limit of memory is an option
/// of each session, so it is no reason.
fn refusal(converted: &Converted) -> Option<SessionError> {
    let options = SessionOptions { memory: u64::MAX, ..SessionOptions::default() };
    KvSession::check_model(&converted.model, options).err()
}

/// Checks that no output replaces another one, or a model that is read.
fn check_paths(args: &Convert) -> Result<(), CommandError> {
    let Some(encoder) = &args.encoder_output else { return Ok(()) };
    let is_same = |one: &Path, other: &Path| {
        let [one, other] = [one, other].map(Identity::from_path);
        one.is_ok_and(|one| other.is_ok_and(|other| one == other))
    };
    if is_same(encoder, &args.output) {
        return Err(CommandError::EqualOutputs { path: encoder.clone() });
    }
    let read = [Some(args.model.clone()), Some(encoder_of(args)), first_step_of(args)];
    for (output, input) in [&args.output, encoder]
        .into_iter()
        .flat_map(|output| read.iter().flatten().map(move |input| (output, input)))
    {
        if is_same(output, input) {
            return Err(CommandError::OutputIsInput { path: output.clone() });
        }
    }
    Ok(())
}

/// Returns the encoder that computes all that a decoder takes from it.
fn joined_encoder(args: &Convert, decoder: &Model) -> Result<Model, CommandError> {
    let encoder = Model::load(&encoder_of(args))?;
    let first = first_step_of(args).map(|first| Model::load(&first)).transpose()?;
    Ok(join_encoder(&encoder, first.as_ref().unwrap_or(decoder), decoder)?)
}

/// Returns the file of the exported encoder.
fn encoder_of(args: &Convert) -> PathBuf {
    let [usual, other] = ENCODERS.map(|name| args.model.with_file_name(name));
    let usual = if other.exists() && !usual.exists() { other } else { usual };
    args.encoder.clone().unwrap_or(usual)
}

/// Returns the file of the decoder of the first step, if it is beside the decoder.
fn first_step_of(args: &Convert) -> Option<PathBuf> {
    Some(args.model.with_file_name(FIRST_STEP)).filter(|first| first.exists())
}

/// The usual names of an exported encoder, and Optimum's name of the decoder of the first step.
const ENCODERS: [&str; 2] = ["encoder_model.onnx", "encoder.onnx"];

const FIRST_STEP: &str = "decoder_model.onnx";
