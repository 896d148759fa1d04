//! Models: loaded and saved without losing what this crate does not know.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::file::{self, folder_of};
use crate::proto::{self, GraphProto, ModelProto, NodeProto, TensorProto};
use crate::{Error, ExternalData, Graph, external};

/// A model, and the file it came from, beside which its external data lies.
#[derive(Clone, Debug)]
pub struct Model {
    proto: ModelProto,
    path: Option<PathBuf>,
}

impl Model {
    /// Reads a model from bytes. It has no folder, so external data cannot be read.
    ///
    /// # Errors
    /// [`Error::Decode`] if the bytes are no model, or pass the limits of [`proto::decode`]; [`Error::OtherFormat`] if
    /// they are a model of another format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        decode(bytes).map(Self::from_proto)
    }

    /// Wraps a model made in memory. It has no folder, so external data cannot be read.
    #[must_use]
    pub fn from_proto(proto: ModelProto) -> Self {
        Self { proto, path: None }
    }

    /// Reads a model from a regular file of at most protobuf's 2 GiB, and remembers it.
    ///
    /// # Errors
    /// Within [`Error::InFile`]: [`Error::Io`], [`Error::NotRegularFile`], [`Error::FileTooLarge`] and those of
    /// [`from_bytes`](Self::from_bytes).
    pub fn load(path: &Path) -> Result<Self, Error> {
        let bytes = file::read(path, proto::MAX_MESSAGE_BYTES)?;
        let proto = decode(&bytes).map_err(|error| error.in_file(path))?;
        Ok(Self { proto, path: Some(path.to_owned()) })
    }

    /// The model's bytes, unknown fields included; they come last in their message.
    ///
    /// # Errors
    /// [`Error::Encode`] if they take more than protobuf's 2 GiB.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        proto::encode(&self.proto)
    }

    /// Writes the model to a file, whole or not at all. External data stays where it is, and its locations stay as they
    /// are; [`save_with_weights`](Self::save_with_weights) brings it along.
    ///
    /// # Errors
    /// Within [`Error::InFile`]: [`Error::Io`] and [`Error::Encode`].
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        self.to_bytes()
            .and_then(|bytes| file::write(path, &bytes).map_err(Error::Io))
            .map_err(|error| error.in_file(path))
    }

    /// The message.
    #[must_use]
    pub fn proto(&self) -> &ModelProto {
        &self.proto
    }

    /// The message, to be changed.
    pub fn proto_mut(&mut self) -> &mut ModelProto {
        &mut self.proto
    }

    /// The graph, its structure checked.
    ///
    /// # Errors
    /// See [`Graph::new`].
    pub fn graph(&self) -> Result<Graph<'_>, Error> {
        Graph::new(&self.proto)
    }

    /// The files that the model's tensors keep their values in, as the model names them, each once: what must not
    /// be overwritten while it is in use. None for a model that came from memory.
    #[must_use]
    pub fn external_files(&self) -> Vec<PathBuf> {
        let Some(folder) = self.folder() else { return Vec::new() };
        let mut files = BTreeSet::new();
        self.visit_tensors(&mut |tensor| files.extend(external::path(tensor, folder)));
        files.into_iter().collect()
    }

    /// The folder external data is read from; `None` for a model that came from memory.
    ///
    /// # Errors
    /// [`Error::Io`] within [`Error::InFile`] if it cannot be opened any more.
    pub fn external_data(&self) -> Result<Option<ExternalData>, Error> {
        self.folder().map(ExternalData::open).transpose()
    }

    /// The file it was read from; `None` for a model that came from memory.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Calls this for every tensor: initializers and attributes, in subgraphs and functions too.
    pub(crate) fn visit_tensors(&self, visit: &mut impl FnMut(&TensorProto)) {
        visit_graph(&self.proto.graph, visit);
        self.proto.functions.iter().for_each(|function| visit_nodes(&function.node, visit));
    }

    fn folder(&self) -> Option<&Path> {
        self.path.as_deref().map(folder_of)
    }
}

fn decode(bytes: &[u8]) -> Result<ModelProto, Error> {
    proto::decode(bytes)
        .map_err(|error| other_format(bytes).map_or(error, |format| Error::OtherFormat { format }))
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
fn visit_graph(graph: &GraphProto, visit: &mut impl FnMut(&TensorProto)) {
    graph.initializer.iter().for_each(&mut *visit);
    for sparse in &graph.sparse_initializer {
        visit(&sparse.values);
        visit(&sparse.indices);
    }
    visit_nodes(&graph.node, visit);
}

fn visit_nodes(nodes: &[NodeProto], visit: &mut impl FnMut(&TensorProto)) {
    for attribute in nodes.iter().flat_map(|node| &node.attribute) {
        visit(&attribute.t);
        attribute.tensors.iter().for_each(&mut *visit);
        if let Some(graph) = attribute.g.as_option() {
            visit_graph(graph, visit);
        }
        attribute.graphs.iter().for_each(|graph| visit_graph(graph, visit));
    }
}
