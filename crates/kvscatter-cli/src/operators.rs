//! The options of the three operators: their attributes and index inputs, with the names of the specification
//! in kebab-case, and our extensions.

mod indices;
mod operand;

use std::path::Path;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use kvscatter::error::ErrorKind;
use kvscatter::spec::ascend::{self, KvCacheOperationCall};
use kvscatter::spec::onnx;
use kvscatter::spec::same_element_type;
use kvscatter::spec::tensorrt::{self, PackedCall};
use kvscatter::{Argument, ElementType, Lengths, Mode, Prepared, WritePlan};

use crate::error::CommandError;
use crate::numbers::integer;
pub(crate) use indices::Indices;
pub(crate) use operand::{Described, Operand};

/// The domain of the operators that kvscatter's plugin adds to ONNX Runtime.
pub(crate) const PLUGIN_DOMAIN: &str = "com.kvscatter";

/// An operator with everything but its tensors.
pub(crate) enum Operator {
    TensorScatter(TensorScatter),
    KvCacheUpdate(KvCacheUpdate),
    KvCacheOperation(KvCacheOperation),
}

/// A prepared write with the index inputs of one call.
pub(crate) struct PreparedCall {
    write: Prepared,
    indices: IndexInputs,
    lengths: Option<Vec<i64>>,
}

enum IndexInputs {
    TensorScatter { write_indices: Option<Vec<i64>> },
    KvCacheUpdate { write_indices: Vec<i64>, update_lengths: Option<Vec<i32>> },
    KvCacheOperation { layer_id: Vec<i32>, token_offset: Vec<i32>, seq_len: Vec<i32> },
}

/// Attributes and index inputs of ONNX TensorScatter.
#[derive(Debug, Args)]
pub(crate) struct TensorScatter {
    /// First slot written of each sample: 3,0,5 or a file of int64 [default: all 0]
    #[arg(long, value_name = "INDICES", allow_hyphen_values = true)]
    write_indices: Option<Indices>,

    /// Sequence dimension of the cache; not 0, which is the batch
    #[arg(long, default_value_t = onnx::TensorScatter::DEFAULT_AXIS, value_parser = integer::<i64>)]
    axis: i64,

    /// How slots are counted; in circular mode, modulo the capacity
    #[arg(long, default_value = "linear", value_parser = mode())]
    mode: Mode,

    /// The meaning of a negative index in circular mode
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "modulo",
        help_heading = "Extensions beyond the specification"
    )]
    negative_index: NegativeIndex,

    #[command(flatten)]
    extensions: Extensions,
}

/// Attributes and index inputs of TensorRT KVCacheUpdate.
#[derive(Debug, Args)]
pub(crate) struct KvCacheUpdate {
    /// First slot written of each sample: 3,0,5 or a file of int32 or int64
    #[arg(long, value_name = "INDICES", allow_hyphen_values = true)]
    write_indices: Indices,

    /// The mode, of which linear is the only one
    #[arg(long, value_name = "MODE", default_value = "linear")]
    cache_mode: CacheMode,

    /// Cumulative lengths of a packed update [tokens, heads, head size]: 0,3,4 or a file of int32
    #[arg(long, value_name = "INDICES", allow_hyphen_values = true)]
    update_lengths: Option<Indices>,

    #[command(flatten)]
    extensions: Extensions,
}

/// Index inputs of Ascend ATB KVCacheOperation.
#[derive(Debug, Args)]
pub(crate) struct KvCacheOperation {
    /// The layer written: 0 or a file of one int32
    #[arg(long, value_name = "INDEX", allow_hyphen_values = true)]
    layer_id: Indices,

    /// Length of each sample AFTER the write (not its first slot): 5,2 or a file of int32
    #[arg(long, value_name = "INDICES", allow_hyphen_values = true)]
    token_offset: Indices,

    /// New tokens of each sample: 2,1 or a file of int32
    #[arg(long, value_name = "INDICES", allow_hyphen_values = true)]
    seq_len: Indices,

    #[command(flatten)]
    extensions: Extensions,
}

