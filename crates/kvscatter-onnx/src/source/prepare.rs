//! Returns the model to run: the exported one, or a conversion of it that is kept.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::text::names::one_line;
use crate::text::units;

use super::cache::{Cache, Request, default_cache};
use super::{FolderError, ModelSource};
use crate::convert::{CacheType, ConvertError, ConvertOptions, UNLIMITED};
use crate::decoder::{self, Decoder};
use crate::file::folder_of;
use crate::{ErrorPlace, Model, OnnxError, convert, declared, file, plain_decoder, proto};

/// The most slots of a conversion if its options give no number.
///
/// All slots are allocated when a model is loaded, for every sample. With 4,096 slots, the caches of SmolLM2 135M take
/// 180 MiB in float32, and those of an 8B model of Llama's shape take 1 GiB, or 512 MiB in float16.
const DEFAULT_MAX_SEQ: usize = 4096;

/// How a model is made ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrepareOptions {
    /// Whether a model whose caches grow, or are written by scatters, is converted. It otherwise runs as exported.
    pub convert: bool,
    /// The slots of each sample in a conversion. The default is the number of tokens that the model supports, and at
    /// most 4096.
    pub max_seq: Option<usize>,
    /// The type of the caches in a conversion, or `None` for that of the export. A model with static caches of another
    /// type is converted too.
    pub cache_type: Option<CacheType>,
    /// Whether keys and queries are rotated before keys become int8.
    pub rotation: bool,
    /// The folder of conversions, which need not exist. The default is that of the environment variable
    /// `KVSCATTER_CACHE`, else `kvscatter` in `XDG_CACHE_HOME` if that is an absolute path, else `.cache/kvscatter` in
    /// the home folder.
    pub cache: Option<PathBuf>,
}

impl Default for PrepareOptions {
    fn default() -> Self {
        Self { convert: true, max_seq: None, cache_type: None, rotation: true, cache: None }
    }
}

/// A model that is ready to run. `Display` describes it in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The path of the .onnx file to run.
    pub model: PathBuf,
    /// The folder of the export, with its tokenizer and configuration.
    pub folder: PathBuf,
    /// What was done.
    pub what: Preparation,
}

/// What was done to make a model ready to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// The exported model runs as it is.
    AsItIs,
    /// The model was converted.
    Converted {
        /// The slots of each sample.
        max_seq: usize,
        /// The time that the conversion took.
        time: Duration,
        /// The bytes of weights that were copied.
        copied: u64,
    },
    /// An earlier conversion is used.
    Reused {
        /// The slots of each sample.
        max_seq: usize,
    },
}

impl ModelSource {
    /// Returns the model to run. If the caches of the exported model grow, or if `GroupQueryAttention` or scatters
    /// write them, that is a conversion. It is made at the first call and used again later, as the [module](super)
    /// describes.
    ///
    /// A model with static caches runs as it is unless the options name a type of caches, and so does every model if
    /// [`PrepareOptions::convert`] is `false`.
    ///
    /// # Errors
    /// * Returns [`ConvertError::NotConverted`] wrapped in [`OnnxError::InFile`] if the model cannot be converted. It
    ///   may still run as it was exported.
    /// * Returns [`ConvertError::NotKept`] if the conversion cannot be written, and [`ConvertError::NoCacheFolder`] if
    ///   no folder for it is known.
    /// * Returns [`FolderError`] wrapped in [`OnnxError::InFile`] if a configuration file is wrong, which is only
    ///   read if the options give no number of slots.
    /// * Returns the errors of [`Model::load`], of [`Model::file`] and of [`Decoder::from_graph`].
    pub fn prepare(self, options: &PrepareOptions) -> Result<Prepared, OnnxError> {
        let (model, what) = match options.convert {
            true => self.converted(options)?,
            false => (None, Preparation::AsItIs),
        };
        Ok(Prepared { model: model.unwrap_or(self.model), folder: self.folder, what })
    }

