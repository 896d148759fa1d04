//! Writes computed weights, and all other external data of the graph's initializers, to one new file.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use cap_std::ambient_authority;

use super::data_file::{DataFile, DataFileOrigin, same_contents};
use crate::file::{self, Identity, UnfinishedFiles, folder_of};
use crate::proto::{ModelProto, TensorProto};
use crate::weights::Strips;
use crate::{ExternalData, Model, OnnxError, external, tensor_proto};

/// The alignment of tensors in the file. ONNX recommends it so that a page of the file can be mapped.
const ALIGNMENT: u64 = 4096;

/// The number of bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

/// The written file, and the model that refers to it.
pub(super) struct Computed {
    pub(super) proto: ModelProto,
    pub(super) file: DataFile,
}

/// Writes the file next to the model that will be written to `path`.
///
/// # Errors
/// * Returns [`OnnxError::DataFileDiffers`] if another file exists in its place, and
///   [`OnnxError::DataFileIsModel`] if that is the model. Both are wrapped in [`OnnxError::InFile`].
/// * Returns the errors of [`ComputedWeight::compute`](crate::weights::ComputedWeight::compute).
pub(super) fn write(
    model: &Model,
    from: &Path,
    path: &Path,
    output: &Identity,
    made: &mut UnfinishedFiles,
) -> Result<Computed, OnnxError> {
    let name = location(path)?;
    let target = folder_of(path).join(&name);
    let in_target = |error: OnnxError| error.in_file(&target);
    if Identity::of(&target).is_ok_and(|target| target == *output) {
        return Err(in_target(OnnxError::DataFileIsModel));
    }
    // Tensors are read in parts, so the number of bytes needs no limit.
    let external = ExternalData::open(folder_of(from))?.limit(u64::MAX);
    // If the file exists, a second one is written and compared with it. That one is then removed.
    let exists = target.symlink_metadata().is_ok();
    let mut second = UnfinishedFiles::new();
    let made = if exists { &mut second } else { made };
    let (file, unfinished) =
        made.file_in(folder_of(path)).map_err(|error| in_target(OnnxError::Io(error)))?;
    let mut data = Data { file, at: 0 };
    let mut strips = Strips::default();
    let mut proto = model.proto().clone();
    for tensor in &mut proto.graph.get_or_insert_default().initializer {
        let computed = model.computed().get(tensor.name.as_deref().unwrap_or_default());
        if computed.is_none() && !external::is_external(tensor) {
            continue;
        }
        let start = data.align().map_err(in_target)?;
        let mut write = |part: &[u8]| data.write(part).map_err(in_target);
        let done = match computed {
            Some(computed) => computed.compute(&external, &mut strips, &mut write),
            None => copy(tensor, &external, &mut write),
        };
        done.map_err(|error| match error {
            OnnxError::InTensor { .. } => error.in_file(from),
            error => error,
        })?;
        external::refer(tensor, &name, start, data.at.saturating_sub(start));
    }
    let bytes = data.at;
    let origin = if exists {
        let written =
            cap_std::fs::File::open_ambient_with(&unfinished, &file::read_only(), ambient_authority());
        let written = written.map_err(|error| in_target(OnnxError::Io(error)))?;
        if !same_contents(written, bytes, &target).map_err(in_target)? {
            return Err(in_target(OnnxError::DataFileDiffers));
        }
        DataFileOrigin::Kept
    } else {
        made.rename(&unfinished, &target).map_err(|error| in_target(OnnxError::Io(error)))?;
        DataFileOrigin::Written
    };
    Ok(Computed { proto, file: DataFile { path: target, bytes, origin } })
}

/// Returns the name of the file for a model at this path.
fn location(path: &Path) -> Result<String, OnnxError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| OnnxError::Io(std::io::ErrorKind::InvalidFilename.into()).in_file(path))?;
    Ok(format!("{name}.data"))
}

/// Copies the external data of a tensor.
fn copy(
    tensor: &TensorProto,
    external: &ExternalData,
    write: &mut impl FnMut(&[u8]) -> Result<(), OnnxError>,
) -> Result<(), OnnxError> {
    let in_tensor = |error: OnnxError| error.in_tensor(tensor.name.as_deref().unwrap_or_default());
    let expected = tensor_proto::external_bytes(tensor).map_err(in_tensor)?;
    let mut bytes = external.open_bytes(&tensor.external_data, expected).map_err(in_tensor)?;
    let mut chunk = vec![0; CHUNK];
    let mut done = 0_u64;
    while let Some(left) = expected.checked_sub(done).filter(|left| *left > 0) {
        let size = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let part = chunk.get_mut(..size).unwrap_or_default();
        bytes.read_at(done, part).map_err(in_tensor)?;
        write(part)?;
        done = done.saturating_add(u64::try_from(size).unwrap_or(left));
    }
    Ok(())
}

/// A file that is being written, and its length.
struct Data {
    file: File,
    at: u64,
}

impl Data {
    /// Writes zeros up to the next multiple of the alignment, and returns that position.
    fn align(&mut self) -> Result<u64, OnnxError> {
        let end = self.at.next_multiple_of(ALIGNMENT);
        let padding = usize::try_from(end.saturating_sub(self.at)).unwrap_or_default();
        self.write(&vec![0; padding])?;
        Ok(end)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), OnnxError> {
        self.file.write_all(bytes).map_err(OnnxError::Io)?;
        self.at = self.at.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Ok(())
    }
}
