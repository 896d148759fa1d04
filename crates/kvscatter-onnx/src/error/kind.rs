//! The stable names of errors.

use super::OnnxError;

impl OnnxError {
    /// Returns the stable name of the [`root`](Self::root) cause, such as `input_missing`.
    ///
    /// The name keeps its meaning in later versions, even if the variant gets a new name.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::InFile { cause, .. } | Self::InTensor { cause, .. } | Self::InNode { cause, .. } => {
                cause.kind()
            }
            Self::Io(_) => "io",
            Self::NotRegularFile => "not_regular_file",
            Self::ModelFolder { .. } => "model_folder",
            Self::Folder(_) => "folder",
            Self::NotConverted { .. } => "not_converted",
            Self::NotKept { .. } => "not_kept",
            Self::NoCacheFolder => "no_cache_folder",
            Self::FileTooLarge { .. } => "file_too_large",
            Self::FileShrank { .. } => "file_shrank",
            Self::FileChanged => "file_changed",
            Self::Decode { .. } => "decode",
            Self::Encode { .. } => "encode",
            Self::OverInput => "over_input",
            Self::OtherKind { .. } => "other_kind",
            Self::DataFileDiffers => "data_file_differs",
            Self::DataFileIsModel => "data_file_is_model",
            Self::Tensor(_) => "tensor",
            Self::UndefinedType => "undefined_type",
            Self::UnsupportedType { .. } => "unsupported_type",
            Self::NegativeDim { .. } => "negative_dim",
            Self::Segment => "segment",
            Self::TwoFields { .. } => "two_fields",
            Self::WrongField { .. } => "wrong_field",
            Self::EntryCount { .. } => "entry_count",
            Self::EntryRange { .. } => "entry_range",
            Self::Capacity { .. } => "capacity",
            Self::Convert(_) => "convert",
            Self::NoStandardForm(_) => "no_standard_form",
            Self::ExternalWithoutFolder { .. } => "external_without_folder",
            Self::ExternalStrings => "external_strings",
            Self::ExternalLocationMissing => "external_location_missing",
            Self::ExternalKeyTwice { .. } => "external_key_twice",
            Self::ExternalNumber { .. } => "external_number",
            Self::ExternalEscape { .. } => "external_escape",
            Self::ExternalLength { .. } => "external_length",
            Self::ExternalRange { .. } => "external_range",
            Self::ExternalChecksum { .. } => "external_checksum",
            Self::ExternalLimit { .. } => "external_limit",
            Self::NotAsRead => "not_as_read",
            Self::OtherFormat { .. } => "other_format",
            Self::GraphMissing => "graph_missing",
            Self::OpsetTwice { .. } => "opset_twice",
            Self::OpsetMissing { .. } => "opset_missing",
            Self::DuplicateName { .. } => "duplicate_name",
            Self::MergedTwice { .. } => "merged_twice",
            Self::NameMissing { .. } => "name_missing",
            Self::NameTooLong { .. } => "name_too_long",
            Self::ValueMissing { .. } => "value_missing",
            Self::NodeOrder { .. } => "node_order",
            Self::Cycle => "cycle",
            Self::NotAFloat { .. } => "not_a_float",
            Self::TypeMissing { .. } => "type_missing",
            Self::NotATensor { .. } => "not_a_tensor",
            Self::UnsupportedOperator => "unsupported_operator",
            Self::Function => "function",
            Self::OpsetTooOld { .. } => "opset_too_old",
            Self::OpsetTooNew { .. } => "opset_too_new",
            Self::OperatorUnknown { .. } => "operator_unknown",
            Self::OperatorChanged { .. } => "operator_changed",
            Self::NothingToLower => "nothing_to_lower",
            Self::ScatterNested => "scatter_nested",
            Self::ScatterInFunction { .. } => "scatter_in_function",
            Self::RankUnknown => "rank_unknown",
            Self::LowerType { .. } => "lower_type",
            Self::IndexNodes { .. } => "index_nodes",
            Self::InputCount { .. } => "input_count",
            Self::OutputCount { .. } => "output_count",
            Self::InputAbsent { .. } => "input_absent",
            Self::AttributeUnknown { .. } => "attribute_unknown",
            Self::AttributeTwice { .. } => "attribute_twice",
            Self::AttributeType { .. } => "attribute_type",
            Self::Mode { .. } => "mode",
            Self::ConstantAttributes { .. } => "constant_attributes",
            Self::Sparse { .. } => "sparse",
            Self::Operator(_) => "operator",
            Self::AddType { .. } => "add_type",
            Self::AddTypes { .. } => "add_types",
            Self::Broadcast { .. } => "broadcast",
            Self::MemoryLimit { .. } => "memory_limit",
            Self::NotInPlace { .. } => "not_in_place",
            Self::RankTooLarge { .. } => "rank_too_large",
            Self::InputMissing { .. } => "input_missing",
            Self::InputUnknown { .. } => "input_unknown",
            Self::ValueType { .. } => "value_type",
            Self::ValueRank { .. } => "value_rank",
            Self::ValueDim { .. } => "value_dim",
            Self::SymbolConflict { .. } => "symbol_conflict",
            Self::Fold(_) => "fold",
            Self::ShapeUnknown { .. } => "shape_unknown",
            Self::DimsMissing { .. } => "dims_missing",
            Self::DimUnused { .. } => "dim_unused",
            Self::NoValidIndices { .. } => "no_valid_indices",
            Self::CacheNone => "cache_none",
            Self::CacheNotFedBack { .. } => "cache_not_fed_back",
            Self::CacheNotFed { .. } => "cache_not_fed",
            Self::CacheShapeMissing { .. } => "cache_shape_missing",
            Self::CacheRank { .. } => "cache_rank",
            Self::CacheDoesNotGrow { .. } => "cache_does_not_grow",
            Self::DimsDiffer { .. } => "dims_differ",
            Self::LinkLeadsOut => "link_leads_out",
            Self::TestFileMissing { .. } => "test_file_missing",
            Self::TestFileCount { .. } => "test_file_count",
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::OnnxError;

    #[test]
    fn names_are_stable() {
        let name = || "x".to_owned();
        let element = kvscatter::ElementType::Float32;
        let named = [
            (OnnxError::Io(std::io::ErrorKind::NotFound.into()), "io"),
            (OnnxError::UndefinedType, "undefined_type"),
            (OnnxError::ExternalWithoutFolder { location: name() }, "external_without_folder"),
            (OnnxError::ExternalEscape { location: name(), is_link: false }, "external_escape"),
            (OnnxError::GraphMissing, "graph_missing"),
            (OnnxError::UnsupportedOperator, "unsupported_operator"),
            (OnnxError::OpsetTooOld { version: 23, min: 24 }, "opset_too_old"),
            (OnnxError::Mode { mode: name() }, "mode"),
            (OnnxError::Operator(kvscatter::Error::UnknownMode), "operator"),
            (OnnxError::MemoryLimit { needed: 2, limit: 1 }, "memory_limit"),
            (OnnxError::InputCount { min: 2, max: 3, got: 1 }, "input_count"),
            (OnnxError::InputMissing { name: name() }, "input_missing"),
            (OnnxError::InputUnknown { name: name() }, "input_unknown"),
            (OnnxError::ValueType { name: name(), expected: element, got: element }, "value_type"),
            (OnnxError::ValueRank { name: name(), expected: 1, got: 2 }, "value_rank"),
            (OnnxError::ValueDim { name: name(), axis: 0, expected: 1, got: 2 }, "value_dim"),
            (
                OnnxError::SymbolConflict { name: name(), axis: 0, symbol: name(), expected: 1, got: 2 },
                "symbol_conflict",
            ),
        ];
        for (error, name) in named {
            assert_eq!(error.kind(), name, "{error:?}");
            assert_eq!(
                error.in_tensor("x").in_file("x.onnx").kind(),
                name,
                "where it happened is no part of it"
            );
        }
    }
}
