//! The compiled part of kvscatter for Python, `kvscatter._native`.
//!
//! The modules translate arguments and call the core. `array` describes a tensor of any library in the
//! core's types, `indices` copies positions, `write` calls the core, and `error` turns the core's errors
//! into exceptions. `cuda` does the same for arrays on a device. `session` and `generate` run decoders in
//! the ONNX Runtime of this Python, which `runtime` loads, and `signals` lets Ctrl-C interrupt a session.
//!
//! The module is also the plugin for ONNX Runtime, because it exports the functions of `kvscatter-ort-plugin`. `xla`
//! has the function that JAX registers with its compiler.

mod array;
mod attention;
mod attention_error;
mod block_tables;
mod cases;
mod command;
mod cuda;
mod dlpack;
mod dtype;
mod element;
mod error;
mod failure;
mod generate;
mod import;
mod indices;
mod integer;
mod kv_cache_operation;
mod kv_cache_update;
mod lazy;
mod logits;
mod model;
mod new_array;
mod numbers;
mod object_array;
mod options;
mod oracle_attention;
mod paged;
mod plan;
mod pool;
mod positions;
mod prepared;
mod prepared_scatter;
mod prepared_tensor;
mod reference;
mod ring;
mod runtime;
mod scatter;
mod session;
mod session_error;
mod shared_session;
mod signals;
mod strided;
mod timing;
mod torch;
mod transaction;
mod write;
mod xla;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::{
        attention::{PyPreparedAttention, attention, prepare_attention},
        cases::OracleCases,
        command::{capture_command, run_command},
        error::error_kinds,
        generate::{Generation, KeptGenerator, Model, Prompts},
        kv_cache_operation::kv_cache_operation_,
        kv_cache_update::kv_cache_update_,
        logits::{PyLogits, PySample},
        model::OnnxModel,
        options::{integer_within, resolve_axis},
        oracle_attention::oracle_attention,
        paged::module as paged,
        plan::{Plan, plan},
        positions::module as positions,
        prepared::{PyPrepared, prepare, restore_prepared, write_rows},
        reference::{oracle_kv_cache_operation, oracle_kv_cache_update, oracle_tensor_scatter},
        ring::module as ring,
        runtime::has_plugin,
        scatter::{tensor_scatter, tensor_scatter_, write_many},
        session::PyKvSession,
        timing::{time_memcpy, time_rust_call},
        transaction::PyTransaction,
        xla::{xla_attention_handlers, xla_check, xla_check_attention, xla_handlers},
    };

    use pyo3::prelude::*;

    use crate::cuda::{self, CudaStatus, CudaWrite};
    use crate::lazy;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // ONNX Runtime loads this module by its path, as a plugin, and the interpreter keeps it loaded.
        kvscatter_ort_plugin::stay_loaded();
        let py = module.py();
        lazy::initialize_libraries(py)?;
        PyPrepared::make_callable(py)?;
        // These classes are exported under their own names by `kvscatter.cuda`.
        module.add("CudaStatus", py.get_type::<CudaStatus>())?;
        module.add("CudaWrite", py.get_type::<CudaWrite>())?;
        module.add("cuda_driver_version", wrap_pyfunction!(cuda::driver_version, module)?)?;
        module.add("cuda_prepare", wrap_pyfunction!(cuda::prepare, module)?)?;
        let operation = wrap_pyfunction!(cuda::prepare_kv_cache_operation, module)?;
        module.add("cuda_prepare_kv_cache_operation", operation)?;
        module
            .add("cuda_prepare_kv_cache_update", wrap_pyfunction!(cuda::prepare_kv_cache_update, module)?)?;
        module.add("cuda_prepare_present", wrap_pyfunction!(cuda::prepare_present, module)?)?;
        module.add("cuda_prepare_slots", wrap_pyfunction!(cuda::prepare_slots, module)?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
