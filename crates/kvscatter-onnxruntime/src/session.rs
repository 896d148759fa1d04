//! Runs a model in ONNX Runtime with the session's tensors bound to its inputs and outputs.

use std::ffi::c_void;
use std::ops::Range;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::time::Instant;

use kvscatter::ElementType;
use ort::AsPointer;
use ort::memory::MemoryInfo;
use ort::session::{IoBinding, Session as RuntimeSession};
use ort::sys::OrtValue;
use ort::value::{DynTensor, DynTensorValueType, TensorElementType};

use kvscatter_session::{LoadOptions, Session, SessionError, Step, StepOutput, Tensor};

use crate::message::one_line;
use crate::{Version, plugin};

/// A loaded model.
pub(super) struct OrtSession {
    session: RuntimeSession,
    engine: String,
}

impl OrtSession {
    pub(super) fn load(
        environment: &ort::environment::Environment,
        model: &Path,
        options: LoadOptions,
        with_plugin: bool,
        version: Version,
        engine: String,
    ) -> Result<Self, SessionError> {
        let refused = |error: ort::Error| SessionError::Load {
            path: model.to_owned(),
            engine: engine.clone(),
            message: one_line(&error.to_string()),
        };
        let mut builder = RuntimeSession::builder(environment).map_err(refused)?;
        if let Some(threads) = options.threads {
            builder = builder.with_intra_threads(threads).map_err(|error| refused(error.into()))?;
        }
        let devices = plugin::devices(environment, with_plugin);
        let provider = plugin::options();
        builder = builder.with_devices(devices, Some(&provider)).map_err(|error| refused(error.into()))?;
        let session = builder.commit_from_file(model).map_err(refused)?;
        // The plugin brings kernels, which are right in every version.
        if !with_plugin
            && let Some(least) = least_version(&session)
            && version < least
        {
            let message = format!(
                "its metadata names ONNX Runtime {least} as the oldest that computes it correctly without kvscatter's \
                 plugin"
            );
            return Err(SessionError::Load { path: model.to_owned(), engine, message });
        }
        Ok(Self { session, engine })
    }
}

/// Returns the oldest version that computes a converted model correctly, as its metadata names it.
fn least_version(session: &RuntimeSession) -> Option<Version> {
    let metadata = session.metadata().ok()?;
    Version::parse(&metadata.custom("kvscatter.least_onnxruntime")?)
}

impl Session for OrtSession {
    fn takes_some_samples(&self) -> bool {
        true
    }

    fn run(&mut self, mut step: Step<'_>) -> Result<StepOutput, SessionError> {
        let engine = self.engine.clone();
        let refused = |error: &ort::Error| SessionError::Run {
            engine: engine.clone(),
            message: one_line(&error.to_string()),
        };
        // `binding` is dropped before `step`, and before the tensors that `step` borrows.
        let binding = bind(&self.session, &mut step).map_err(|error| refused(&error))?;
        let start = Instant::now();
        let outputs = self.session.run_binding(&binding);
        let elapsed = start.elapsed();
        let mut outputs = outputs.map_err(|error| refused(&error))?;
        let mut output = |name: &str| {
            let value = outputs.remove(name).and_then(|value| value.downcast::<DynTensorValueType>().ok());
            value.ok_or_else(|| SessionError::Run {
                engine: engine.clone(),
                message: format!("output {name:?} is not a tensor"),
            })
        };
        let mut present_at = Vec::with_capacity(step.shared.len());
        for shared in &step.shared {
            present_at.push(output(shared.present)?.data_ptr().addr());
        }
        let mut returned = Vec::with_capacity(step.returned.len());
        for name in &step.returned {
            returned.push(copy(&output(name)?)?);
        }
        Ok(StepOutput { returned, present_at, elapsed })
    }
}

/// Binds every tensor of a step. The binding contains pointers to the tensors, so [`OrtSession::run`] drops
/// it first.
fn bind(session: &RuntimeSession, step: &mut Step<'_>) -> Result<IoBinding, ort::Error> {
    let mut binding = session.create_binding()?;
    let memory = MemoryInfo::default();
    let some = step.samples.as_ref();
    let inputs = step.inputs.iter().map(|input| (input, None));
    for ((name, tensor), samples) in inputs.chain(step.of_batch.iter().map(|input| (input, some))) {
        // ONNX Runtime does not write to tensors that are bound only as inputs.
        let data = tensor.as_ptr().ok_or_else(foreign_memory)?.cast_mut();
        // SAFETY: `data` is the memory of `tensor`, which `step` borrows, and the binding is dropped before
        // `step`.
        let value = unsafe { borrow(session, &memory, tensor, data, samples) }?;
        binding.bind_input(*name, &value)?;
    }
    for shared in &mut step.shared {
        let data = shared.cache.as_mut_ptr().ok_or_else(foreign_memory)?;
        // SAFETY: `data` comes from `as_mut_ptr` of `shared.cache`, which `step` borrows exclusively, and the
        // binding is dropped before `step`. No other value uses this memory.
        let cache = unsafe { borrow(session, &memory, shared.cache, data, some) }?;
        binding.bind_input(shared.past, &cache)?;
        binding.bind_output(shared.present, cache)?;
    }
    for (name, tensor) in &mut step.outputs {
        let data = tensor.as_mut_ptr().ok_or_else(foreign_memory)?;
        // SAFETY: `data` is the memory of `tensor`, which `step` borrows, and the binding is dropped before
        // `step`.
        let value = unsafe { borrow(session, &memory, tensor, data, some) }?;
        binding.bind_output(*name, value)?;
    }
    for name in &step.returned {
        binding.bind_output_to_device(*name, &memory)?;
    }
    Ok(binding)
}

