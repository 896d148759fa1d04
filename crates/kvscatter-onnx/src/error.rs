//! The error of this crate. Its causes are beside the code that returns them.

use std::any::Any;
use std::path::PathBuf;

use crate::NodeLabel;
use crate::text::names::one_line;

/// An error about a file, a model or its evaluation: a [`Cause`], and the file, tensor and node that it is about.
///
/// [`cause`](Self::cause) returns the cause as the type of its module, such as [`GraphError`](crate::GraphError).
#[derive(Debug, thiserror::Error)]
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
    /// The cause.
    #[error("{0}")]
    Cause(Box<dyn Cause>),
}

/// The cause of an [`OnnxError`].
///
/// Causes are the enums of errors of this crate's modules, [`kvscatter::Error`] and [`std::io::Error`].
pub trait Cause: std::error::Error + Any + Send + Sync {
    /// Returns the stable name of the cause, such as `input_missing`.
    fn kind(&self) -> &'static str;
}

/// Makes an error a [`Cause`] with this function as [`Cause::kind`].
macro_rules! cause {
    ($error:ty, $kind:expr) => {
        impl $crate::error::Cause for $error {
            fn kind(&self) -> &'static str {
                $kind(self)
            }
        }
    };
}
pub(crate) use cause;

cause!(std::io::Error, |_| "io");
cause!(kvscatter::Error, |_| "operator");

impl<C: Cause> From<C> for OnnxError {
    fn from(cause: C) -> Self {
        Self::Cause(Box::new(cause))
    }
}

impl OnnxError {
    /// Returns the cause if it has this type.
    #[must_use]
    pub fn cause<C: Cause>(&self) -> Option<&C> {
        let Self::Cause(cause) = self.root() else { return None };
        let cause: &dyn Any = &**cause;
        cause.downcast_ref()
    }

    /// Returns the cause, for a change, if it has this type and the error has no file, tensor or node.
    pub(crate) fn cause_mut<C: Cause>(&mut self) -> Option<&mut C> {
        let Self::Cause(cause) = self else { return None };
        let cause: &mut dyn Any = &mut **cause;
        cause.downcast_mut()
    }

    /// Returns an error about the same node with another cause.
    pub(crate) fn caused_by<C: Cause>(self, cause: C) -> Self {
        match self {
            Self::InNode { node, .. } => Self::InNode { node, cause: Box::new(cause.into()) },
            _ => cause.into(),
        }
    }

    /// Returns the error without the file, tensor and node that it is about.
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

    /// Returns the stable name of the cause, such as `input_missing`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::InFile { cause, .. } | Self::InTensor { cause, .. } | Self::InNode { cause, .. } => {
                cause.kind()
            }
            Self::Cause(cause) => cause.kind(),
        }
    }

    /// Converts the error into its root, for a caller that names the file, tensor or node itself.
    pub(crate) fn into_root(self) -> Self {
        match self {
            Self::InFile { cause, .. } | Self::InTensor { cause, .. } | Self::InNode { cause, .. } => {
                cause.into_root()
            }
            error => error,
        }
    }
}

/// Adds the file or tensor to the error of a result.
pub(crate) trait ErrorPlace<T> {
    fn in_file(self, path: impl Into<PathBuf>) -> Result<T, OnnxError>;
    fn in_tensor(self, name: &str) -> Result<T, OnnxError>;
}

impl<T, E: Into<OnnxError>> ErrorPlace<T> for Result<T, E> {
    fn in_file(self, path: impl Into<PathBuf>) -> Result<T, OnnxError> {
        self.map_err(|error| OnnxError::InFile { path: path.into(), cause: Box::new(error.into()) })
    }

    fn in_tensor(self, name: &str) -> Result<T, OnnxError> {
        self.map_err(|error| OnnxError::InTensor { name: name.to_owned(), cause: Box::new(error.into()) })
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;
    use strum::VariantNames;

    use super::{ErrorPlace, OnnxError};
    use crate::convert::{ConvertError, ConvertRefusal, NoStandardForm};
    use crate::fold::FoldError;
    use crate::source::FolderError;
    use crate::{
        DecoderError, EvalError, ExternalError, FileError, GraphError, LowerError, ProtoError, TensorError,
        TensorProtoError,
    };

    /// The names are an interface: scripts compare them.
    #[test]
    fn names_are_stable() {
        let names = "not_regular_file file_too_large file_shrank file_changed other_kind model_folder not_as_read \
            other_format over_input data_file_differs data_file_is_model link_leads_out test_file_missing \
            test_file_count decode encode undefined_type unsupported_type negative_dim segment two_fields \
            wrong_field entry_count entry_range external_without_folder external_strings \
            external_location_missing external_key_twice external_number external_escape external_length \
            external_range external_checksum external_limit graph_missing opset_twice opset_missing \
            opset_too_old duplicate_name name_missing name_too_long value_missing node_order cycle not_a_float \
            type_missing not_a_tensor sparse input_count output_count input_absent attribute_unknown \
            attribute_twice attribute_type opset_too_new operator_unknown operator_changed unsupported_operator \
            function mode constant_attributes add_type add_types broadcast memory_limit not_in_place \
            rank_too_large input_missing input_unknown value_type value_rank value_dim symbol_conflict \
            shape_unknown dims_missing dim_unused no_valid_indices nothing_to_lower scatter_nested \
            scatter_in_function rank_unknown lower_type index_nodes cache_none cache_not_fed_back cache_not_fed \
            cache_shape_missing cache_rank cache_does_not_grow dims_differ merged_twice stacked capacity not_converted \
            not_kept no_cache_folder";
        let variants = [
            FileError::VARIANTS,
            ProtoError::VARIANTS,
            TensorProtoError::VARIANTS,
            ExternalError::VARIANTS,
            GraphError::VARIANTS,
            EvalError::VARIANTS,
            LowerError::VARIANTS,
            DecoderError::VARIANTS,
            ConvertError::VARIANTS,
        ];
        assert_eq!(variants.concat().join(" "), names);
        let others: [OnnxError; 7] = [
            std::io::Error::other("").into(),
            TensorError::DataKind { element: ElementType::Bool }.into(),
            kvscatter::Error::AxisOutOfRange { axis: 4, rank: 4 }.into(),
            FoldError::NoRule.into(),
            FolderError::NoDecoder.into(),
            ConvertRefusal::Subgraph.into(),
            NoStandardForm::Unknown { output: 0 }.into(),
        ];
        let kinds = ["io", "tensor", "operator", "fold", "folder", "convert", "no_standard_form"];
        assert_eq!(others.map(|error| error.kind()), kinds);
        let error = Err::<(), _>(GraphError::OpsetTooOld { version: 23, min: 24 });
        let error: OnnxError = error.in_tensor("x").in_file("x.onnx").unwrap_err();
        assert_eq!(error.kind(), "opset_too_old");
        assert!(matches!(error.cause(), Some(GraphError::OpsetTooOld { version: 23, .. })), "{error}");
        assert!(error.cause::<ExternalError>().is_none(), "{error}");
        assert_eq!(
            error.to_string(),
            "x.onnx: tensor \"x\": version 23 of the operator set is too old: 24 is the oldest supported"
        );
    }
}
