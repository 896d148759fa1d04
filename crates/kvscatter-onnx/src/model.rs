//! Models: loaded and saved without losing what this crate does not know.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::{Path, PathBuf};

use crate::external::Folder;
use crate::file::{self, folder_of};
use crate::proto::{self, AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto};
use crate::{ExternalData, Graph, ModelFile, OnnxError, external};

/// A model, and the file it came from, beside which its external data lies.
#[derive(Clone, Debug)]
pub struct Model {
    proto: ModelProto,
    path: Option<PathBuf>,
    /// Whether the file still contains this model.
    is_as_read: bool,
}

impl Model {
    /// Reads a model from bytes. It has no folder, so external data cannot be read.
    ///
    /// # Errors
    /// [`OnnxError::Decode`] if the bytes are no model, or pass the limits of [`proto::decode`]; [`OnnxError::OtherFormat`] if
    /// they are a model of another format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OnnxError> {
        decode(bytes).map(Self::from_proto)
    }

    /// Wraps a model made in memory. It has no folder, so external data cannot be read.
    #[must_use]
    pub fn from_proto(proto: ModelProto) -> Self {
        Self { proto, path: None, is_as_read: false }
    }

    /// Reads a model from a regular file of at most protobuf's 2 GiB, and remembers it.
    ///
    /// Checks every location that a tensor names, used or not. A location must be relative and have no `..`.
    /// After following links it must lead to a regular file inside the model's folder, or to no file. The
    /// check opens no file.
    ///
    /// # Errors
    /// Within [`OnnxError::InFile`]: [`OnnxError::Io`], [`OnnxError::NotRegularFile`], [`OnnxError::FileTooLarge`] and those of
    /// [`from_bytes`](Self::from_bytes). Within [`OnnxError::InTensor`] in it, [`OnnxError::ExternalEscape`],
    /// [`OnnxError::NotRegularFile`] and the other errors on external data.
    pub fn load(path: &Path) -> Result<Self, OnnxError> {
        let bytes = file::read(path, proto::MAX_MESSAGE_BYTES)?;
        let proto = decode(&bytes).map_err(|error| error.in_file(path))?;
        let model = Self { proto, path: Some(path.to_owned()), is_as_read: true };
        model.check_locations(folder_of(path)).map_err(|error| error.in_file(path))?;
        Ok(model)
    }

    /// The model's bytes, unknown fields included; they come last in their message.
    ///
    /// # Errors
    /// [`OnnxError::Encode`] if they take more than protobuf's 2 GiB.
    pub fn to_bytes(&self) -> Result<Vec<u8>, OnnxError> {
        proto::encode(&self.proto)
    }

    /// Writes the model to a file, whole or not at all. External data stays where it is, and its locations stay as they
    /// are; [`save_with_weights`](Self::save_with_weights) brings it along.
    ///
    /// # Errors
    /// Within [`OnnxError::InFile`]: [`OnnxError::Io`] and [`OnnxError::Encode`].
    pub fn save(&self, path: &Path) -> Result<(), OnnxError> {
        self.to_bytes()
            .and_then(|bytes| file::write(path, &bytes).map_err(OnnxError::Io))
            .map_err(|error| error.in_file(path))
    }

    /// The message.
    #[must_use]
    pub fn proto(&self) -> &ModelProto {
        &self.proto
    }

    /// Returns the message for changes. The file that the model was read from no longer counts as its
    /// [`file`](Self::file).
    pub fn proto_mut(&mut self) -> &mut ModelProto {
        self.is_as_read = false;
        &mut self.proto
    }

    /// The graph, its structure checked.
    ///
    /// # Errors
    /// See [`Graph::new`].
    pub fn graph(&self) -> Result<Graph<'_>, OnnxError> {
        Graph::new(&self.proto)
    }

    /// Returns the file that the model was read from, for an engine, with every file of external data that
    /// the model names.
    ///
    /// # Errors
    /// [`OnnxError::NotAsRead`] for a model that was made in memory, or may have been changed since it was read. Within
    /// [`OnnxError::InFile`] and [`OnnxError::InTensor`]: [`OnnxError::Io`] for a file of external data that does not
    /// exist, [`OnnxError::ExternalRange`] for one that is too short, and those of [`load`](Self::load).
    pub fn file(&self) -> Result<ModelFile, OnnxError> {
        let path = self.path.as_deref().filter(|_| self.is_as_read).ok_or(OnnxError::NotAsRead)?;
        let folder = Folder::open(folder_of(path))?;
        let locations = self.locations(Some(&folder)).map_err(|error| error.in_file(path))?;
        Ok(ModelFile::new(path, folder, locations))
    }

    /// The files that the model's tensors keep their values in, as the model names them, each once: what must not
    /// be overwritten while it is in use. None for a model that came from memory.
    #[must_use]
    pub fn external_files(&self) -> Vec<PathBuf> {
        let Some(folder) = self.folder() else { return Vec::new() };
        let mut files = BTreeSet::new();
        let Ok(()) = self.visit_tensors::<Infallible>(&mut |tensor| {
            files.extend(external::path(tensor, folder));
            Ok(())
        });
        files.into_iter().collect()
    }

    /// The folder external data is read from; `None` for a model that came from memory.
    ///
    /// # Errors
    /// [`OnnxError::Io`] within [`OnnxError::InFile`] if it cannot be opened any more.
    pub fn external_data(&self) -> Result<Option<ExternalData>, OnnxError> {
        self.folder().map(ExternalData::open).transpose()
    }

    /// The file it was read from; `None` for a model that came from memory.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the files that contain its tensors' values, each once. All of them are known to exist.
    pub(crate) fn locations(&self, folder: Option<&Folder>) -> Result<BTreeSet<String>, OnnxError> {
        let mut locations = BTreeSet::new();
        self.visit_external(&mut |tensor| {
            let location = match folder {
                Some(folder) => external::located(tensor, folder)?,
                None => {
                    let location = external::location(&tensor.external_data)?.to_owned();
                    return Err(OnnxError::ExternalWithoutFolder { location });
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
        self.visit_external(&mut |tensor| {
            let folder = match &mut folder {
                Some(folder) => folder,
                none => none.insert(Folder::open(path)?),
            };
            external::check(tensor, folder)
        })
    }

    /// Calls `visit` for every tensor with external data, and names the tensor in its error.
    fn visit_external(
        &self,
        visit: &mut impl FnMut(&TensorProto) -> Result<(), OnnxError>,
    ) -> Result<(), OnnxError> {
        self.visit_tensors(&mut |tensor| {
            if !external::is_external(tensor) {
                return Ok(());
            }
            visit(tensor).map_err(|error| error.in_tensor(tensor.name.as_deref().unwrap_or_default()))
        })
    }

    /// Calls `visit` for every tensor: initializers and attributes, sparse ones too, in subgraphs, functions
    /// and training information.
    fn visit_tensors<E>(&self, visit: &mut impl FnMut(&TensorProto) -> Result<(), E>) -> Result<(), E> {
        visit_graph(&self.proto.graph, visit)?;
        for training in &self.proto.training_info {
            visit_graph(&training.initialization, visit)?;
            visit_graph(&training.algorithm, visit)?;
        }
        for function in &self.proto.functions {
            visit_attributes(&function.attribute_proto, visit)?;
            visit_nodes(&function.node, visit)?;
        }
        Ok(())
    }

    fn folder(&self) -> Option<&Path> {
        self.path.as_deref().map(folder_of)
    }
}

fn decode(bytes: &[u8]) -> Result<ModelProto, OnnxError> {
    proto::decode(bytes)
        .map_err(|error| other_format(bytes).map_or(error, |format| OnnxError::OtherFormat { format }))
}

/// The format of a file that people take for a model, by how such files begin.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let at = |offset: usize, text: &[u8]| bytes.get(offset..).is_some_and(|rest| rest.starts_with(text));
    let formats = [
        ("GGUF", at(0, b"GGUF")),
        ("zip (as PyTorch saves)", at(0, b"PK\x03\x04")),
        ("ORT", at(4, b"ORTM")),
        // Eight bytes of length, and JSON.
        ("safetensors", at(8, b"{\"")),
    ];
    formats.into_iter().find(|(_, is)| *is).map(|(format, _)| format)
}

/// All tensors of a graph and its subgraphs. [`proto::decode`] has limited the depth.
fn visit_graph<E>(
    graph: &GraphProto,
    visit: &mut impl FnMut(&TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    graph.initializer.iter().try_for_each(&mut *visit)?;
    graph.sparse_initializer.iter().try_for_each(|sparse| visit_sparse(sparse, visit))?;
    visit_nodes(&graph.node, visit)
}

fn visit_nodes<E>(
    nodes: &[NodeProto],
    visit: &mut impl FnMut(&TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    nodes.iter().try_for_each(|node| visit_attributes(&node.attribute, visit))
}

fn visit_attributes<E>(
    attributes: &[AttributeProto],
    visit: &mut impl FnMut(&TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    for attribute in attributes {
        attribute.t.as_option().into_iter().chain(&attribute.tensors).try_for_each(&mut *visit)?;
        let sparse = attribute.sparse_tensor.as_option().into_iter().chain(&attribute.sparse_tensors);
        sparse.into_iter().try_for_each(|sparse| visit_sparse(sparse, visit))?;
        let graphs = attribute.g.as_option().into_iter().chain(&attribute.graphs);
        graphs.into_iter().try_for_each(|graph| visit_graph(graph, visit))?;
    }
    Ok(())
}

fn visit_sparse<E>(
    sparse: &SparseTensorProto,
    visit: &mut impl FnMut(&TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    visit(&sparse.values)?;
    visit(&sparse.indices)
}
