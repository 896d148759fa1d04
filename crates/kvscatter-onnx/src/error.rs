//! Everything that can go wrong with an ONNX file or its evaluation.

mod kind;

use std::path::PathBuf;

use kvscatter::ElementType;

use crate::convert::ConvertRefusal;
use crate::dynamic_dim::{DynamicDim, DynamicDims};
use crate::eval::NotInPlace;
use crate::{FoldError, NodeLabel, TensorError};

/// Why a file, a model or its evaluation was refused.
///
/// Three variants say where: [`InFile`](Self::InFile), [`InTensor`](Self::InTensor) and [`InNode`](Self::InNode)
/// wrap what went wrong there; [`root`](Self::root) skips them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum OnnxError {
    /// Something is wrong with this file.
    #[error("{}: {cause}", path.display())]
    InFile { path: PathBuf, cause: Box<OnnxError> },
    /// Something is wrong with this tensor.
    #[error("tensor {name:?}: {cause}")]
    InTensor { name: String, cause: Box<OnnxError> },
    /// Something is wrong with this node.
    #[error("{node}: {cause}")]
    InNode { node: Box<NodeLabel>, cause: Box<OnnxError> },

    // Files.
    /// The operating system refused.
    #[error(transparent)]
    Io(std::io::Error),
    /// A folder, a pipe, a device or a socket where a file must be.
    #[error("not a regular file")]
    NotRegularFile,
    /// The file is larger than what may be read.
    #[error("{size} bytes, at most {limit} are read")]
    FileTooLarge { size: u64, limit: u64 },
    /// The file became shorter while it was read.
    #[error("{got} bytes could be read, there were {expected}: the file changed meanwhile")]
    FileShrank { expected: u64, got: u64 },
    /// The bytes are not such a protobuf message.
    #[error("not a {message}: {cause}")]
    Decode { message: &'static str, cause: buffa::DecodeError },
    /// The message is too large for protobuf.
    #[error("cannot write the {message}: {cause}")]
    Encode { message: &'static str, cause: buffa::EncodeError },
    /// An output of this name would replace what is read.
    #[error("is the model that is read or holds its values, and no input is overwritten")]
    OverInput,
    /// The output would replace a file of another kind.
    #[error("exists and is not an {kind} file: give another name, or remove it first")]
    OtherKind { kind: &'static str },
    /// Another file has the path that a file of values would get.
    #[error("is there already with other contents, and the model's values would lie there")]
    DataFileDiffers,
    /// A model and its values would get the same path.
    #[error("the model's values would lie there, and so would the model: give it another name")]
    DataFileIsModel,

    // Tensors.
    /// The values do not make a tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// `data_type` is absent or `UNDEFINED`.
    #[error("data_type is undefined")]
    UndefinedType,
    /// A type that `TensorScatter` does not have.
    #[error("data_type {code} is none of TensorScatter's 24 types")]
    UnsupportedType { code: i32 },
    /// A negative dimension.
    #[error("dims[{axis}] = {dim} is negative")]
    NegativeDim { axis: usize, dim: i64 },
    /// `segment` is set: this is a part of a tensor.
    #[error("segment is set: tensors stored in parts are not supported")]
    Segment,
    /// Values are stored twice.
    #[error("both {first} and {second} are present")]
    TwoFields { first: &'static str, second: &'static str },
    /// Values are stored where this type's values never are.
    #[error("{element} is stored in {expected}, not in {field}")]
    WrongField { element: ElementType, field: &'static str, expected: &'static str },
    /// A typed field holds fewer or more entries than the shape asks for.
    #[error("shape {shape:?} of {element} takes {expected} entries in {field}, got {got}")]
    EntryCount { element: ElementType, shape: Vec<usize>, field: &'static str, expected: usize, got: usize },
    /// An entry of a typed field that is no value of the type.
    #[error("{field}[{index}] = {value} is no {element}")]
    EntryRange { element: ElementType, field: &'static str, index: usize, value: i128 },

    /// The exported decoder ends before the cache would.
    #[error("the exported decoder cannot hold {tokens} tokens: {cause}")]
    Capacity { tokens: usize, cause: Box<OnnxError> },
    /// A decoder that cannot be given a static cache.
    #[error(transparent)]
    Convert(#[from] ConvertRefusal),

    // External data.
    /// External data, where there is no folder to look for it.
    #[error("external data in {location:?}, but it came without a folder to find it in")]
    ExternalWithoutFolder { location: String },
    /// Strings cannot be stored outside.
    #[error("strings cannot be external data")]
    ExternalStrings,
    /// `external_data` has no `location`.
    #[error("external data without a location")]
    ExternalLocationMissing,
    /// A key of `external_data` twice.
    #[error("external data gives {key:?} twice")]
    ExternalKeyTwice { key: String },
    /// `offset` or `length` is no number.
    #[error("external data's {key} = {value:?} is not a whole number of bytes")]
    ExternalNumber { key: &'static str, value: String },
    /// The location is absolute, contains `..`, or leads out through a symbolic link.
    #[error(
        "external data's location {location:?} {}",
        if *.is_link {
            "is a link that leads out of the model's folder: copy the folder with what its links lead to (cp -rL)"
        } else {
            "leads out of the model's folder"
        }
    )]
    ExternalEscape { location: String, is_link: bool },
    /// `length` is not what the shape takes.
    #[error("external data's length = {got}, the shape takes {expected} bytes")]
    ExternalLength { expected: u64, got: u64 },
    /// The bytes are not in the file.
    #[error("external data's bytes {offset}..{offset} + {length} are not in {location:?} of {size} bytes")]
    ExternalRange { location: String, offset: u64, length: u64, size: u64 },
    /// The file is not the one that was meant.
    #[error("external data's checksum is {expected}, the SHA1 of {location:?} is {got}")]
    ExternalChecksum { location: String, expected: String, got: String },
    /// Reading on would pass the limit on all external data together.
    #[error("external data of {wanted} bytes, {left} of the limit are left")]
    ExternalLimit { wanted: u64, left: u64 },

    // Models.
    /// An engine reads a model from its file, but no file contains this model.
    #[error("the model was made in memory or changed since it was read: save it, and load that file")]
    NotAsRead,
    /// The bytes are a model, and not an ONNX one.
    #[error("a file in {format} format, not an ONNX model")]
    OtherFormat { format: &'static str },
    /// The model has no graph.
    #[error("the model has no graph")]
    GraphMissing,
    /// A domain's operator set is imported twice.
    #[error("opset_import names domain {domain:?} twice")]
    OpsetTwice { domain: String },
    /// A domain's operator set is used and not imported.
    #[error("opset_import does not name domain {domain:?}")]
    OpsetMissing { domain: String },
    /// Two values of one name.
    #[error("the name {name:?} is given to two values")]
    DuplicateName { name: String },
    /// An input, output or initializer without a name.
    #[error("{what} {index} has no name")]
    NameMissing { what: &'static str, index: usize },
    /// A name is too long to be repeated in reports.
    #[error("{what} {index} has a name of {bytes} bytes: the limit is {limit}")]
    NameTooLong { what: &'static str, index: usize, bytes: usize, limit: usize },
    /// Nothing produces this value.
    #[error("{name:?} is not an input, an initializer or an output of a node")]
    ValueMissing { name: String },
    /// The value is produced by a later node.
    #[error("{name:?} is used before {producer} produces it")]
    NodeOrder { name: String, producer: Box<NodeLabel> },
    /// The node's output leads back to its input.
    #[error("the graph has a cycle through this node")]
    Cycle,
    /// A constant of another type.
    #[error("{element} is none of float, double, float16 and bfloat16")]
    NotAFloat { element: ElementType },
    /// A graph input or output without a type.
    #[error("{name:?} has no type")]
    TypeMissing { name: String },
    /// A graph input or output that is not a tensor.
    #[error("{name:?} is a {kind}: only dense tensors are supported")]
    NotATensor { name: String, kind: &'static str },

    // Nodes that are not evaluated.
    /// No such operator here.
    #[error("this operator cannot be evaluated; TensorScatter, Identity, Constant and Add can")]
    UnsupportedOperator,
    /// The operator is a function of the model.
    #[error("a function defined in the model cannot be evaluated")]
    Function,
    /// The operator set is older than the form of the operator that is known here.
    #[error("version {version} of the operator set is too old, {min} is the least")]
    OpsetTooOld { version: i64, min: i64 },
    /// The operator set is newer than any that is known here.
    #[error("version {version} of the operator set is unknown, {max} is the newest")]
    OpsetTooNew { version: i64, max: i64 },
    /// No operator set of the default domain up to this version has it, or it was deprecated.
    #[error("version {version} of the operator set has no such operator")]
    OperatorUnknown { version: i64 },
    /// The operator means something else in a newer operator set, and nothing there means what it meant.
    #[error("the operator changed between versions {from} and {to} of its set: {what}")]
    OperatorChanged { from: i64, to: i64, what: &'static str },
    /// There is nothing to be replaced.
    #[error("the model has no TensorScatter")]
    NothingToLower,
    /// Bodies of `If`, `Loop` and the like are not looked into any further.
    #[error("a TensorScatter in the body of a node cannot be lowered")]
    ScatterNested,
    /// Functions would have to be inlined first.
    #[error("a TensorScatter in function {name:?} cannot be lowered: inline the model's functions first")]
    ScatterInFunction { name: String },
    /// No shape is declared for past, present or update.
    #[error("the rank of the cache is declared nowhere: run onnx's shape inference first")]
    RankUnknown,
    /// `TensorScatter` has more types than the operators it is lowered to.
    #[error("{element} cannot be lowered: ScatterElements and ScatterND have no such type")]
    LowerType { element: ElementType },
    /// Too few or too many inputs.
    #[error("{got} inputs, {min} to {max} are possible")]
    InputCount { min: usize, max: usize, got: usize },
    /// Too few or too many outputs.
    #[error("{got} outputs, exactly 1 is possible")]
    OutputCount { got: usize },
    /// An input that is not optional is absent.
    #[error("input {index} is absent")]
    InputAbsent { index: usize },
    /// An attribute that the operator does not have.
    #[error("attribute {name:?} is unknown")]
    AttributeUnknown { name: String },
    /// An attribute twice.
    #[error("attribute {name:?} is given twice")]
    AttributeTwice { name: String },
    /// An attribute of the wrong type, or a reference where there is no function.
    #[error("attribute {name:?} is not of type {expected}")]
    AttributeType { name: String, expected: &'static str },
    /// A mode that does not exist.
    #[error("mode = {mode:?}: only linear and circular exist")]
    Mode { mode: String },
    /// Not exactly one value.
    #[error("{got} attributes, a Constant has exactly 1")]
    ConstantAttributes { got: usize },
    /// A sparse tensor.
    #[error("{name:?} is sparse: only dense tensors are supported")]
    Sparse { name: String },

    // Types and shapes during evaluation.
    /// The operator's own rules are broken.
    #[error(transparent)]
    Operator(#[from] kvscatter::Error),
    /// A sum of anything but integers of 8 to 64 bits.
    #[error("a sum of {element}: only integers of 8 to 64 bits are added")]
    AddType { element: ElementType },
    /// A sum of two types.
    #[error("the operands are {left} and {right}: they must agree")]
    AddTypes { left: ElementType, right: ElementType },
    /// Shapes that do not broadcast.
    #[error("shapes {left:?} and {right:?} do not broadcast")]
    Broadcast { left: Vec<usize>, right: Vec<usize> },
    /// More memory is needed than is allowed; nothing was computed.
    #[error("{needed} bytes of values would be allocated, the limit is {limit}")]
    MemoryLimit { needed: u64, limit: u64 },
    /// The caller demanded a write in place, which is impossible.
    #[error("cannot write in place: {reason}")]
    NotInPlace { reason: Box<NotInPlace> },
    /// More dimensions than any value may have here.
    #[error("{name:?} has rank {rank}, at most {limit} is possible")]
    RankTooLarge { name: String, rank: usize, limit: usize },
    /// A graph input without a value.
    #[error("input {name:?} is not given")]
    InputMissing { name: String },
    /// A value for something that is not a graph input.
    #[error("{name:?} is not an input of the graph")]
    InputUnknown { name: String },
    /// A value of another type than the graph declares.
    #[error("{name:?} is {got}, the graph declares {expected}")]
    ValueType { name: String, expected: ElementType, got: ElementType },
    /// A value of another rank than the graph declares.
    #[error("{name:?} has rank {got}, the graph declares {expected}")]
    ValueRank { name: String, expected: usize, got: usize },
    /// A value with another dimension than the graph declares.
    #[error("{name:?} has dimension {axis} = {got}, the graph declares {expected}")]
    ValueDim { name: String, axis: usize, expected: usize, got: usize },
    /// One symbolic dimension with two sizes.
    #[error("{name:?} has dimension {axis} ({symbol:?}) = {got}, elsewhere {symbol:?} = {expected}")]
    SymbolConflict { name: String, axis: usize, symbol: String, expected: usize, got: usize },

    /// What a graph computes on a probe cannot be known.
    #[error(transparent)]
    Fold(#[from] FoldError),

    // Generated inputs.
    /// Inputs cannot be generated without a rank.
    #[error("input {name:?} declares no shape: give its values")]
    ShapeUnknown { name: String },
    /// All dimensions whose sizes are not given.
    #[error("the size of {} is open: give it", DynamicDims(open))]
    DimsMissing { open: Vec<DynamicDim> },
    /// A dimension that no input has.
    #[error("no input has a dimension {dim:?} whose size is open")]
    DimUnused { dim: String },
    /// The update is longer than the cache, or a constant offset leads out of it.
    #[error("no value of input {name:?} makes every write_indices it feeds valid")]
    NoValidIndices { name: String },

    // Decoders.
    /// Nothing that goes in comes out with rows written.
    #[error("no cache: no output is an input with rows written to it")]
    CacheNone,
    /// An input that is written like a cache, and no output gives it back.
    #[error("{past:?} is not fed back: no output is what this node makes of it")]
    CacheNotFedBack { past: String },
    /// An output that is written like a cache, and no input is what it was before.
    #[error("{present:?} is written like a cache, and no input is its past")]
    CacheNotFed { present: String },
    /// A cache whose rank is not known.
    #[error("cache {name:?} declares no shape")]
    CacheShapeMissing { name: String },
    /// A cache of a rank that its writer cannot write.
    #[error("cache {name:?} has {rank} dimensions, must have {expected}")]
    CacheRank { name: String, rank: usize, expected: &'static str },
    /// Rows are joined to past, and present is declared to be no longer.
    #[error("{past:?} and {present:?} both have dimension {axis} = {size}, though rows are joined to it")]
    CacheDoesNotGrow { past: String, present: String, axis: usize, size: String },
    /// One size is declared as two.
    #[error(
        "{first:?} has dimension {first_axis} = {first_size}, {second:?} has dimension {second_axis} = \
         {second_size}: they must be equal"
    )]
    DimsDiffer {
        first: String,
        first_axis: usize,
        first_size: usize,
        second: String,
        second_axis: usize,
        second_size: usize,
    },

    // Test directories.
    /// A link leads out of the folder that was named; test directories are only read inside it.
    #[error("is a link that leads out of the folder: it is not followed")]
    LinkLeadsOut,
    /// `input_0.pb, input_2.pb`: a number is left out.
    #[error("{missing} is missing among {folder:?}'s files")]
    TestFileMissing { folder: PathBuf, missing: String },
    /// More files than the graph has inputs or outputs.
    #[error("{got} {what} files, the graph has {expected}")]
    TestFileCount { what: &'static str, expected: usize, got: usize },
}

impl OnnxError {
    /// What went wrong, without where.
    #[must_use]
    pub fn root(&self) -> &Self {
        let mut error = self;
        while let Self::InFile { cause, .. } | Self::InTensor { cause, .. } | Self::InNode { cause, .. } =
            error
        {
            error = cause;
        }
        error
    }

    /// Returns the root cause, for a caller that names the file, tensor or node itself.
    pub(crate) fn into_root(self) -> Self {
        match self {
            Self::InFile { cause, .. } | Self::InTensor { cause, .. } | Self::InNode { cause, .. } => {
                cause.into_root()
            }
            error => error,
        }
    }

    pub(crate) fn in_file(self, path: impl Into<PathBuf>) -> Self {
        Self::InFile { path: path.into(), cause: Box::new(self) }
    }

    pub(crate) fn in_tensor(self, name: &str) -> Self {
        Self::InTensor { name: name.to_owned(), cause: Box::new(self) }
    }
}