/// Options that are not part of a specification.
#[derive(Debug, Args)]
struct Extensions {
    /// Rows of each sample to write; the rows after them are padding and are not written
    #[arg(
        long,
        value_name = "INDICES",
        allow_hyphen_values = true,
        help_heading = "Extensions beyond the specification"
    )]
    lengths: Option<Indices>,

    /// What to do with a sample that does not fit
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "error",
        help_heading = "Extensions beyond the specification"
    )]
    out_of_range: OutOfRange,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OutOfRange {
    /// Fail, and write nothing
    Error,
    /// Skip this sample, and write the others
    SkipSample,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum NegativeIndex {
    /// -1 is the last slot
    Modulo,
    /// A negative index is out of range
    Reject,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CacheMode {
    Linear,
}

/// Returns a parser for an element type. It accepts the names of NumPy, ONNX and safetensors in upper or
/// lower case.
pub(crate) fn element_type() -> impl TypedValueParser<Value = ElementType> {
    PossibleValuesParser::new(ElementType::ALL.map(|ty| {
        let [name, aliases @ ..] = names(ty);
        PossibleValue::new(name.unwrap_or_default()).aliases(aliases.into_iter().flatten())
    }))
    .try_map(|text| text.parse::<ElementType>())
}

/// Returns the names of a type. NumPy has no name for strings of any length.
fn names(ty: ElementType) -> [Option<&'static str>; 3] {
    let numpy = if ty == ElementType::String { ty.onnx_name() } else { ty.numpy_name() };
    [Some(numpy), Some(ty.onnx_name()), ty.safetensors_name()]
}

/// Returns a parser for `linear` and `circular`.
pub(crate) fn mode() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(["linear", "circular"]).try_map(|name| name.parse::<Mode>())
}

impl Operator {
    /// Prepares the write for `[cache, update]`, and loads the indices.
    pub(crate) fn prepare(&self, [cache, update]: &[Described; 2]) -> Result<PreparedCall, CommandError> {
        let element = same_element_type(cache.element, self.update_argument(), update.element)?;
        let hinted = |rule| self.hinted(rule, cache, update);
        match self {
            Self::TensorScatter(options) => {
                let write =
                    options.operator().prepare(element, &cache.shape, &update.shape).map_err(hinted)?;
                let write_indices =
                    load(&options.write_indices, "write_indices", onnx::TensorScatter::INDEX_TYPES)?;
                let indices = IndexInputs::TensorScatter { write_indices };
                Ok(PreparedCall { write, indices, lengths: options.extensions.lengths()? })
            }
            Self::KvCacheUpdate(options) => {
                let operator = options.operator();
                let write_indices =
                    options.write_indices.load("writeIndices", tensorrt::KvCacheUpdate::INDEX_TYPES)?;
                let update_lengths =
                    load(&options.update_lengths, "updateLengths", tensorrt::KvCacheUpdate::LENGTH_TYPES)?;
                let lengths = options.extensions.lengths()?;
                let update_lengths =
                    update_lengths.map(|lengths| narrow("updateLengths", &lengths)).transpose()?;
                let write = match update_lengths {
                    None => operator.prepare(element, &cache.shape, &update.shape),
                    Some(_) => operator.prepare_packed(element, &cache.shape, &update.shape),
                };
                let indices = IndexInputs::KvCacheUpdate { write_indices, update_lengths };
                Ok(PreparedCall { write: write.map_err(hinted)?, indices, lengths })
            }
            Self::KvCacheOperation(options) => {
                let write =
                    options.operator().prepare(element, &cache.shape, &update.shape).map_err(hinted)?;
                let types = ascend::KvCacheOperation::INDEX_TYPES;
                let int32 = |indices: &Indices, argument| narrow(argument, &indices.load(argument, types)?);
                let layer_id = int32(&options.layer_id, "layerId")?;
                let token_offset = int32(&options.token_offset, "tokenOffset")?;
                let seq_len = int32(&options.seq_len, "seqLen")?;
                let indices = IndexInputs::KvCacheOperation { layer_id, token_offset, seq_len };
                Ok(PreparedCall { write, indices, lengths: options.extensions.lengths()? })
            }
        }
    }

    /// Returns whether a cache contains several layers.
    pub(crate) fn has_layers(&self) -> bool {
        matches!(self, Self::KvCacheOperation(_))
    }

    /// Returns whether the cache is linear or a ring.
    pub(crate) fn mode(&self) -> Mode {
        match self {
            Self::TensorScatter(options) => options.mode,
            Self::KvCacheUpdate(_) | Self::KvCacheOperation(_) => Mode::Linear,
        }
    }

    /// Returns the files that the indices are read from.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let indices = match self {
            Self::TensorScatter(options) => {
                [options.write_indices.as_ref(), options.extensions.lengths.as_ref(), None, None]
            }
            Self::KvCacheUpdate(options) => [
                Some(&options.write_indices),
                options.update_lengths.as_ref(),
                options.extensions.lengths.as_ref(),
                None,
            ],
            Self::KvCacheOperation(options) => [
                Some(&options.layer_id),
                Some(&options.token_offset),
                Some(&options.seq_len),
                options.extensions.lengths.as_ref(),
            ],
        };
        indices.into_iter().flatten().filter_map(Indices::path)
    }

    /// Adds to a broken rule the option that the user has most likely forgotten.
    fn hinted(&self, rule: kvscatter::Error, cache: &Described, update: &Described) -> CommandError {
        let hint = match (self, rule.details().kind) {
            (Self::TensorScatter(options), ErrorKind::AxisIsBatch)
                if cache.shape.len() == 2 && options.axis == onnx::TensorScatter::DEFAULT_AXIS =>
            {
                "give --axis 1".to_owned()
            }
            (Self::KvCacheUpdate(options), ErrorKind::Rank)
                if update.shape.len() == 3 && options.update_lengths.is_none() =>
            {
                "a packed update [tokens, heads, head size] needs --update-lengths".to_owned()
            }
            _ => return rule.into(),
        };
        CommandError::Hinted { rule, hint }
    }

    fn update_argument(&self) -> Argument {
        match self {
            Self::TensorScatter(_) | Self::KvCacheUpdate(_) => Argument::Update,
            Self::KvCacheOperation(_) => Argument::NewKv,
        }
    }
}

