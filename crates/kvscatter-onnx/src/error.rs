//! Errors of reading, evaluating and converting ONNX files.

use std::path::PathBuf;

use crate::text::names::one_line;
use kvscatter::ElementType;

use crate::convert::ConvertRefusal;
use crate::dynamic_dim::{DynamicDim, DynamicDims};
use crate::eval::NotInPlace;
use crate::source::FolderError;
use crate::standard::NoStandardForm;
use crate::{FoldError, NodeLabel, TensorError};

/// An error about a file, a model or its evaluation.
///
/// Three variants contain the place of an error and wrap its cause: [`InFile`](Self::InFile),
/// [`InTensor`](Self::InTensor) and [`InNode`](Self::InNode). [`root`](Self::root) returns that cause.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum OnnxError {
    /// An error in this file.
    #[error("{}: {cause}", one_line(&path.to_string_lossy()))]
    InFile { path: PathBuf, cause: Box<OnnxError> },
    /// An error in this tensor.
    #[error("tensor {name:?}: {cause}")]
    InTensor { name: String, cause: Box<OnnxError> },
    /// An error in this node. The cause names another node if the node is a function of the model.
    #[error("{node}: {}{cause}", if matches!(**cause, Self::InNode { .. }) { "in this function, " } else { "" })]
    InNode { node: Box<NodeLabel>, cause: Box<OnnxError> },

    // Files.
    /// The operating system returned an error.
    #[error(transparent)]
    Io(std::io::Error),
    /// The path leads to a folder, a pipe, a device or a socket.
    #[error("not a regular file")]
    NotRegularFile,
    /// The path of a model leads to a folder. `has_model` is true if the folder contains `model.onnx`.
    #[error("a folder: pass the path of {} in it", if *has_model { "model.onnx" } else { "a model's file" })]
    ModelFolder { has_model: bool },
    /// The folder of an export contains no decoder, or several.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The caches of the decoder grow, and it cannot be converted.
    #[error("its caches cannot be made static: {cause}")]
    NotConverted { cause: Box<OnnxError> },
    /// The conversion of a model cannot be kept in this folder.
    #[error("cannot keep the converted model in {}: {cause}", one_line(&folder.to_string_lossy()))]
    NotKept { folder: PathBuf, cause: Box<OnnxError> },
    /// No folder for conversions is known.
    #[error("no folder for conversions is known, as neither KVSCATTER_CACHE, XDG_CACHE_HOME nor HOME is set")]
    NoCacheFolder,
    /// The file is larger than the limit for reading it.
    #[error("{size} bytes exceed the limit of {limit}")]
    FileTooLarge { size: u64, limit: u64 },
    /// The file became shorter while it was read.
    #[error("read {got} bytes of {expected}: the file changed while it was read")]
    FileShrank { expected: u64, got: u64 },
    /// The file is not the one that was there when the model was read, or its length or a time of change differs.
    #[error("the file has changed since the model was read")]
    FileChanged,
    /// The bytes are not a protobuf message of this type.
    #[error("not a {message}: {cause}")]
    Decode { message: &'static str, cause: crate::proto::DecodeError },
    /// The message takes more bytes than protobuf allows.
    #[error("cannot write the {message}: {bytes} bytes exceed protobuf's limit of 2 GiB")]
    Encode { message: &'static str, bytes: usize },
    /// Writing this output would overwrite a file that is being read.
    #[error("is an input (the model or a file of its values): inputs are not overwritten")]
    OverInput,
    /// The output would replace a file of another kind.
    #[error("exists and is not an {kind} file: give another name, or remove it first")]
    OtherKind { kind: &'static str },
    /// A different file already exists at the path for a file of values.
    #[error("already exists with other contents, and the model's values would be written to it")]
    DataFileDiffers,
    /// The model and its values would be written to the same path.
    #[error("the model and its values would be written to the same file: give the model another name")]
    DataFileIsModel,

    // Tensors.
    /// The values do not make a tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// `data_type` is absent or `UNDEFINED`.
    #[error("data_type is undefined")]
    UndefinedType,
    /// The type of the tensor is not one of the 24 types of `TensorScatter`.
    #[error("data_type {code} is not one of the 24 types that TensorScatter supports")]
    UnsupportedType { code: i32 },
    /// A dimension is negative.
    #[error("dims[{axis}] = {dim} is negative")]
    NegativeDim { axis: usize, dim: i64 },
    /// `segment` is set, so the message contains only a part of a tensor.
    #[error("segment is set: tensors stored in parts are not supported")]
    Segment,
    /// Two fields contain values, but only one may.
    #[error("both {first} and {second} are present")]
    TwoFields { first: &'static str, second: &'static str },
    /// The values are in a field that does not store this type.
    #[error("{element} is stored in {expected}, not in {field}")]
    WrongField { element: ElementType, field: &'static str, expected: &'static str },
    /// The number of entries in a typed field does not match the shape.
    #[error("shape {shape:?} of {element} takes {expected} entries in {field}, got {got}")]
    EntryCount { element: ElementType, shape: Vec<usize>, field: &'static str, expected: usize, got: usize },
    /// An entry of a typed field is not a value of the type.
    #[error("{field}[{index}] = {value} does not fit {element}")]
    EntryRange { element: ElementType, field: &'static str, index: usize, value: i128 },

    /// The exported decoder supports fewer tokens than the converted cache would have slots.
    #[error("the exported decoder does not support {tokens} tokens: {cause}")]
    Capacity { tokens: usize, cause: Box<OnnxError> },
    /// The decoder cannot be converted to a static cache.
    #[error(transparent)]
    Convert(#[from] ConvertRefusal),
    /// An operator of ONNX Runtime cannot be expressed in operators of ONNX.
    #[error(transparent)]
    NoStandardForm(#[from] NoStandardForm),

    // External data.
    /// The tensor has external data, but the folder of the data is not known.
    #[error("external data in {location:?}, but the folder of the data is not known")]
    ExternalWithoutFolder { location: String },
    /// Strings cannot be external data.
    #[error("strings cannot be external data")]
    ExternalStrings,
    /// `external_data` has no `location`.
    #[error("external data without a location")]
    ExternalLocationMissing,
    /// A key of `external_data` occurs twice.
    #[error("external data gives {key:?} twice")]
    ExternalKeyTwice { key: String },
    /// `offset` or `length` is not a number.
    #[error("external data's {key} = {value:?} is not a whole number of bytes")]
    ExternalNumber { key: &'static str, value: String },
    /// The location is absolute, contains `..`, or is a symbolic link that leads out of the folder.
    #[error(
        "external data's location {location:?} {}",
        if *.is_link {
            "is a link that leads out of the model's folder: copy the folder with its link targets (cp -rL)"
        } else {
            "leads out of the model's folder"
        }
    )]
    ExternalEscape { location: String, is_link: bool },
    /// `length` does not match the shape.
    #[error("external data's length = {got}, the shape takes {expected} bytes")]
    ExternalLength { expected: u64, got: u64 },
    /// The file does not contain all of the bytes.
    #[error("external data's bytes {offset}..{offset} + {length} are not in {location:?} of {size} bytes")]
    ExternalRange { location: String, offset: u64, length: u64, size: u64 },
    /// The file's checksum does not match.
    #[error("external data's checksum is {expected}, the SHA1 of {location:?} is {got}")]
    ExternalChecksum { location: String, expected: String, got: String },
    /// Reading this tensor would exceed the limit on all external data together.
    #[error("external data of {wanted} bytes exceeds the {left} bytes left of the limit")]
    ExternalLimit { wanted: u64, left: u64 },

    // Models.
    /// The model was changed or created in memory, but an engine reads a model from its file.
    #[error("the model was made in memory or changed since it was read: save it, and load that file")]
    NotAsRead,
    /// The bytes are a model of another format.
    #[error("a file in {format} format, not an ONNX model")]
    OtherFormat { format: &'static str },
    /// The model has no graph.
    #[error("the model has no graph")]
    GraphMissing,
    /// The model imports the operator set of a domain twice.
    #[error("opset_import names domain {domain:?} twice")]
    OpsetTwice { domain: String },
    /// The model uses the operator set of a domain but does not import it.
    #[error("opset_import does not name domain {domain:?}")]
    OpsetMissing { domain: String },
    /// Two values have the same name.
    #[error("two values have the name {name:?}")]
    DuplicateName { name: String },
    /// An input, output or initializer has no name.
    #[error("{what} {index} has no name")]
    NameMissing { what: &'static str, index: usize },
    /// A name is too long. Names have a limit because reports repeat them.
    #[error("{what} {index} has a name of {bytes} bytes: the limit is {limit}")]
    NameTooLong { what: &'static str, index: usize, bytes: usize, limit: usize },
    /// No input, initializer or node produces this value.
    #[error("{name:?} is not an input, an initializer or an output of a node")]
    ValueMissing { name: String },
    /// A later node produces the value.
    #[error("{name:?} is used before {producer} produces it")]
    NodeOrder { name: String, producer: Box<NodeLabel> },
    /// The output of the node leads back to its input.
    #[error("the graph has a cycle through this node")]
    Cycle,
    /// The element type of a constant is not float, double, float16 or bfloat16.
    #[error("{element} is not float, double, float16 or bfloat16")]
    NotAFloat { element: ElementType },
    /// A graph input or output has no type.
    #[error("{name:?} has no type")]
    TypeMissing { name: String },
    /// A graph input or output is not a tensor.
    #[error("{name:?} is a {kind}: only dense tensors are supported")]
    NotATensor { name: String, kind: &'static str },

    /// Both branches of a merged decoder are decoders with a past.
    #[error("both branches for input {condition:?} are decoders with a past: only one may be")]
    MergedTwice { condition: String },

    // Nodes that are not evaluated.
    /// The evaluator does not support this operator.
    #[error("this operator cannot be evaluated; TensorScatter, Identity, Constant and Add can")]
    UnsupportedOperator,
    /// The operator is a function of the model.
    #[error("a function defined in the model cannot be evaluated")]
    Function,
    /// The operator set is older than the oldest supported one.
    #[error("version {version} of the operator set is too old: {min} is the oldest supported")]
    OpsetTooOld { version: i64, min: i64 },
    /// The operator set is newer than the newest supported one.
    #[error("version {version} of the operator set is unknown: {max} is the newest supported")]
    OpsetTooNew { version: i64, max: i64 },
    /// No operator set of the default domain up to this version has the operator, or the operator is
    /// deprecated.
    #[error("version {version} of the operator set has no such operator")]
    OperatorUnknown { version: i64 },
    /// The operator changed its meaning, and the newer operator set cannot express the old one.
    #[error("the operator changed between versions {from} and {to} of its set: {what}")]
    OperatorChanged { from: i64, to: i64, what: &'static str },
    /// The model has no `TensorScatter`.
    #[error("the model has no TensorScatter")]
    NothingToLower,
    /// A `TensorScatter` is in the body of an `If`, `Loop` or similar node. Such nodes are not lowered.
    #[error("a TensorScatter in the body of a node cannot be lowered")]
    ScatterNested,
    /// A `TensorScatter` is in a function of the model. The function must be inlined first.
    #[error("a TensorScatter in function {name:?} cannot be lowered: inline the model's functions first")]
    ScatterInFunction { name: String },
    /// No shape is declared for the past, the present or the update.
    #[error("the rank of the cache is not declared: run onnx's shape inference first")]
    RankUnknown,
    /// `ScatterElements` and `ScatterND` do not support this element type, although `TensorScatter` does.
    #[error("{element} cannot be lowered: ScatterElements and ScatterND do not support it")]
    LowerType { element: ElementType },
    /// Too many nodes would compute the indices of lowered caches.
    #[error("the indices of this and the nodes before need more than {limit} nodes")]
    IndexNodes { limit: usize },
    /// The node has too few or too many inputs.
    #[error("{got} inputs, expected {min} to {max}")]
    InputCount { min: usize, max: usize, got: usize },
    /// The node has too few or too many outputs.
    #[error("{got} outputs, expected exactly 1")]
    OutputCount { got: usize },
    /// An input that the operator requires is absent.
    #[error("input {index} is absent")]
    InputAbsent { index: usize },
    /// The operator does not have this attribute.
    #[error("attribute {name:?} is unknown")]
    AttributeUnknown { name: String },
    /// An attribute is given twice.
    #[error("attribute {name:?} is given twice")]
    AttributeTwice { name: String },
    /// An attribute has the wrong type, or refers to a function's attribute outside a function.
    #[error("attribute {name:?} is not of type {expected}")]
    AttributeType { name: String, expected: &'static str },
    /// The mode does not exist.
    #[error("mode = {mode:?}: only linear and circular exist")]
    Mode { mode: String },
    /// A `Constant` does not have exactly one value.
    #[error("{got} attributes, expected exactly 1")]
    ConstantAttributes { got: usize },
    /// A tensor is sparse.
    #[error("{name:?} is sparse: only dense tensors are supported")]
    Sparse { name: String },

    // Types and shapes during evaluation.
    /// The call breaks a rule of the operator.
    #[error(transparent)]
    Operator(#[from] kvscatter::Error),
    /// `Add` got a type other than integers of 8 to 64 bits.
    #[error("a sum of {element}: only integers of 8 to 64 bits are added")]
    AddType { element: ElementType },
    /// `Add` got two different types.
    #[error("the operands are {left} and {right}: they must agree")]
    AddTypes { left: ElementType, right: ElementType },
    /// The shapes do not broadcast.
    #[error("shapes {left:?} and {right:?} do not broadcast")]
    Broadcast { left: Vec<usize>, right: Vec<usize> },
    /// The evaluation needs more memory than the limit. No value was computed.
    #[error("the values need {needed} bytes, which exceeds the limit of {limit}")]
    MemoryLimit { needed: u64, limit: u64 },
    /// The caller requested a write in place, but the graph does not allow it.
    #[error("cannot write in place: {reason}")]
    NotInPlace { reason: Box<NotInPlace> },
    /// A value has more dimensions than the evaluator supports.
    #[error("{name:?} has rank {rank}, at most {limit} is supported")]
    RankTooLarge { name: String, rank: usize, limit: usize },
    /// A graph input has no value.
    #[error("input {name:?} has no value")]
    InputMissing { name: String },
    /// A value was given for a name that is not a graph input.
    #[error("{name:?} is not an input of the graph")]
    InputUnknown { name: String },
    /// The element type of a value differs from the declared one.
    #[error("{name:?} is {got}, the graph declares {expected}")]
    ValueType { name: String, expected: ElementType, got: ElementType },
    /// The rank of a value differs from the declared one.
    #[error("{name:?} has rank {got}, the graph declares {expected}")]
    ValueRank { name: String, expected: usize, got: usize },
    /// A dimension of a value differs from the declared one.
    #[error("{name:?} has dimension {axis} = {got}, the graph declares {expected}")]
    ValueDim { name: String, axis: usize, expected: usize, got: usize },
    /// One symbolic dimension has two sizes.
    #[error("{name:?} has dimension {axis} ({symbol:?}) = {got}, elsewhere {symbol:?} = {expected}")]
    SymbolConflict { name: String, axis: usize, symbol: String, expected: usize, got: usize },

    /// A value that a graph computes cannot be determined from the given values.
    #[error(transparent)]
    Fold(#[from] FoldError),

    // Generated inputs.
    /// An input declares no rank, so its values cannot be generated.
    #[error("input {name:?} declares no shape: give its values")]
    ShapeUnknown { name: String },
    /// Sizes of open dimensions are missing.
    #[error("the size of {} is open: give it", DynamicDims(open))]
    DimsMissing { open: Vec<DynamicDim> },
    /// No input has this open dimension.
    #[error("no input has a dimension {dim:?} whose size is open")]
    DimUnused { dim: String },
    /// No index is valid. The update is longer than the cache, or a constant offset leads out of the cache.
    #[error("no value of input {name:?} makes all write_indices valid that depend on it")]
    NoValidIndices { name: String },

    // Decoders.
    /// No output returns an input with rows written into it, so the model has no cache.
    #[error("no cache: no output returns an input with rows written to it")]
    CacheNone,
    /// An input is written like a cache, but no output returns the result.
    #[error("{past:?} is not fed back: no output returns the result of this node")]
    CacheNotFedBack { past: String },
    /// An output is written like a cache, but no input is its past.
    #[error("{present:?} is written like a cache, but no input is its past")]
    CacheNotFed { present: String },
    /// The rank of a cache is not known.
    #[error("cache {name:?} declares no shape")]
    CacheShapeMissing { name: String },
    /// The writer of a cache does not support the cache's rank.
    #[error("cache {name:?} has {rank} dimensions, must have {expected}")]
    CacheRank { name: String, rank: usize, expected: &'static str },
    /// Rows are appended to the past, but the present is declared to be no longer than the past.
    #[error("{past:?} and {present:?} both have dimension {axis} = {size}, although rows are appended")]
    CacheDoesNotGrow { past: String, present: String, axis: usize, size: String },
    /// Two dimensions that must be equal have different declared sizes.
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
    /// A link leads out of the folder. Files outside the folder are not read.
    #[error("is a link that leads out of the folder: it is not followed")]
    LinkLeadsOut,
    /// The numbers of the files have a gap, as in `input_0.pb, input_2.pb`.
    #[error("{missing} is missing among {folder:?}'s files")]
    TestFileMissing { folder: PathBuf, missing: String },
    /// There are more files than the graph has inputs or outputs.
    #[error("{got} {what} files, but the graph has {expected}")]
    TestFileCount { what: &'static str, expected: usize, got: usize },
}

impl OnnxError {
    /// Returns the cause without the variants that name a file, a tensor or a node.
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

    /// Returns the stable name of the [`root`](Self::root) cause, such as `input_missing`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.root().into()
    }

    /// Converts the error into its root cause, for a caller that names the file, tensor or node itself.
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

#[cfg(test)]
mod tests {
    use strum::VariantNames;

    use super::OnnxError;

    /// The names are an interface: scripts compare them.
    #[test]
    fn names_are_stable() {
        let names = "in_file in_tensor in_node io not_regular_file model_folder folder not_converted not_kept \
            no_cache_folder file_too_large file_shrank file_changed decode encode over_input other_kind \
            data_file_differs data_file_is_model tensor undefined_type unsupported_type negative_dim segment \
            two_fields wrong_field entry_count entry_range capacity convert no_standard_form \
            external_without_folder external_strings external_location_missing external_key_twice \
            external_number external_escape external_length external_range external_checksum external_limit \
            not_as_read other_format graph_missing opset_twice opset_missing duplicate_name name_missing \
            name_too_long value_missing node_order cycle not_a_float type_missing not_a_tensor merged_twice \
            unsupported_operator function opset_too_old opset_too_new operator_unknown operator_changed \
            nothing_to_lower scatter_nested scatter_in_function rank_unknown lower_type index_nodes input_count \
            output_count input_absent attribute_unknown attribute_twice attribute_type mode constant_attributes \
            sparse operator add_type add_types broadcast memory_limit not_in_place rank_too_large input_missing \
            input_unknown value_type value_rank value_dim symbol_conflict fold shape_unknown dims_missing \
            dim_unused no_valid_indices cache_none cache_not_fed_back cache_not_fed cache_shape_missing \
            cache_rank cache_does_not_grow dims_differ link_leads_out test_file_missing test_file_count";
        assert_eq!(OnnxError::VARIANTS.join(" "), names);
        let error = OnnxError::OpsetTooOld { version: 23, min: 24 };
        assert_eq!(error.in_tensor("x").in_file("x.onnx").kind(), "opset_too_old");
    }
}
