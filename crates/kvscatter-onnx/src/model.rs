//! Models. They are loaded and saved without losing the fields that this crate does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use kvscatter::ElementType;

use crate::external::Folder;
use crate::file::{self, Stamp, folder_of};
use crate::fingerprint::GraphHash;
use crate::graph::full_domain;
use crate::model_file::stamp_of;
use crate::proto::{self, ModelProto};
use crate::visit::{visit_external, visit_tensors};
use crate::{
    ErrorPlace, ExternalData, ExternalError, FileError, Graph, ModelFile, OnnxError, Tensor, external,
};

/// A model and, if it was loaded from a file, the path of that file. External data is in the same folder.
#[derive(Clone, Debug)]
pub struct Model {
    proto: ModelProto,
    path: Option<PathBuf>,
    /// The stamp of that file when it was read.
    stamp: Option<Stamp>,
    /// Whether the file still contains this model.
    is_as_read: bool,
}

impl Model {
    /// Reads a model from bytes.
    ///
    /// The model has no folder, so its external data cannot be read.
    ///
    /// # Errors
    /// * Returns [`crate::ProtoError::Decode`] if the bytes are not a model or exceed a limit: 2 GiB in all, 100
    ///   levels of nesting, and 256 MiB for messages and the elements of lists in memory.
    /// * Returns [`FileError::OtherFormat`] if the bytes are a model in another format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OnnxError> {
        decode(bytes).map(Self::from_proto)
    }

    /// Creates a model from a message in memory.
    ///
    /// The model has no folder, so its external data cannot be read.
    #[doc(hidden)]
    #[must_use]
    pub fn from_proto(proto: ModelProto) -> Self {
        Self { proto, path: None, stamp: None, is_as_read: false }
    }

    /// Reads a model from a regular file of at most 2 GiB (protobuf's limit), and remembers the path.
    ///
    /// A location must be relative and must not contain `..`. After links have been followed, it must lead to
    /// a regular file in the model's folder, or to no file. The check does not open any file.
    ///
    /// # Errors
    /// Errors are wrapped in [`OnnxError::InFile`]:
    ///
    /// * [`FileError::ModelFolder`], [`std::io::Error`], [`crate::FileError::NotRegularFile`],
    ///   [`crate::FileError::FileTooLarge`] and the errors of [`from_bytes`](Self::from_bytes);
    /// * [`crate::ExternalError::Escape`], [`crate::FileError::NotRegularFile`] and the other errors about external
    ///   data, wrapped in [`OnnxError::InTensor`] as well.
    pub fn load(path: &Path) -> Result<Self, OnnxError> {
        if path.is_dir() {
            return Err(FileError::ModelFolder { has_model: path.join("model.onnx").is_file() })
                .in_file(path);
        }
        let (bytes, stamp) = file::read_stamped(path, proto::MAX_MESSAGE_BYTES)?;
        Self::read(path, &bytes, stamp)
    }

    /// Reads a model from the bytes of a file with this stamp, like [`load`](Self::load).
    pub(crate) fn read(path: &Path, bytes: &[u8], stamp: Stamp) -> Result<Self, OnnxError> {
        let proto = decode(bytes).in_file(path)?;
        let (path_of, stamp) = (Some(path.to_owned()), Some(stamp));
        let model = Self { proto, path: path_of, stamp, is_as_read: true };
        model.check_locations(folder_of(path)).in_file(path)?;
        Ok(model)
    }

    /// Encodes the model. Unknown fields are placed at the end of their message.
    ///
    /// # Errors
    /// Returns [`crate::ProtoError::Encode`] if the model takes more than 2 GiB (protobuf's limit).
    pub fn to_bytes(&self) -> Result<Vec<u8>, OnnxError> {
        proto::encode(&self.proto)
    }

    /// Writes the whole model to a file, or writes nothing on failure.
    ///
    /// External data is not copied, and its locations are not changed.
    /// [`save_with_weights`](Self::save_with_weights) copies the data as well.
    ///
    /// # Errors
    /// Returns [`std::io::Error`] or [`crate::ProtoError::Encode`], wrapped in [`OnnxError::InFile`].
    pub fn save(&self, path: &Path) -> Result<(), OnnxError> {
        self.to_bytes().and_then(|bytes| file::write(path, &bytes).map_err(OnnxError::from)).in_file(path)
    }

    /// Creates another model whose external data is in the folder of this model.
    pub(crate) fn with_proto(&self, proto: ModelProto) -> Self {
        Self { proto, path: self.path.clone(), stamp: None, is_as_read: false }
    }

    /// Returns the message.
    #[doc(hidden)]
    #[must_use]
    pub fn proto(&self) -> &ModelProto {
        &self.proto
    }

    /// Returns the message, so that it can be changed.
    ///
    /// After this call, [`file`](Self::file) returns an error, because the file may no longer contain this
    /// model.
    #[doc(hidden)]
    pub fn proto_mut(&mut self) -> &mut ModelProto {
        self.is_as_read = false;
        &mut self.proto
    }

    /// Returns the version of ONNX's file format.
    #[must_use]
    pub fn ir_version(&self) -> Option<i64> {
        self.proto.ir_version
    }

    /// Returns the domains and versions of the operator sets that the model imports. The default domain is `ai.onnx`.
    pub fn opsets(&self) -> impl ExactSizeIterator<Item = (&str, i64)> {
        let opsets = self.proto.opset_import.iter();
        opsets.map(|opset| (full_domain(opset.domain.as_deref()), opset.version.unwrap_or_default()))
    }

    /// Returns the name and the version of the program that wrote the model. Either may be empty.
    #[must_use]
    pub fn producer(&self) -> [&str; 2] {
        [&self.proto.producer_name, &self.proto.producer_version]
            .map(|part| part.as_deref().unwrap_or_default())
    }

    /// Returns an entry of the model's `metadata_props`, or `None` if there is none with this key.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<&str> {
        proto::metadata(&self.proto, key)
    }

    /// Returns the graph, after checking its structure.
    ///
    /// # Errors
    /// Errors about a node are wrapped in [`OnnxError::InNode`].
    ///
    /// * Returns [`GraphError::GraphMissing`](crate::GraphError::GraphMissing) if the model has no graph.
    /// * Returns another [`GraphError`](crate::GraphError) if operator sets are ambiguous or incomplete, if names
    ///   cannot be resolved, if the graph has a cycle or its nodes are in the wrong order, and for a sparse
    ///   initializer.
    pub fn graph(&self) -> Result<Graph<'_>, OnnxError> {
        Graph::new(&self.proto)
    }

    /// Returns the file that the model was read from and its files of external data, for use by an engine.
    ///
    /// # Errors
    /// * Returns [`FileError::NotAsRead`] if the model was created in memory or may have changed since it was
    ///   read.
    /// * Returns [`std::io::Error`] if a file of external data does not exist, and
    ///   [`crate::ExternalError::Range`] if one is too short. Both are wrapped in [`OnnxError::InFile`] and
    ///   [`OnnxError::InTensor`].
    /// * Returns the errors of [`load`](Self::load) if a location is not valid any more.
    pub fn file(&self) -> Result<ModelFile, OnnxError> {
        let (Some(path), Some(stamp), true) = (&self.path, &self.stamp, self.is_as_read) else {
            return Err(FileError::NotAsRead.into());
        };
        let (folder, stamps) = self.stamped(path)?;
        Ok(ModelFile::new(path, stamp.clone(), folder, stamps))
    }

    /// Returns the stamps of the files of external data. There are none for a model that was created in memory.
    ///
    /// # Errors
    /// Returns the errors of [`file`](Self::file) about these files.
    pub(crate) fn stamps(&self) -> Result<BTreeMap<String, Stamp>, OnnxError> {
        let Some(path) = &self.path else { return Ok(BTreeMap::new()) };
        self.stamped(path).map(|(_, stamps)| stamps)
    }

    fn stamped(&self, path: &Path) -> Result<(Folder, BTreeMap<String, Stamp>), OnnxError> {
        let folder = Folder::open(folder_of(path))?;
        let locations = self.locations(Some(&folder)).in_file(path)?;
        let stamp = |location: String| stamp_of(&folder, &location).map(|stamp| (location, stamp));
        let stamps = locations.into_iter().map(stamp).collect::<Result<_, _>>().in_file(path)?;
        Ok((folder, stamps))
    }

    /// Returns the paths of the files of external data, each once, as the model names them.
    ///
    /// These files must not be overwritten while the model is in use. The list is empty for a model that was
    /// created in memory.
    #[must_use]
    pub fn external_files(&self) -> Vec<PathBuf> {
        let Some(folder) = self.folder() else { return Vec::new() };
        let mut files = BTreeSet::new();
        let Ok(()) = visit_tensors::<Infallible>(&self.proto, &mut |tensor| {
            files.extend(external::path(tensor, folder));
            Ok(())
        });
        files.into_iter().collect()
    }

    /// Reads the tensors of the graph's initializers, by name.
    ///
    /// # Errors
    /// * Returns the errors of [`graph`](Self::graph).
    /// * Returns [`TensorProtoError`](crate::TensorProtoError) or [`ExternalError`], wrapped in
    ///   [`OnnxError::InTensor`], if a tensor cannot be read.
    pub fn initializers(&self) -> Result<BTreeMap<&str, Tensor>, OnnxError> {
        self.graph()?.tensors(self.external_data()?.as_ref())
    }

    /// Returns `true` if a matrix of the graph has elements of at most 8 bits.
    #[must_use]
    pub fn has_quantised_weights(&self) -> bool {
        let initializers = self.proto.graph.as_option().map_or(&[][..], |graph| &graph.initializer).iter();
        let is_quantised = |element: ElementType| {
            element != ElementType::Bool && element.bits().is_some_and(|bits| bits <= 8)
        };
        let mut matrices = initializers.filter(|tensor| tensor.dims.len() > 1);
        matrices
            .any(|matrix| matrix.data_type.and_then(ElementType::from_onnx_code).is_some_and(is_quantised))
    }

    /// Opens the folder that external data is read from. Returns `None` for a model that was created in
    /// memory.
    ///
    /// # Errors
    /// Returns [`std::io::Error`] wrapped in [`OnnxError::InFile`] if the folder can no longer be opened.
    #[doc(hidden)]
    pub fn external_data(&self) -> Result<Option<ExternalData>, OnnxError> {
        self.folder().map(ExternalData::open).transpose()
    }

    /// Opens the folder like [`external_data`](Self::external_data), for several evaluations.
    ///
    /// # Errors
    /// Returns the errors of [`external_data`](Self::external_data).
    pub(crate) fn shared_external_data(&self) -> Result<Option<Rc<ExternalData>>, OnnxError> {
        Ok(self.external_data()?.map(Rc::new))
    }

    /// Computes the hash of the model's graph.
    pub(crate) fn graph_hash(&self) -> Result<GraphHash, OnnxError> {
        GraphHash::from_model(&self.proto)
    }

    /// Returns the file that the model was read from, or `None` for a model that was created in memory.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the files that contain values of the model's tensors, each once. If `folder` is given, checks
    /// that they exist in it.
    pub(crate) fn locations(&self, folder: Option<&Folder>) -> Result<BTreeSet<String>, OnnxError> {
        let mut locations = BTreeSet::new();
        visit_external(&self.proto, &mut |tensor| {
            let location = match folder {
                Some(folder) => external::located(tensor, folder)?,
                None => {
                    let location = external::location(&tensor.external_data)?.to_owned();
                    return Err(ExternalError::WithoutFolder { location }.into());
                }
            };
            if !locations.contains(location) {
                locations.insert(location.to_owned());
            }
            Ok(())
        })?;
        Ok(locations)
    }

    fn check_locations(&self, path: &Path) -> Result<(), OnnxError> {
        let mut folder = None;
        visit_external(&self.proto, &mut |tensor| {
            let folder = match &mut folder {
                Some(folder) => folder,
                none => none.insert(Folder::open(path)?),
            };
            external::check(tensor, folder)
        })
    }

    fn folder(&self) -> Option<&Path> {
        self.path.as_deref().map(folder_of)
    }
}

fn decode(bytes: &[u8]) -> Result<ModelProto, OnnxError> {
    proto::decode(bytes)
        .map_err(|error| other_format(bytes).map_or(error, |format| FileError::OtherFormat { format }.into()))
}

/// Returns the name of another file format that is often mistaken for ONNX, if the bytes begin like a file of
/// it.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let has = |offset: usize, text: &[u8]| bytes.get(offset..).is_some_and(|rest| rest.starts_with(text));
    let formats = [
        ("GGUF", has(0, b"GGUF")),
        ("zip (as PyTorch saves)", has(0, b"PK\x03\x04")),
        ("ORT", has(4, b"ORTM")),
        // A safetensors file begins with eight bytes of length, followed by JSON.
        ("safetensors", has(8, b"{\"")),
    ];
    formats.into_iter().find(|(_, is)| *is).map(|(format, _)| format)
}
