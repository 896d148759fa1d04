//! Weights whose values are computed from those of the exported model while they are written.
//!
//! Weights take gigabytes, so no step holds all of them. A model has the source of each computed weight and
//! the way to compute it, and [`save_with_weights`](crate::Model::save_with_weights) computes one part at a time.

mod transposition;

use crate::proto::TensorProto;
use crate::{ExternalData, OnnxError, external};

pub(crate) use transposition::Transposition;

/// The number of bytes of a source that are transposed together. Two buffers of this size are in use.
const STRIP: usize = 8 << 20;

/// The memory for the strips of all weights of a model. New memory for each weight would take more time than the
/// transposition, because the system clears it.
#[derive(Debug, Default)]
pub(crate) struct Strips {
    source: Vec<u8>,
    result: Vec<u8>,
}

/// A weight that is computed from the values of a tensor in another file.
#[derive(Clone, Debug)]
pub(crate) struct ComputedWeight {
    /// The tensor, with external data.
    source: TensorProto,
    transposition: Transposition,
}

impl ComputedWeight {
    /// Describes the transposed values of a tensor, whose bytes are those of the transposition's source.
    ///
    /// Returns `None` if the tensor has no external data.
    pub(crate) fn new(source: &TensorProto, transposition: Transposition) -> Option<Self> {
        external::is_external(source).then(|| Self { source: source.clone(), transposition })
    }

    /// Returns the tensor with the values that the weight is computed from.
    pub(crate) fn source(&self) -> &TensorProto {
        &self.source
    }

    /// Computes the values in the memory of `strips`, and passes one part after the other to `write`.
    ///
    /// # Errors
    /// * Returns the errors about external data, wrapped in [`OnnxError::InTensor`].
    /// * Returns [`OnnxError::Misplaced`] if an element is not where it belongs.
    /// * Returns the errors of `write`.
    pub(crate) fn compute(
        &self,
        external: &ExternalData,
        strips: &mut Strips,
        write: &mut impl FnMut(&[u8]) -> Result<(), OnnxError>,
    ) -> Result<(), OnnxError> {
        let it = &self.transposition;
        let name = self.source.name.as_deref().unwrap_or_default();
        let in_tensor = |error: OnnxError| error.in_tensor(name);
        let expected = position(it.source_bytes(), 1, 0);
        let mut bytes = external.open_bytes(&self.source.external_data, expected).map_err(in_tensor)?;
        for strip in it.strips(STRIP) {
            // Whole rows are read at once.
            let is_whole = strip.start == 0 && strip.columns == it.columns();
            let stride = if is_whole { it.row_bytes() } else { strip.bytes };
            let source = first_bytes(&mut strips.source, stride.saturating_mul(it.rows()));
            if is_whole {
                bytes.read_at(0, source).map_err(in_tensor)?;
            } else {
                for (row, part) in source.chunks_exact_mut(stride).enumerate() {
                    bytes.read_at(position(row, it.row_bytes(), strip.start), part).map_err(in_tensor)?;
                }
            }
            let result = first_bytes(&mut strips.result, it.result_bytes(strip.columns));
            transpose(it, source, stride, strip.columns, result).map_err(in_tensor)?;
            write(result)?;
        }
        Ok(())
    }
}

/// Returns the first bytes of a buffer that grows if it must. They may have any values.
fn first_bytes(buffer: &mut Vec<u8>, count: usize) -> &mut [u8] {
    if buffer.len() < count {
        buffer.resize(count, 0);
    }
    buffer.get_mut(..count).unwrap_or_default()
}

/// Returns the transposed values of a tensor in memory.
///
/// # Errors
/// Returns [`OnnxError::Misplaced`] if an element is not where it belongs.
pub(crate) fn transposed(source: &[u8], it: &Transposition) -> Result<Vec<u8>, OnnxError> {
    let mut result = vec![0; it.result_bytes(it.columns())];
    transpose(it, source, it.row_bytes(), it.columns(), &mut result)?;
    Ok(result)
}

fn transpose(
    it: &Transposition,
    source: &[u8],
    stride: usize,
    columns: usize,
    result: &mut [u8],
) -> Result<(), OnnxError> {
    it.transpose(source, stride, columns, result);
    match it.misplaced(source, stride, columns, result) {
        Some((row, column)) => Err(OnnxError::Misplaced { row, column }),
        None => Ok(()),
    }
}

/// Returns the position of a byte of a row in a file.
fn position(row: usize, row_bytes: usize, start: usize) -> u64 {
    let position = row.checked_mul(row_bytes).and_then(|position| position.checked_add(start));
    position.and_then(|position| u64::try_from(position).ok()).unwrap_or(u64::MAX)
}