impl PreparedCall {
    /// Plans the write.
    pub(crate) fn plan(&self) -> Result<WritePlan<'_>, kvscatter::Error> {
        let lengths = Lengths::from(self.lengths.as_ref());
        match &self.indices {
            IndexInputs::TensorScatter { write_indices } => {
                self.write.plan_with_lengths(write_indices.as_ref(), lengths)
            }
            IndexInputs::KvCacheUpdate { write_indices, update_lengths: None } => {
                self.write.plan_with_lengths(write_indices, lengths)
            }
            IndexInputs::KvCacheUpdate { write_indices, update_lengths: Some(update_lengths) } => {
                self.write.plan_with_lengths(PackedCall::new(write_indices, update_lengths), lengths)
            }
            IndexInputs::KvCacheOperation { layer_id, token_offset, seq_len } => {
                let call = KvCacheOperationCall { layer_id, token_offset, seq_len };
                self.write.plan_with_lengths(call, lengths)
            }
        }
    }
}

impl TensorScatter {
    fn operator(&self) -> onnx::TensorScatter {
        onnx::TensorScatter::new()
            .axis(self.axis)
            .mode(self.mode)
            .out_of_range(self.extensions.out_of_range.into())
            .negative_index(match self.negative_index {
                NegativeIndex::Modulo => kvscatter::NegativeIndex::Modulo,
                NegativeIndex::Reject => kvscatter::NegativeIndex::Reject,
            })
    }
}

impl KvCacheUpdate {
    fn operator(&self) -> tensorrt::KvCacheUpdate {
        // The parser takes only this mode.
        let CacheMode::Linear = self.cache_mode;
        tensorrt::KvCacheUpdate::new().out_of_range(self.extensions.out_of_range.into())
    }
}

impl KvCacheOperation {
    fn operator(&self) -> ascend::KvCacheOperation {
        ascend::KvCacheOperation::new().out_of_range(self.extensions.out_of_range.into())
    }
}

impl Extensions {
    fn lengths(&self) -> Result<Option<Vec<i64>>, CommandError> {
        load(&self.lengths, "lengths", &[ElementType::Int32, ElementType::Int64])
    }
}

impl From<OutOfRange> for kvscatter::OutOfRange {
    fn from(policy: OutOfRange) -> Self {
        match policy {
            OutOfRange::Error => Self::Error,
            OutOfRange::SkipSample => Self::SkipSample,
        }
    }
}

fn load(
    indices: &Option<Indices>,
    argument: &'static str,
    accepted: &[ElementType],
) -> Result<Option<Vec<i64>>, CommandError> {
    indices.as_ref().map(|indices| indices.load(argument, accepted)).transpose()
}

/// Converts to the int32 of the specification. A list on the command line may have larger values.
fn narrow(argument: &'static str, values: &[i64]) -> Result<Vec<i32>, CommandError> {
    values
        .iter()
        .enumerate()
        .map(|(index, &value)| {
            i32::try_from(value).map_err(|_| CommandError::NotInt32 { argument, index, value })
        })
        .collect()
}
