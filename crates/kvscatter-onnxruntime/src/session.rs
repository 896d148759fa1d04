//! A model in ONNX Runtime: our tensors bound to its inputs and outputs, then run.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::time::Instant;

use kvscatter::ElementType;
use ort::AsPointer;
use ort::memory::MemoryInfo;
use ort::session::{IoBinding, Session as Loaded};
use ort::sys::OrtValue;
use ort::value::{DynTensor, DynTensorValueType, TensorElementType};

use kvscatter_session::{Error, Options, Ran, Session, Step, Tensor};

/// A loaded model.
pub(super) struct OrtSession {
    session: Loaded,
    engine: String,
}

impl OrtSession {
    pub(super) fn load(
        environment: &ort::environment::Environment,
        model: &Path,
        options: Options,
        engine: String,
    ) -> Result<Self, Error> {
        let says =
            |says: String| Error::Load { path: model.to_owned(), engine: engine.clone(), says: plain(&says) };
        let mut builder = Loaded::builder(environment).map_err(|error| says(error.to_string()))?;
        if let Some(threads) = options.threads {
            builder = builder.with_intra_threads(threads).map_err(|error| says(error.to_string()))?;
        }
        let session = builder.commit_from_file(model).map_err(|error| says(error.to_string()))?;
        Ok(Self { session, engine })
    }
}

impl Session for OrtSession {
    fn run(&mut self, mut step: Step<'_>) -> Result<Ran, Error> {
        let engine = self.engine.clone();
        let refused =
            |error: &ort::Error| Error::Run { engine: engine.clone(), says: plain(&error.to_string()) };
        // Dropped before this function returns, and `step` with its borrows lives as long.
        let binding = bind(&self.session, &mut step).map_err(|error| refused(&error))?;
        let start = Instant::now();
        let outputs = self.session.run_binding(&binding);
        let elapsed = start.elapsed();
        let mut outputs = outputs.map_err(|error| refused(&error))?;
        let mut output = |name: &str| {
            let value = outputs.remove(name).and_then(|value| value.downcast::<DynTensorValueType>().ok());
            value.ok_or_else(|| Error::Run {
                engine: engine.clone(),
                says: format!("output {name:?} is no tensor"),
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
        Ok(Ran { returned, present_at, elapsed })
    }
}

/// Binds every tensor of a step. The binding holds pointers into them: it must go before they do.
fn bind(session: &Loaded, step: &mut Step<'_>) -> Result<IoBinding, ort::Error> {
    let mut binding = session.create_binding()?;
    for (name, tensor) in &step.inputs {
        // ONNX Runtime only reads what is bound as an input and as nothing else.
        let data = tensor.as_ptr().ok_or_else(not_ours)?.cast_mut();
        binding.bind_input(*name, &view(session, tensor, data)?)?;
    }
    for shared in &mut step.shared {
        let data = shared.cache.as_mut_ptr().ok_or_else(not_ours)?;
        binding.bind_input(shared.past, &view(session, shared.cache, data)?)?;
        binding.bind_output(shared.present, view(session, shared.cache, data)?)?;
    }
    for (name, tensor) in &mut step.outputs {
        let data = tensor.as_mut_ptr().ok_or_else(not_ours)?;
        binding.bind_output(*name, view(session, tensor, data)?)?;
    }
    for name in &step.returned {
        binding.bind_output_to_device(*name, &MemoryInfo::default())?;
    }
    Ok(binding)
}

fn not_ours() -> ort::Error {
    ort::Error::new("a tensor lies in another engine's memory")
}

/// A value of ONNX Runtime's whose elements lie at `data`, which is where `tensor`'s lie.
fn view(session: &Loaded, tensor: &Tensor, data: *mut u8) -> Result<DynTensor, ort::Error> {
    let shape: Vec<i64> = tensor
        .shape()
        .iter()
        .map(|&dim| i64::try_from(dim).map_err(|_| ort::Error::new(format!("dimension {dim} is too large"))))
        .collect::<Result<_, _>>()?;
    let element = theirs(tensor.element())
        .ok_or_else(|| ort::Error::new(format!("tensors of {} are not handed over", tensor.element())))?;
    let memory = MemoryInfo::default();
    let mut value: *mut OrtValue = ptr::null_mut();
    // SAFETY: `data` is where a tensor of a session's own has its bytes, valid for as long as the binding that the value
    // goes into lives, as `run` sees to; `shape` has as many entries as are claimed, and ONNX Runtime checks that the bytes suffice for it
    // and copies it; `value` is ours to be written.
    let status = unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            memory.ptr(),
            data.cast::<c_void>(),
            tensor.len(),
            shape.as_ptr(),
            shape.len(),
            element.into(),
            &raw mut value,
        )
    };
    // SAFETY: the status is what the call above returned, and is used once.
    unsafe { ort::Error::result_from_status(status) }?;
    let value = NonNull::new(value).ok_or_else(|| ort::Error::new("no value was made"))?;
    // SAFETY: the value was made above and nobody else has it. It is a tensor, for which an allocator is named, which
    // is kept alive and not used, since the memory is ours.
    Ok(unsafe { DynTensor::from_ptr(value, Some(session.allocator())) })
}

/// A tensor of our own with the values of one of ONNX Runtime's.
fn copy(value: &DynTensor) -> Result<Tensor, Error> {
    // Strings, which are the one type left, are no bytes: `zeros` refuses them.
    let element = ours(*value.data_type()).unwrap_or(ElementType::String);
    let shape: Vec<usize> =
        value.shape().iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
    let mut tensor = Tensor::zeros(element, &shape)?;
    let len = tensor.bytes().len();
    if let Some(data) = tensor.as_mut_ptr().filter(|_| len > 0) {
        // SAFETY: the value is a dense tensor in the main memory of the shape and type that `len` was computed from,
        // and the new tensor's memory is apart from it.
        unsafe { ptr::copy_nonoverlapping(value.data_ptr().cast::<u8>(), data, len) };
    }
    Ok(tensor)
}

/// The types that our memory holds, and theirs: all but strings.
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

fn theirs(ours: ElementType) -> Option<TensorElementType> {
    TYPES.iter().find(|(element, _)| *element == ours).map(|(_, theirs)| *theirs)
}

fn ours(theirs: TensorElementType) -> Option<ElementType> {
    TYPES.iter().find(|(_, element)| *element == theirs).map(|(ours, _)| *ours)
}

/// Their message in one line, without the place in their source and the condition that was checked there.
fn plain(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some((node, says)) = line.split_once(" Status Message: ") else { return line };
    let node = node.trim_start_matches("Non-zero status code returned while running ");
    let says = says.split_once(" was false. ").map_or(says, |(_, says)| says);
    format!("{node}: {says}")
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn what_went_wrong_is_kept_and_where_in_their_source_is_not() {
        let message = "Non-zero status code returned while running TensorScatter node. Name:'write' Status Message: \
                       /src/tensorscatter.cc:83 virtual Status Compute() wi <= max was false. index 64 is too large\n";
        assert_eq!(plain(message), "TensorScatter node. Name:'write': index 64 is too large");
        assert_eq!(plain("Missing Input:\n k"), "Missing Input: k");
    }
}
