//! Ours, called as a host calls it: prepared once, one plan per call.

use std::marker::PhantomData;
use std::sync::Arc;

use ::kvscatter::spec::onnx::TensorScatter;
use ::kvscatter::{Error, Layout, Mode, WritePlan};
use bytemuck::Pod;

use crate::case::{Case, Form};
use crate::engine::{Call, Engine, Failed, Run, Task, Tensor, Unsupported};
use crate::engines::{KVSCATTER, SINGLE, UNWRAPPED};
use crate::raw::Pool;
use crate::scene::Scene;

/// `TensorScatter` as the library does it.
#[derive(Debug)]
pub struct Kvscatter {
    name: &'static str,
    task: Task,
    pool: Option<Arc<Pool>>,
}

/// What a host keeps between calls.
struct Prepared<E> {
    write: ::kvscatter::Prepared,
    form: Form,
    starts: Vec<i64>,
    /// The last start that does not wrap, for [`Task::Unwrapped`].
    last: Option<i64>,
    elements: PhantomData<E>,
}

/// How a plan is given the buffers.
trait Elements: 'static {
    fn in_place(plan: &WritePlan<'_>, tensor: &mut Tensor<'_>) -> Result<(), Error>;
    fn functional(plan: &WritePlan<'_>, tensor: &mut Tensor<'_>) -> Result<(), Error>;
}

/// Slices of an integer as wide as the element.
struct Typed<T>(PhantomData<T>);

/// Two 4-bit elements to a byte.
struct Packed;

impl Kvscatter {
    /// On the calling thread.
    #[must_use]
    pub fn new() -> Self {
        Self { name: KVSCATTER, task: Task::Write, pool: None }
    }

    /// On a host's pool.
    #[must_use]
    pub fn on(pool: Arc<Pool>) -> Self {
        Self { name: KVSCATTER, task: Task::Write, pool: Some(pool) }
    }

    /// On the calling thread, beside one that has a pool.
    #[must_use]
    pub fn single() -> Self {
        Self { name: SINGLE, task: Task::Write, pool: None }
    }

    /// The same rows in linear mode.
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
        if self.pool.is_some() {
            return Err(Unsupported("the library has no executor yet".to_owned()));
        }
        Ok(match case.sides().bits {
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
    fn prepared<E>(&self, case: &Case) -> Result<Prepared<E>, Unsupported> {
        let parameters = case.parameters();
        let unwrapped = self.task == Task::Unwrapped;
        let mode = if unwrapped { Mode::Linear } else { parameters.mode };
        let (shape, strides) = (case.update_shape(), case.update_strides());
        let update = match &strides {
            None => Layout::dense(&shape),
            Some(strides) => Layout::strided(&shape, strides),
        };
        let write = TensorScatter::new()
            .axis(parameters.axis)
            .mode(mode)
            .prepare(parameters.element, &parameters.shape[..], update)
            .map_err(|error| Unsupported(error.to_string()))?;
        let last = unwrapped.then_some((case.sides().capacity - parameters.rows) as i64);
        Ok(Prepared { write, form: parameters.form, starts: Vec::new(), last, elements: PhantomData })
    }
}

impl<E: Elements> Run for Prepared<E> {
    fn aim(&mut self, starts: &[i64]) {
        let last = self.last.unwrap_or(i64::MAX);
        self.starts = starts.iter().map(|&start| start.min(last)).collect();
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let plan = self.write.plan(&self.starts)?;
        for tensor in call.tensors() {
            match self.form {
                Form::InPlace => E::in_place(&plan, tensor)?,
                Form::Functional => E::functional(&plan, tensor)?,
            }
        }
        Ok(())
    }
}

impl<T: Pod> Elements for Typed<T> {
    #[inline]
    fn in_place(plan: &WritePlan<'_>, tensor: &mut Tensor<'_>) -> Result<(), Error> {
        let (cache, update) =
            (bytemuck::cast_slice_mut::<u8, T>(tensor.cache), bytemuck::cast_slice(tensor.update));
        plan.write(cache, update).map(drop)
    }

    #[inline]
    fn functional(plan: &WritePlan<'_>, tensor: &mut Tensor<'_>) -> Result<(), Error> {
        let (past, update) =
            (bytemuck::cast_slice::<u8, T>(tensor.cache), bytemuck::cast_slice(tensor.update));
        plan.into_present(past, update, bytemuck::cast_slice_mut(tensor.present)).map(drop)
    }
}

impl Elements for Packed {
    #[inline]
    fn in_place(plan: &WritePlan<'_>, tensor: &mut Tensor<'_>) -> Result<(), Error> {
        plan.write_bytes(tensor.cache, tensor.update).map(drop)
    }

    #[inline]
    fn functional(plan: &WritePlan<'_>, tensor: &mut Tensor<'_>) -> Result<(), Error> {
        plan.into_present_bytes(tensor.cache, tensor.update, tensor.present).map(drop)
    }
}