fn foreign_memory() -> ort::Error {
    ort::Error::new("a tensor is in another engine's memory")
}

/// Creates an ONNX Runtime value in the memory of `tensor`, which is at `data`. It has all samples or some of them.
///
/// # Safety
/// `data` must point to the `tensor.len()` bytes of `tensor`. Until the value and every binding that contains
/// it are dropped, these bytes must be allocated, and only ONNX Runtime may use them. ONNX Runtime writes
/// them only if the value is bound as an output. In that case `data` must come from [`Tensor::as_mut_ptr`].
unsafe fn borrow(
    session: &RuntimeSession,
    memory: &MemoryInfo<'_>,
    tensor: &Tensor,
    data: *mut u8,
    samples: Option<&Range<usize>>,
) -> Result<DynTensor, ort::Error> {
    let whole = || Some((0..tensor.len(), tensor.shape().to_vec()));
    let part = samples.map_or_else(whole, |samples| tensor.part(samples));
    let (bytes, shape) = part.ok_or_else(|| {
        ort::Error::new(format!("a tensor of shape {:?} has no samples {samples:?}", tensor.shape()))
    })?;
    let data = data.wrapping_add(bytes.start);
    let shape: Vec<i64> = shape
        .iter()
        .map(|&dim| i64::try_from(dim).map_err(|_| ort::Error::new(format!("dimension {dim} is too large"))))
        .collect::<Result<_, _>>()?;
    let element = runtime_element(tensor.element())
        .ok_or_else(|| ort::Error::new(format!("tensors of {} are not supported", tensor.element())))?;
    let mut value: *mut OrtValue = ptr::null_mut();
    // SAFETY: `data` points to `bytes.len()` bytes of the tensor, because `bytes` is a range of its
    // `tensor.len()` bytes. They outlive the value (this function's contract). `shape` has `shape.len()`
    // elements. ONNX Runtime copies the shape and checks it against the number of bytes. `value` receives the
    // result.
    let status = unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            memory.ptr(),
            data.cast::<c_void>(),
            bytes.len(),
            shape.as_ptr(),
            shape.len(),
            element.into(),
            &raw mut value,
        )
    };
    // SAFETY: The call above returned `status`, and nothing else uses it.
    unsafe { ort::Error::result_from_status(status) }?;
    let value = NonNull::new(value).ok_or_else(|| ort::Error::new("ONNX Runtime created no value"))?;
    // SAFETY: The call above created `value`, which is a tensor and has no other owner. The value keeps the
    // session's allocator alive but does not use it, because ONNX Runtime does not own the memory.
    Ok(unsafe { DynTensor::from_ptr(value, Some(session.allocator())) })
}

/// Copies an ONNX Runtime value to a tensor.
fn copy(value: &DynTensor) -> Result<Tensor, SessionError> {
    // All types except strings are in `TYPES`, and `zeros` returns an error for strings.
    let element = core_element(*value.data_type()).unwrap_or(ElementType::String);
    let shape: Vec<usize> =
        value.shape().iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
    let mut tensor = Tensor::zeros(element, &shape)?;
    let len = tensor.bytes().len();
    if let Some(data) = tensor.as_mut_ptr().filter(|_| len > 0) {
        // SAFETY: `value` is a dense tensor in main memory. `len` was computed from its shape and type, and
        // `tensor` is new memory of `len` bytes.
        unsafe { ptr::copy_nonoverlapping(value.data_ptr().cast::<u8>(), data, len) };
    }
    Ok(tensor)
}

/// The element types that the core and ONNX Runtime have in common, except strings.
const TYPES: [(ElementType, TensorElementType); 23] = [
    (ElementType::BFloat16, TensorElementType::Bfloat16),
    (ElementType::Bool, TensorElementType::Bool),
    (ElementType::Complex128, TensorElementType::Complex128),
    (ElementType::Complex64, TensorElementType::Complex64),
    (ElementType::Float64, TensorElementType::Float64),
    (ElementType::Float32, TensorElementType::Float32),
    (ElementType::Float16, TensorElementType::Float16),
    (ElementType::Float4E2M1, TensorElementType::Float4E2M1),
    (ElementType::Float8E4M3Fn, TensorElementType::Float8E4M3FN),
    (ElementType::Float8E4M3FnUz, TensorElementType::Float8E4M3FNUZ),
    (ElementType::Float8E5M2, TensorElementType::Float8E5M2),
    (ElementType::Float8E5M2FnUz, TensorElementType::Float8E5M2FNUZ),
    (ElementType::Float8E8M0, TensorElementType::Float8E8M0),
    (ElementType::Int16, TensorElementType::Int16),
    (ElementType::Int32, TensorElementType::Int32),
    (ElementType::Int4, TensorElementType::Int4),
    (ElementType::Int64, TensorElementType::Int64),
    (ElementType::Int8, TensorElementType::Int8),
    (ElementType::UInt16, TensorElementType::Uint16),
    (ElementType::UInt32, TensorElementType::Uint32),
    (ElementType::UInt4, TensorElementType::Uint4),
    (ElementType::UInt64, TensorElementType::Uint64),
    (ElementType::UInt8, TensorElementType::Uint8),
];

fn runtime_element(element: ElementType) -> Option<TensorElementType> {
    TYPES.iter().find(|(of_core, _)| *of_core == element).map(|(_, of_runtime)| *of_runtime)
}

fn core_element(element: TensorElementType) -> Option<ElementType> {
    TYPES.iter().find(|(_, of_runtime)| *of_runtime == element).map(|(of_core, _)| *of_core)
}
