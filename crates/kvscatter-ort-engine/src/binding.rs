//! Binds the tensors of a step to a model's inputs and outputs.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::time::Instant;

use kvscatter::ElementType;
use ort::AsPointer;
use ort::memory::MemoryInfo;
use ort::session::{IoBinding, Session};
use ort::sys::OrtValue;
use ort::value::{DynTensor, DynTensorValueType};

use kvscatter_session::{SessionError, Step, StepOutput, Tensor};

use crate::element::runtime_element;
use crate::memory::{self, OutputMemory};
use crate::message::one_line;

/// The bindings of a session. They stay from step to step, because a decoder has a hundred tensors, and most have the
/// same memory in every step.
///
/// Binding copies no data, because every tensor and every device of a session is in main memory. A run reads the values
/// that the memory has at that time. Between steps, the binding can have pointers to tensors that no longer exist.
/// ONNX Runtime uses them only in a run, and [`run`](Self::run) replaces them before.
pub(crate) struct Binding {
    binding: IoBinding,
    /// What is bound, in the order of [`entries`].
    bound: Vec<Bound>,
}

/// The input and the output that a tensor is bound to.
struct Bound {
    input: Option<String>,
    output: Option<String>,
    /// The memory that was bound. `None` if nothing was, if binding failed, or if ONNX Runtime allocates the output.
    region: Option<Region>,
}

/// The part of a tensor that a run uses.
#[derive(PartialEq, Eq)]
struct Region {
    address: usize,
    len: usize,
    shape: Vec<i64>,
    element: ElementType,
}

/// A tensor of a step, or an output that has no tensor because only ONNX Runtime knows its shape.
struct Entry<'s> {
    input: Option<&'s str>,
    output: Option<&'s str>,
    /// The region, and a pointer to its first byte.
    tensor: Option<(Region, *mut u8)>,
}

impl Binding {
    pub(crate) fn new(session: &Session) -> Result<Self, ort::Error> {
        Ok(Self { binding: session.create_binding()?, bound: Vec::new() })
    }

    /// Binds every tensor of a step, and runs the model.
    pub(crate) fn run(
        &mut self,
        session: &mut Session,
        mut step: Step<'_>,
        engine: &str,
    ) -> Result<StepOutput, SessionError> {
        let refused =
            |message: &str| SessionError::Run { engine: engine.to_owned(), message: one_line(message) };
        // If this fails, nothing may run.
        self.bind(session, &mut step).map_err(|error| refused(&error.to_string()))?;
        let start = Instant::now();
        let outputs = session.run_binding(&self.binding);
        let elapsed = start.elapsed();
        let mut outputs = outputs.map_err(|error| refused(&error.to_string()))?;
        let mut output = |name: &str| {
            let value = outputs.remove(name).and_then(|value| value.downcast::<DynTensorValueType>().ok());
            value.ok_or_else(|| refused(&format!("output {name:?} is not a tensor")))
        };
        let mut present_at = Vec::with_capacity(step.shared.len());
        for shared in &step.shared {
            present_at.push(output(shared.present)?.data_ptr().addr());
        }
        let bound = self.bound.iter().filter_map(|bound| bound.region.as_ref());
        let mut taken: Vec<_> = bound.map(|region| region.address..region.address + region.len).collect();
        let mut returned = Vec::with_capacity(step.returned.len());
        for name in &step.returned {
            let tensor = memory::output(output(name)?, &taken)?;
            taken.push(tensor.address()..tensor.address() + tensor.len());
            returned.push(tensor);
        }
        Ok(StepOutput { returned, present_at, elapsed })
    }

    /// Binds every tensor of a step. After an error, the next call binds what is missing.
    fn bind(&mut self, session: &Session, step: &mut Step<'_>) -> Result<(), ort::Error> {
        let entries = entries(step)?;
        let has_same_names = entries.len() == self.bound.len()
            && entries.iter().zip(&self.bound).all(|(entry, bound)| {
                entry.input == bound.input.as_deref() && entry.output == bound.output.as_deref()
            });
        if !has_same_names {
            self.binding.clear();
            self.bound.clear();
            check_names(&entries)?;
            let unbound = |Entry { input, output, .. }: &Entry<'_>| Bound {
                input: input.map(str::to_owned),
                output: output.map(str::to_owned),
                region: None,
            };
            self.bound = entries.iter().map(unbound).collect();
        }
        let memory = MemoryInfo::default();
        for (entry, bound) in entries.into_iter().zip(&mut self.bound) {
            let Some((region, data)) = entry.tensor else {
                // A run leaves its value in the binding. If it stayed, the next run would write to it, although a
                // caller may still have it as `OutputMemory`.
                entry.output.map_or(Ok(()), |name| self.binding.bind_output_to_device(name, &memory))?;
                continue;
            };
            if bound.region.as_ref() == Some(&region) {
                continue;
            }
            bound.region = None;
            // SAFETY: The run of this step uses the value while `step` borrows the tensor. If it is bound as an output,
            // the borrow is exclusive, and `entries` has used `as_mut_ptr`. Before each later run, this function checks
            // that the tensor of that step has the same memory, and replaces the value if not. If it fails, nothing
            // runs.
            let value = unsafe { create_value(session, &memory, &region, data) }?;
            if let Some(name) = entry.input {
                self.binding.bind_input(name, &value)?;
            }
            if let Some(name) = entry.output {
                self.binding.bind_output(name, value)?;
            }
            bound.region = Some(region);
        }
        Ok(())
    }
}

