//! Reads external data for tract through [`ModelFile`], which rejects paths that leave the model's folder.

use std::path::{Path, PathBuf};

use kvscatter_onnx::ModelFile;
use tract_onnx::data_resolver::ModelDataResolver;
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::internal::*;

/// The external data of a model.
pub(super) struct Weights {
    file: ModelFile,
    /// The absolute path of the model's folder, with links resolved. All paths that tract passes begin with
    /// this path.
    folder: PathBuf,
}

impl Weights {
    pub(super) fn new(file: &ModelFile) -> TractResult<Self> {
        let folder = kvscatter_onnx::internal::file::folder_of(file.path()).canonicalize()?;
        Ok(Self { file: file.clone(), folder })
    }
}

impl ModelDataResolver for Weights {
    fn read_bytes_from_path(
        &self,
        buffer: &mut Vec<u8>,
        path: &Path,
        offset: usize,
        length: Option<usize>,
    ) -> TractResult<()> {
        let location = path.strip_prefix(&self.folder).context("the path leads out of the model's folder")?;
        *buffer = self.file.read(location, u64::try_from(offset)?, length.map(u64::try_from).transpose()?)?;
        Ok(())
    }
}
