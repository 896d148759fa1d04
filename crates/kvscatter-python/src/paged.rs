//! Writes into paged caches, and the slots of new tokens.

use kvscatter::spec::paged::{self, NewTokens, PagedWrite};
use kvscatter_xla::AttentionLayout;
use numpy::PyArray1;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

use crate::array::Array;
use crate::block_tables::BlockTables;
use crate::error::ArgumentNames;
use crate::failure::Failure;
use crate::indices::Indices;
use crate::options;
use crate::{prepared_scatter, write};

/// The module `kvscatter._native.paged`, whose functions are documented in `paged.py`.
#[pymodule(submodule, name = "paged", gil_used = false)]
pub(crate) mod module {
    use super::*;

    #[pyfunction]
    fn slot_mapping<'py>(
        block_tables: &Bound<'py, PyAny>,
        seq_lens: &Bound<'py, PyAny>,
        new_tokens: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = options::block_size)] block_size: usize,
        #[pyo3(from_py_with = options::num_blocks)] num_blocks: usize,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let py = block_tables.py();
        let tables = BlockTables::read(block_tables)?;
        let seq_lens = Indices::read(Some(seq_lens), "seq_lens")?.i32s()?;
        let new_tokens = Indices::list_or_one(new_tokens, "new_tokens")?;
        let counts = if new_tokens.batch().is_some() { new_tokens.i32s()? } else { Default::default() };
        let new_tokens = match new_tokens.batch() {
            Some(_) => NewTokens::Each(&counts),
            None => NewTokens::Same(new_tokens.size(0)?),
        };
        let tables = paged::BlockTables {
            block_tables: &tables.values,
            max_blocks: tables.per_sample,
            seq_lens: &seq_lens,
            block_size,
            num_blocks,
        };
        let raise = |refused| ArgumentNames::Specification.raise(py, refused);
        let count = tables.count_new_tokens(new_tokens).map_err(raise)?;
        let mut slots = Vec::new();
        slots.try_reserve_exact(count).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        slots.resize(count, 0);
        tables.slot_mapping(new_tokens, &mut slots).map_err(raise)?;
        Ok(PyArray1::from_vec(py, slots))
    }

    #[pyfunction]
    fn write_(
        pairs: &Bound<'_, PyAny>,
        slot_mapping: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = options::attention_layout)] layout: AttentionLayout,
        skip_negative: bool,
    ) -> PyResult<usize> {
        let py = pairs.py();
        let slots = Indices::read(Some(slot_mapping), "slot_mapping")?;
        let pairs = prepared_scatter::pairs(pairs)?;
        let pairs = pairs
            .iter()
            .map(|(cache, update)| Ok((Array::written(cache, "cache")?, Array::read(update, "update")?)))
            .collect::<PyResult<Vec<_>>>()?;
        let Some((cache, update)) = pairs.first() else { return Ok(0) };
        update.check_same_element(cache)?;
        let rank = cache.form.shape.len();
        if rank != 4 {
            return Err(Failure::ArrayRank { argument: cache.argument, rank, wanted: "4" }.into());
        }
        let axis = if layout == AttentionLayout::Bshd { PagedWrite::NHD } else { PagedWrite::HND };
        let operator = PagedWrite::new().axis(axis).skip_negative(skip_negative);
        let raise = |refused| ArgumentNames::InPlace.raise(py, refused);
        let prepared = operator
            .prepare(cache.element().stored(), cache.form.layout(), update.form.layout())
            .map_err(raise)?;
        for (pair, (other_cache, other_update)) in pairs.iter().enumerate() {
            cache.form.check_prepared(other_cache, pair)?;
            update.form.check_prepared(other_update, pair)?;
        }
        let plan = prepared.plan(slots.starts()).map_err(raise)?;
        write::write_many(py, &plan, &pairs, &[&slots])
    }
}