/// Checks that no two tensors have the same name.
fn check_names(entries: &[Entry<'_>]) -> Result<(), ort::Error> {
    let mut seen = BTreeSet::new();
    for (is_input, name) in entries.iter().flat_map(|entry| [(true, entry.input), (false, entry.output)]) {
        if let Some(name) = name
            && !seen.insert((is_input, name))
        {
            return Err(ort::Error::new(format!("two tensors have the name {name:?}")));
        }
    }
    Ok(())
}

/// Returns what a step binds.
fn entries<'s>(step: &'s mut Step<'_>) -> Result<Vec<Entry<'s>>, ort::Error> {
    let samples = step.samples.clone();
    let samples = samples.as_ref();
    let mut entries = Vec::new();
    let of_run = step.inputs.iter().map(|input| (input, None));
    for ((name, tensor), samples) in of_run.chain(step.of_batch.iter().map(|input| (input, samples))) {
        let returned = || tensor.memory::<OutputMemory>().map(OutputMemory::as_ptr);
        // ONNX Runtime does not write to tensors that are bound only as inputs.
        let data = tensor.as_ptr().or_else(returned).map(<*const u8>::cast_mut);
        entries.push(Entry { input: Some(name), output: None, tensor: Some(part(tensor, data, samples)?) });
    }
    for shared in &mut step.shared {
        let data = shared.cache.as_mut_ptr();
        let tensor = Some(part(shared.cache, data, samples)?);
        entries.push(Entry { input: Some(shared.past), output: Some(shared.present), tensor });
    }
    for (name, tensor) in &mut step.outputs {
        let data = tensor.as_mut_ptr();
        entries.push(Entry { input: None, output: Some(name), tensor: Some(part(tensor, data, samples)?) });
    }
    for name in &step.returned {
        entries.push(Entry { input: None, output: Some(name), tensor: None });
    }
    Ok(entries)
}

/// Returns the region of a tensor or of some of its samples, and a pointer to it. `data` points to the tensor.
fn part(
    tensor: &Tensor,
    data: Option<*mut u8>,
    samples: Option<&Range<usize>>,
) -> Result<(Region, *mut u8), ort::Error> {
    let data = data.ok_or_else(|| ort::Error::new("a tensor is in memory that this engine cannot use"))?;
    let whole = || Some((0..tensor.len(), tensor.shape().to_vec()));
    let (bytes, shape) = samples.map_or_else(whole, |samples| tensor.part(samples)).ok_or_else(|| {
        ort::Error::new(format!("a tensor of shape {:?} has no samples {samples:?}", tensor.shape()))
    })?;
    let shape = shape
        .iter()
        .map(|&dim| i64::try_from(dim).map_err(|_| ort::Error::new(format!("dimension {dim} is too large"))))
        .collect::<Result<_, _>>()?;
    let data = data.wrapping_add(bytes.start);
    // A value that was made for an earlier tensor at this address may be used for this one.
    let address = data.expose_provenance();
    Ok((Region { address, len: bytes.len(), shape, element: tensor.element() }, data))
}

/// Creates an ONNX Runtime value in the memory at `data`, which is that of `region`.
///
/// # Safety
/// In every run that uses the value, these bytes must be allocated, and only ONNX Runtime may use them. It writes them
/// only if the value is bound as an output. In that case `data` must come from [`Tensor::as_mut_ptr`].
unsafe fn create_value(
    session: &Session,
    memory: &MemoryInfo<'_>,
    region: &Region,
    data: *mut u8,
) -> Result<DynTensor, ort::Error> {
    let element = runtime_element(region.element)
        .ok_or_else(|| ort::Error::new(format!("tensors of {} are not supported", region.element)))?;
    let mut value: *mut OrtValue = ptr::null_mut();
    // SAFETY: ONNX Runtime stores `data`, and does not follow it here. `shape` has `shape.len()` elements. ONNX Runtime
    // copies the shape and checks it against the number of bytes. `value` receives the result.
    let status = unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            memory.ptr(),
            data.cast::<c_void>(),
            region.len,
            region.shape.as_ptr(),
            region.shape.len(),
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
