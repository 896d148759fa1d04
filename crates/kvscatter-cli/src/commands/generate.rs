//! `kvscatter generate`: continues prompts with a decoder whose caches are written in place.

mod args;
#[cfg(feature = "text")]
mod chat;
mod encoder;
mod prompts;
mod sampling;
mod show;
#[cfg(feature = "text")]
mod texter;
#[cfg(feature = "text")]
mod texts;
#[cfg(feature = "text")]
mod writer;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use kvscatter_onnx::source::ModelSource;
use kvscatter_session::Event;

use crate::engines;
use crate::error::CommandError;
use crate::host::Host;
use crate::output::{Outcome, Output};
pub(crate) use args::Generate;
use args::check_eos;
use show::Generation;

/// The most new tokens after prompts of token ids.
const DEFAULT_TOKENS: usize = 16;

pub(crate) fn run(args: Generate, host: &Host, output: &mut Output) -> Result<Outcome, CommandError> {
    if args.prompts.are_texts() {
        #[cfg(feature = "text")]
        return texts::run(&args, host, output);
        #[cfg(not(feature = "text"))]
        return Err(CommandError::NotBuilt { what: "tokenizers", feature: "text" });
    }
    let prompts = args.prompts.read()?;
    let engine = engines::open(args.engine(host), &args.ort, host)?;
    let prepared = args.preparing.prepare(ModelSource::find(&args.model)?, args.engine(host), output)?;
    let tokens = args.max_new_tokens.map_or(DEFAULT_TOKENS, NonZeroUsize::get);
    let options = args.options(Some(tokens), args.eos.clone());
    let (mut generator, encoded) =
        args.open_generator(&*engine, &prepared, &prompts, &options, args.capacity())?;
    check_eos(&options.eos, generator.vocabulary())?;
    let bar = output.progress(tokens);
    let generated = generator.generate(&prompts, &options, &mut |event| {
        if let Event::Tokens(new) = event {
            bar.set_position(u64::try_from(new.progress().tokens).unwrap_or(u64::MAX));
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let generation = args.generation(&*engine, &generator, prompts, generated?);
    Generation { encoded, ..generation }.show(output)?;
    Ok(Outcome::Passed)
}
