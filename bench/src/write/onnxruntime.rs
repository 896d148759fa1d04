//! ONNX Runtime's `TensorScatter`.
//!
//! One subject binds the cache as past and as present, so that the operator writes in place. The other lets ONNX
//! Runtime make a new cache in every call. Both times include the fixed cost of a run.

use std::time::Duration;

use kvscatter::Mode;
use kvscatter_onnx::Dimension;
use kvscatter_onnx::internal::text::units;
use kvscatter_session::{InPlaceCache, Session, Step, Tensor};

use super::case::{Form, UpdateLayout, Write};
use super::scene::Call;
use super::writer::Writer;
use crate::graph::{Builder, INT64, Versions, int, text, value};
use crate::measure::Failed;
use crate::runtimes::Runtime;

/// The most bytes that a subject may use for one case if it does not use the scene's memory.
const OWN_MEMORY_BYTES: usize = 3 << 29;

/// Refuses a case for a subject that cannot work on the scene's memory, unless the case has one cache, one thread and
/// at most [`OWN_MEMORY_BYTES`].
pub(super) fn check_own_memory(case: &Write, bytes: usize) -> Result<(), String> {
    if case.is_cold() {
        return Err("owns its memory, and there are many caches".to_owned());
    }
    if bytes > OWN_MEMORY_BYTES {
        return Err(format!("would allocate {}", units::bytes(bytes as u64)));
    }
    if case.threads > 1 { Err("runs on one thread here".to_owned()) } else { Ok(()) }
}

pub(super) fn node(case: &Write, runtime: Runtime<'_>, shared: bool) -> Result<Box<dyn Writer>, String> {
    check_own_memory(case, case.cache_bytes() + case.update_bytes())?;
    if shared && case.form == Form::Functional {
        return Err("is the in-place form".to_owned());
    }
    if case.update != UpdateLayout::Dense {
        return Err("needs a contiguous update".to_owned());
    }
    let element = case.element.onnx_code();
    let known = |shape: &[usize]| shape.iter().map(|&size| Dimension::Known(size)).collect::<Vec<_>>();
    let cache = known(&case.shape);
    let mut builder = Builder::default();
    builder.graph.input = vec![
        value("past", element, &cache),
        value("update", element, &known(&case.update_shape())),
        value("starts", INT64, &known(&case.shape[..1])),
    ];
    builder.graph.output = vec![value("present", element, &cache)];
    let mode = if case.mode == Mode::Circular { "circular" } else { "linear" };
    let attributes = vec![int("axis", case.axis), text("mode", mode)];
    builder.node("TensorScatter", &["past", "update", "starts"], "present", attributes);
    let session = runtime.load(&builder.finish("tensor_scatter", Versions { ir: 12, opset: 24 }), 1)?;
    Ok(Box::new(Node {
        session,
        case: case.clone(),
        shared,
        inputs: None,
        starts: Vec::new(),
        elapsed: Duration::ZERO,
    }))
}

struct Node {
    session: Box<dyn Session>,
    case: Write,
    shared: bool,
    inputs: Option<Inputs>,
    starts: Vec<i64>,
    elapsed: Duration,
}

struct Inputs {
    cache: Tensor,
    update: Tensor,
    starts: Tensor,
}

impl Node {
    /// Makes one call, and returns the present if ONNX Runtime has made it.
    fn run(&mut self, call: &Call<'_>) -> Result<Option<Tensor>, Failed> {
        let copied = |shape: &[usize], bytes: &[u8]| {
            let mut tensor = Tensor::zeros(self.case.element, shape)?;
            tensor.bytes_mut().copy_from_slice(bytes);
            Ok::<_, Failed>(tensor)
        };
        let inputs = match &mut self.inputs {
            Some(inputs) => inputs,
            none => none.insert(Inputs {
                cache: copied(&self.case.shape, call.keys.cache)?,
                update: copied(&self.case.update_shape(), call.keys.update)?,
                starts: Tensor::int64s(&[self.starts.len()], &self.starts)?,
            }),
        };
        let mut step =
            Step { inputs: vec![("update", &inputs.update), ("starts", &inputs.starts)], ..Step::default() };
        if self.shared {
            step.shared.push(InPlaceCache { past: "past", present: "present", cache: &mut inputs.cache });
        } else {
            step.inputs.push(("past", &inputs.cache));
            step.returned.push("present");
        }
        let ran = self.session.run(step)?;
        self.elapsed += ran.elapsed;
        Ok(ran.returned.into_iter().next())
    }
}

impl Writer for Node {
    fn aim(&mut self, starts: &[i64]) {
        self.starts = starts.to_vec();
        // The next call makes the tensors again.
        self.inputs = None;
    }

    fn write(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        self.run(call).map(drop)
    }

    fn elapsed(&mut self) -> Option<Duration> {
        Some(std::mem::take(&mut self.elapsed))
    }

    /// Calls once more if each call makes a new cache. The past has not changed.
    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let present = self.run(call)?;
        let present = present.as_ref().or(self.inputs.as_ref().map(|inputs| &inputs.cache));
        let target =
            if self.case.form == Form::InPlace { &mut call.keys.cache } else { &mut call.keys.present };
        target.copy_from_slice(present.ok_or("nothing was written")?.bytes());
        Ok(())
    }
}