    /// Returns the path of the converted model, or `None` if the exported model runs as it is.
    fn converted(&self, options: &PrepareOptions) -> Result<(Option<PathBuf>, Preparation), OnnxError> {
        let (bytes, stamp) = file::read_stamped(&self.model, proto::MAX_MESSAGE_BYTES)?;
        let started = Instant::now();
        let to = |max_seq| ConvertOptions::new(max_seq).caches(options.cache_type, options.rotation);
        let asked = match options.max_seq {
            Some(max_seq) => Ok((to(max_seq), false)),
            None => default_max_seq(&self.folder).map(|most| (to(most), true)),
        };
        let root = options.cache.clone().map_or_else(default_cache, Ok);
        if let (Ok(asked), Ok(root)) = (&asked, &root)
            && let Some(kept) = (Cache { root }).find(&Request::new(&self.model, &bytes, *asked)?)
        {
            return Ok((Some(kept.model), Preparation::Reused { max_seq: kept.max_seq }));
        }
        let model = Model::read(&self.model, &bytes, stamp)?;
        let caches = CachesBefore::from_model(&model).in_file(&self.model)?;
        if matches!(caches, CachesBefore::Static(_)) && options.cache_type.is_none() {
            return Ok((None, Preparation::AsItIs));
        }
        let (asked, root) = (asked?, root?);
        let request = Request::new(&self.model, &bytes, asked)?;
        drop(bytes);
        let stamps = model.stamps()?;
        let exactly = |options: ConvertOptions| {
            convert::convert(&model, options).map(|converted| (options.max_seq, converted))
        };
        let (max_seq, converted) = match (asked, caches) {
            ((options, false), _) => exactly(options),
            ((_, true), CachesBefore::Static(fixed) | CachesBefore::Scattered(fixed)) => exactly(to(fixed)),
            ((options, true), CachesBefore::Growing) => convert::near(&model, options),
        }
        .map_err(|cause| ConvertError::NotConverted { cause: Box::new(cause) })
        .in_file(&self.model)?;
        let kept = (Cache { root: &root }).keep(&request, stamps, &converted.model, max_seq);
        let kept = kept.map_err(|cause| ConvertError::NotKept { folder: root, cause: Box::new(cause) })?;
        let what =
            Preparation::Converted { max_seq: kept.max_seq, time: started.elapsed(), copied: kept.copied };
        Ok((Some(kept.model), what))
    }
}

/// Returns the slots of each sample if no option gives them: the number of tokens that the configuration files of an
/// export's folder declare, and at most 4096.
///
/// # Errors
/// Returns [`FolderError`] wrapped in [`OnnxError::InFile`] if a configuration file is wrong.
pub fn default_max_seq(folder: &Path) -> Result<usize, OnnxError> {
    match declared::context(folder) {
        Ok(context) => Ok(context.map_or(DEFAULT_MAX_SEQ, |context| context.min(DEFAULT_MAX_SEQ))),
        Err((file, reason)) => Err(FolderError::Config { reason }).in_file(folder.join(file)),
    }
}

/// The caches of a model before a conversion. The number is the most slots that a cache has.
enum CachesBefore {
    Growing,
    /// Scatters write caches of a fixed size, at one position of all samples.
    Scattered(usize),
    Static(usize),
}

impl CachesBefore {
    fn from_model(model: &Model) -> Result<Self, OnnxError> {
        if plain_decoder(model)?.form.is_some() {
            return Ok(Self::Growing);
        }
        let graph = model.graph()?;
        let caches = Decoder::from_graph(&graph)?.caches;
        if caches.iter().any(|cache| cache.growth().is_some()) {
            return Ok(Self::Growing);
        }
        let linear = || caches.iter().filter(|cache| !cache.is_ring());
        if caches.iter().all(decoder::Cache::is_scattered) {
            return Ok(linear()
                .find_map(|cache| cache.capacity().size())
                .map_or(Self::Growing, Self::Scattered));
        }
        let most = linear().filter_map(decoder::Cache::fixed_capacity).max();
        Ok(Self::Static(most.unwrap_or(UNLIMITED)))
    }
}

impl fmt::Display for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |path: &Path| one_line(&path.to_string_lossy());
        let path = shown(folder_of(&self.model));
        match self.what {
            Preparation::AsItIs => write!(f, "{} runs as it was exported", shown(&self.model)),
            Preparation::Converted { max_seq, time, copied } => {
                let time = units::time(time.as_secs_f64() * 1e9);
                write!(f, "converted in {time} to static caches of {max_seq} slots, kept in {path}")?;
                match copied {
                    0 => Ok(()),
                    copied => write!(f, " with a copy of {} of weights", units::bytes(copied)),
                }
            }
            Preparation::Reused { max_seq } => {
                write!(f, "using the conversion to static caches of {max_seq} slots in {path}")
            }
        }
    }
}
