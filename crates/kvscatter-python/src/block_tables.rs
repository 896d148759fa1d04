//! Reads the blocks of each sample of a paged cache.

use kvscatter::ElementType;
use pyo3::prelude::*;

use crate::array::Array;
use crate::failure::Failure;

const ARGUMENT: &str = "block_tables";

/// A copy of block tables.
pub(crate) struct BlockTables {
    /// The number of entries of each sample.
    pub(crate) per_sample: usize,
    pub(crate) samples: usize,
    pub(crate) values: Vec<i32>,
}

impl BlockTables {
    pub(crate) fn read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let array = Array::read(object, ARGUMENT)?;
        let &[samples, per_sample] = array.form.shape.as_slice() else {
            return Err(Failure::block_tables(array.form.shape.len()).into());
        };
        let values = match array.element().stored() {
            ElementType::Int32 => array.gather::<i32>()?,
            // A number that does not fit is no block.
            ElementType::Int64 => {
                let values = array.gather::<i64>()?.into_iter();
                values.map(|block| i32::try_from(block).unwrap_or(-1)).collect()
            }
            _ => {
                let got = array.element().to_string();
                return Err(Failure::NotIntegers { argument: ARGUMENT, list: None, got }.into());
            }
        };
        Ok(Self { per_sample, samples, values })
    }
}
