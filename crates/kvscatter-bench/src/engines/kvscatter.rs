//! kvscatter, called as a host program calls it: it is prepared once and creates one plan for each call.

use std::marker::PhantomData;
use std::sync::Arc;

use ::kvscatter::spec::onnx::TensorScatter;
use ::kvscatter::{Error, Isa, Layout, Mode, WritePlan};
use bytemuck::Pod;

use crate::call::{Buffers, Call, Task};
use crate::case::{Case, Form, Parameters};
use crate::engine::{Engine, Failed, Run, Unsupported};
use crate::engines::{KVSCATTER, SINGLE, UNWRAPPED};
use crate::layout::starts_of;
use crate::raw::Pool;
use crate::scene::Scene;

/// kvscatter's `TensorScatter`.
#[derive(Debug)]
pub struct Kvscatter {
    name: &'static str,
    task: Task,
    pool: Option<Arc<Pool>>,
}

/// The state that a host program keeps between calls.
struct KvscatterRun<E> {
    write: ::kvscatter::Prepared,
    pool: Option<Arc<Pool>>,
    form: Form,
    case: Case,
    task: Task,
    starts: Vec<i64>,
    elements: PhantomData<E>,
}

/// The ways to pass buffers to the library.
trait Elements: 'static {
    /// Plans and writes one cache in place, in one call.
    fn once(write: &::kvscatter::Prepared, starts: &[i64], tensor: &mut Buffers<'_>) -> Result<(), Error>;
    fn in_place(plan: &WritePlan<'_>, tensor: &mut Buffers<'_>) -> Result<(), Error>;
    fn functional(plan: &WritePlan<'_>, tensor: &mut Buffers<'_>) -> Result<(), Error>;
}

/// Slices of an integer type that is as wide as the element.
struct Typed<T>(PhantomData<T>);

/// 4-bit elements, two in a byte.
struct Packed;

impl Kvscatter {
    /// Creates an engine that runs on the calling thread.
    #[must_use]
    pub fn new() -> Self {
        Self { name: KVSCATTER, task: Task::Write, pool: None }
    }

    /// Creates an engine that runs on a pool of threads of the host program.
    #[must_use]
    pub fn on(pool: Arc<Pool>) -> Self {
        Self { name: KVSCATTER, task: Task::Write, pool: Some(pool) }
    }

    /// Creates an engine that runs on the calling thread, to compare with one that has a pool.
    #[must_use]
    pub fn single() -> Self {
        Self { name: SINGLE, task: Task::Write, pool: None }
    }

    /// Creates an engine that writes the same rows in linear mode.
    #[must_use]
    pub fn unwrapped() -> Self {
        Self { name: UNWRAPPED, task: Task::Unwrapped, pool: None }
    }
}

impl Default for Kvscatter {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine for Kvscatter {
    fn name(&self) -> &str {
        self.name
    }

    fn task(&self) -> Task {
        self.task
    }

    fn prepare(&self, case: &Case, _scene: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        Ok(match case.dims().bits {
            4 => Box::new(self.prepared::<Packed>(case)?),
            8 => Box::new(self.prepared::<Typed<u8>>(case)?),
            16 => Box::new(self.prepared::<Typed<u16>>(case)?),
            32 => Box::new(self.prepared::<Typed<u32>>(case)?),
            64 => Box::new(self.prepared::<Typed<u64>>(case)?),
            _ => Box::new(self.prepared::<Typed<u128>>(case)?),
        })
    }
}

impl Kvscatter {
    fn prepared<E>(&self, case: &Case) -> Result<KvscatterRun<E>, Unsupported> {
        let mode = if self.task == Task::Unwrapped { Mode::Linear } else { case.parameters().mode };
        let write = prepare(case, mode).map_err(|error| Unsupported(error.to_string()))?;
        Ok(KvscatterRun {
            write,
            pool: self.pool.clone(),
            form: case.parameters().form,
            case: case.clone(),
            task: self.task,
            starts: Vec::new(),
            elements: PhantomData,
        })
    }
}

/// Returns the instruction set that the library's kernels use for a case, or `None` if the library does not
/// support the case.
pub(crate) fn isa(case: &Case) -> Option<Isa> {
    Some(prepare(case, case.parameters().mode).ok()?.isa())
}

fn prepare(case: &Case, mode: Mode) -> Result<::kvscatter::Prepared, Error> {
    let Parameters { ref shape, axis, element, .. } = *case.parameters();
    let (update, strides) = (case.update_shape(), case.update_strides());
    let update = match &strides {
        None => Layout::dense(&update),
        Some(strides) => Layout::strided(&update, strides),
    };
    TensorScatter::new().axis(axis).mode(mode).prepare(element, &shape[..], update)
}

impl<E: Elements> Run for KvscatterRun<E> {
    fn aim(&mut self, starts: &[i64]) {
        self.starts = starts_of(&self.case, self.task, starts);
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        if self.pool.is_none() && self.form == Form::InPlace && call.values.is_none() {
            return Ok(E::once(&self.write, &self.starts, &mut call.keys)?);
        }
        self.planned(call)
    }
}

impl<E: Elements> KvscatterRun<E> {
    /// Writes with one plan for each call. A write of one cache in place on one thread does not use this
    /// function.
    #[inline(never)]
    fn planned(&self, call: &mut Call<'_>) -> Result<(), Failed> {
        let mut plan = self.write.plan(&self.starts)?;
        if let Some(pool) = &self.pool {
            plan = plan.with_executor(pool.as_ref());
        }
        Ok(call.each(|tensor| match self.form {
            Form::InPlace => E::in_place(&plan, tensor),
            Form::Functional => E::functional(&plan, tensor),
        })?)
    }
}

impl<T: Pod> Elements for Typed<T> {
    #[inline]
    fn once(write: &::kvscatter::Prepared, starts: &[i64], tensor: &mut Buffers<'_>) -> Result<(), Error> {
        let (cache, update) =
            (bytemuck::cast_slice_mut::<u8, T>(tensor.cache), bytemuck::cast_slice(tensor.update));
        write.write(cache, update, starts).map(drop)
    }

    #[inline]
    fn in_place(plan: &WritePlan<'_>, tensor: &mut Buffers<'_>) -> Result<(), Error> {
        let (cache, update) =
            (bytemuck::cast_slice_mut::<u8, T>(tensor.cache), bytemuck::cast_slice(tensor.update));
        plan.write(cache, update).map(drop)
    }

    #[inline]
    fn functional(plan: &WritePlan<'_>, tensor: &mut Buffers<'_>) -> Result<(), Error> {
        let (past, update) =
            (bytemuck::cast_slice::<u8, T>(tensor.cache), bytemuck::cast_slice(tensor.update));
        plan.write_present(past, update, bytemuck::cast_slice_mut(tensor.present)).map(drop)
    }
}

impl Elements for Packed {
    #[inline]
    fn once(write: &::kvscatter::Prepared, starts: &[i64], tensor: &mut Buffers<'_>) -> Result<(), Error> {
        Self::in_place(&write.plan(starts)?, tensor)
    }

    #[inline]
    fn in_place(plan: &WritePlan<'_>, tensor: &mut Buffers<'_>) -> Result<(), Error> {
        plan.write_bytes(tensor.cache, tensor.update).map(drop)
    }

    #[inline]
    fn functional(plan: &WritePlan<'_>, tensor: &mut Buffers<'_>) -> Result<(), Error> {
        plan.write_present_bytes(tensor.cache, tensor.update, tensor.present).map(drop)
    }
}
