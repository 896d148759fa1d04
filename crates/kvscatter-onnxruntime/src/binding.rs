//! Binds the tensors of a step to a model's inputs and outputs.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};

use kvscatter::ElementType;
use ort::AsPointer;
use ort::memory::MemoryInfo;
use ort::session::{IoBinding, Session};
use ort::sys::OrtValue;
use ort::value::DynTensor;

use kvscatter_session::{SessionError, Step, Tensor};

use crate::element::runtime_element;
use crate::memory;

/// The bindings of a session. They stay from step to step, because a decoder has a hundred tensors, and most have the
/// same memory in every step.
///
/// Between steps, values in the binding can point to tensors that no longer exist. ONNX Runtime uses them only in a
/// run, and [`bind`](Self::bind) comes before every run.
pub(crate) struct Binding {
    binding: IoBinding,
    /// What is bound, in the order of [`entries`].
    bound: Vec<Bound>,
}

/// The input and the output that a tensor is bound to.
struct Bound {
    input: Option<String>,
    output: Option<String>,
    /// The memory that is bound, or `None` if that is not known.
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

    /// Binds every tensor of a step.
    ///
    /// The result may be used for one run, while `step` still borrows its tensors.
    pub(crate) fn bind(&mut self, session: &Session, step: &mut Step<'_>) -> Result<&IoBinding, ort::Error> {
        let entries = entries(step)?;
        let has_same_names = entries.len() == self.bound.len()
            && entries.iter().zip(&self.bound).all(|(entry, bound)| {
                entry.input == bound.input.as_deref() && entry.output == bound.output.as_deref()
            });
        if !has_same_names {
            self.binding.clear();
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
                // The value of the last run would be written again.
                entry.output.map_or(Ok(()), |name| self.binding.bind_output_to_device(name, &memory))?;
                continue;
            };
            if bound.region.as_ref() == Some(&region) {
                continue;
            }
            bound.region = None;
            // SAFETY: `data` is the memory of a tensor of `step`. A run uses the value only if a later call finds the
            // same memory in its own step, and otherwise that call replaces it. Both steps borrow the memory during
            // their run, exclusively if it is bound as an output, and `entries` has used `as_mut_ptr` for it.
            let value = unsafe { value(session, &memory, &region, data) }?;
            if let Some(name) = entry.input {
                self.binding.bind_input(name, &value)?;
            }
            if let Some(name) = entry.output {
                self.binding.bind_output(name, value)?;
            }
            bound.region = Some(region);
        }
        Ok(&self.binding)
    }

    /// Returns outputs of the last step as tensors. No two of them, and no tensor of the step, have the same memory.
    pub(crate) fn tensors(&self, values: Vec<DynTensor>) -> Result<Vec<Tensor>, SessionError> {
        let bound = self.bound.iter().filter_map(|bound| bound.region.as_ref());
        let mut taken: Vec<_> = bound.map(|region| region.address..region.address + region.len).collect();
        let tensor = |value| {
            let tensor = memory::output(value, &taken)?;
            taken.push(tensor.address()..tensor.address() + tensor.len());
            Ok(tensor)
        };
        values.into_iter().map(tensor).collect()
    }
}

/// Returns what a step binds.
fn entries<'s>(step: &'s mut Step<'_>) -> Result<Vec<Entry<'s>>, ort::Error> {
    let some = step.samples.clone();
    let mut entries = Vec::new();
    let inputs = step.inputs.iter().map(|input| (input, None));
    for ((name, tensor), samples) in inputs.chain(step.of_batch.iter().map(|input| (input, some.as_ref()))) {
        // ONNX Runtime does not write to tensors that are bound only as inputs.
        let data = tensor.as_ptr().map(<*const u8>::cast_mut);
        entries.push(Entry { input: Some(name), output: None, tensor: Some(part(tensor, data, samples)?) });
    }
    for shared in &mut step.shared {
        let data = shared.cache.as_mut_ptr();
        let tensor = Some(part(shared.cache, data, some.as_ref())?);
        entries.push(Entry { input: Some(shared.past), output: Some(shared.present), tensor });
    }
    for (name, tensor) in &mut step.outputs {
        let data = tensor.as_mut_ptr();
        entries.push(Entry {
            input: None,
            output: Some(name),
            tensor: Some(part(tensor, data, some.as_ref())?),
        });
    }
    for name in &step.returned {
        entries.push(Entry { input: None, output: Some(name), tensor: None });
    }
    Ok(entries)
}

/// Returns the region of all samples of a tensor or of some, and a pointer to it. `data` points to the tensor.
fn part(
    tensor: &Tensor,
    data: Option<*mut u8>,
    samples: Option<&Range<usize>>,
) -> Result<(Region, *mut u8), ort::Error> {
    let data = data.ok_or_else(|| ort::Error::new("a tensor is in another engine's memory"))?;
    let whole = || Some((0..tensor.len(), tensor.shape().to_vec()));
    let part = samples.map_or_else(whole, |samples| tensor.part(samples));
    let (bytes, shape) = part.ok_or_else(|| {
        ort::Error::new(format!("a tensor of shape {:?} has no samples {samples:?}", tensor.shape()))
    })?;
    let shape = shape
        .iter()
        .map(|&dim| i64::try_from(dim).map_err(|_| ort::Error::new(format!("dimension {dim} is too large"))))
        .collect::<Result<_, _>>()?;
    let data = data.wrapping_add(bytes.start);
    Ok((Region { address: data.addr(), len: bytes.len(), shape, element: tensor.element() }, data))
}

/// Creates an ONNX Runtime value in the memory at `data`, which is that of `region`.
///
/// # Safety
/// In every run that uses the value, these bytes must be allocated, and only ONNX Runtime may use them. It writes them
/// only if the value is bound as an output. In that case `data` must come from [`Tensor::as_mut_ptr`].
unsafe fn value(
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
