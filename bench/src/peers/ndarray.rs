//! ndarray's `slice_mut(…).assign(…)` per sample, on views of the scene's own memory.

use bytemuck::Pod;
use kvscatter_bench::{CacheDims, Call, Case, Engine, Failed, Form, Run, Scene, Unsupported, UpdateLayout};
use ndarray::{ArrayView4, ArrayViewMut4, s};

use super::limits::{check_threads, unsupported};

pub(super) struct Ndarray;

impl Engine for Ndarray {
    fn name(&self) -> &str {
        "ndarray assign"
    }

    fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        check_threads(case)?;
        Ok(match case.dims().bits {
            8 => Box::new(Assign::<u8>::new(case)),
            16 => Box::new(Assign::<u16>::new(case)),
            32 => Box::new(Assign::<u32>::new(case)),
            64 => Box::new(Assign::<u64>::new(case)),
            bits => return unsupported(format!("has no {bits}-bit elements")),
        })
    }
}

struct Assign<T> {
    dims: CacheDims,
    rows: usize,
    form: Form,
    update: UpdateLayout,
    element: std::marker::PhantomData<T>,
}

impl<T: Pod> Assign<T> {
    fn new(case: &Case) -> Self {
        let parameters = case.parameters();
        Self {
            dims: case.dims(),
            rows: parameters.rows,
            form: parameters.form,
            update: parameters.update,
            element: std::marker::PhantomData,
        }
    }
}

impl<T: Pod> Run for Assign<T> {
    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let CacheDims { batch, outer, capacity, inner, .. } = self.dims;
        let shape = (batch, outer, capacity, inner);
        let starts = call.starts;
        for tensor in call.buffers() {
            let update = bytemuck::cast_slice::<u8, T>(tensor.update);
            let update = match self.update {
                UpdateLayout::Dense => ArrayView4::from_shape((batch, outer, self.rows, inner), update)?,
                UpdateLayout::Bshd => ArrayView4::from_shape((batch, self.rows, outer, inner), update)?
                    .permuted_axes([0, 2, 1, 3]),
            };
            let (past, target) = match self.form {
                Form::InPlace => (None, &mut *tensor.cache),
                Form::Functional => (Some(&*tensor.cache), &mut *tensor.present),
            };
            let mut target = ArrayViewMut4::from_shape(shape, bytemuck::cast_slice_mut::<u8, T>(target))?;
            if let Some(past) = past {
                target.assign(&ArrayView4::from_shape(shape, bytemuck::cast_slice::<u8, T>(past))?);
            }
            for (sample, &start) in starts.iter().enumerate() {
                let start = start as usize;
                let first = self.rows.min(capacity - start);
                target.slice_mut(s![sample, .., start..start + first, ..]).assign(&update.slice(s![
                    sample,
                    ..,
                    ..first,
                    ..
                ]));
                if first < self.rows {
                    target.slice_mut(s![sample, .., ..self.rows - first, ..]).assign(&update.slice(s![
                        sample,
                        ..,
                        first..,
                        ..
                    ]));
                }
            }
        }
        Ok(())
    }
}
