//! The lists of a write: positions, and the number of rows at each.

use kvscatter_cuda::DeviceCallIndices;
use pyo3::prelude::*;

use super::array::DeviceArray;
use super::operator::Operator;
use crate::failure::Failure;

/// The lists of an operator, as Python objects.
#[derive(Default)]
pub(crate) struct ListArguments<'a, 'py> {
    pub(crate) layer: Option<&'a Bound<'py, PyAny>>,
    pub(crate) starts: Option<&'a Bound<'py, PyAny>>,
    pub(crate) row_counts: Option<&'a Bound<'py, PyAny>>,
    pub(crate) lengths: Option<&'a Bound<'py, PyAny>>,
}

/// The same lists as arrays on a device.
pub(crate) struct ListArrays<'py> {
    layer: Option<DeviceArray<'py>>,
    starts: Option<DeviceArray<'py>>,
    row_counts: Option<DeviceArray<'py>>,
    lengths: Option<DeviceArray<'py>>,
}

impl<'py> ListArguments<'_, 'py> {
    /// Imports the lists in the order that every operator has.
    pub(crate) fn read(self, operator: &Operator) -> PyResult<ListArrays<'py>> {
        let read = |list: Option<&Bound<'py, PyAny>>, argument| {
            list.map(|list| DeviceArray::read(list, argument)).transpose()
        };
        Ok(ListArrays {
            layer: read(self.layer, "layerId")?,
            starts: read(self.starts, operator.starts)?,
            row_counts: read(self.row_counts, operator.row_counts)?,
            lengths: read(self.lengths, "lengths")?,
        })
    }
}

impl<'py> ListArrays<'py> {
    /// Iterates over the lists in the order of the call.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &DeviceArray<'py>> {
        [&self.layer, &self.starts, &self.row_counts, &self.lengths].into_iter().flatten()
    }

    pub(crate) fn into_arrays(self) -> impl Iterator<Item = DeviceArray<'py>> {
        [self.layer, self.starts, self.row_counts, self.lengths].into_iter().flatten()
    }

    pub(crate) fn check_types(&self) -> Result<(), Failure> {
        let Self { layer, starts, row_counts, lengths } = self;
        layer.iter().try_for_each(DeviceArray::check_int32)?;
        starts.iter().chain(row_counts).chain(lengths).try_for_each(|list| list.of_integers().map(drop))
    }

    /// Returns the addresses of the lists, if all have the shape of a list.
    pub(crate) fn indices(&self) -> PyResult<DeviceCallIndices> {
        let Self { layer, starts, row_counts, lengths } = self;
        let layer = layer.as_ref().map(DeviceArray::layer).transpose()?;
        let mut indices = match starts {
            Some(starts) => DeviceCallIndices::new(starts.list()?),
            None => DeviceCallIndices::zero(),
        };
        if let Some(layer) = layer {
            indices = indices.layer(layer);
        }
        if let Some(row_counts) = row_counts {
            indices = indices.row_counts(row_counts.list()?);
        }
        if let Some(lengths) = lengths {
            indices = indices.lengths(lengths.list()?);
        }
        Ok(indices)
    }
}
