//! The model to run: the one of a path, or a conversion of it that is kept.

use std::num::NonZeroUsize;
use std::path::Path;

use clap::Args;
use kvscatter_onnx::Model;
use kvscatter_onnx::convert::{CacheType, ConvertError};
use kvscatter_onnx::source::{ModelSource, Preparation, PrepareOptions, Prepared};
use kvscatter_session::Generator;

use super::cache_type::CacheTypeArgs;
use crate::engines::EngineName;
use crate::error::CommandError;
use crate::numbers::integer;
use crate::output::Output;

/// The options of a conversion that a command makes before it runs a model.
#[derive(Debug, Args)]
pub(super) struct Preparing {
    /// Run a model whose caches grow as it was exported, and do not convert it
    #[arg(long, conflicts_with_all = ["max_seq", "cache_type"])]
    no_convert: bool,

    /// Slots of each sample if the model is converted [default: the tokens that it supports, at most 4096]
    #[arg(long, value_name = "N", conflicts_with = "capacity", value_parser = integer::<NonZeroUsize>)]
    max_seq: Option<NonZeroUsize>,

    #[command(flatten)]
    caches: CacheTypeArgs,
}

impl Preparing {
    /// Returns the model that an engine runs, and prints a note if it is a conversion.
    pub(super) fn prepare(
        &self,
        source: ModelSource,
        engine: EngineName,
        output: &Output,
    ) -> Result<Prepared, CommandError> {
        let model = source.model.clone();
        let (cache_type, rotation) = self.caches.checked()?;
        if engine == EngineName::Tract && cache_type == Some(CacheType::BFloat16) {
            return Err(CommandError::BFloat16InTract);
        }
        let options = PrepareOptions {
            convert: !self.no_convert,
            max_seq: self.max_seq.map(NonZeroUsize::get),
            cache_type,
            rotation,
            ..PrepareOptions::default()
        };
        let prepared = source.prepare(&options).map_err(|error| match error.cause() {
            Some(ConvertError::NotConverted { .. }) if runs_as_exported(&model) => {
                CommandError::NoConvert(error)
            }
            _ => error.into(),
        })?;
        if prepared.what != Preparation::AsItIs {
            output.note(&prepared.to_string());
        }
        Ok(prepared)
    }
}

/// Returns `true` if a model runs without a conversion.
fn runs_as_exported(model: &Path) -> bool {
    Model::load(model).is_ok_and(|model| Generator::check_model(&model).is_ok())
}
