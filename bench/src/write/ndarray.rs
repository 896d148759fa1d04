//! ndarray's `slice_mut(…).assign(…)` per sample, on views of the scene's own memory.

use std::marker::PhantomData;

use bytemuck::Pod;
use ndarray::{ArrayView4, ArrayViewMut4, s};

use super::case::{Dims, Form, UpdateLayout, Write};
use super::scene::Call;
use super::writer::Writer;
use crate::measure::Failed;

pub(super) fn assign(case: &Write) -> Result<Box<dyn Writer>, String> {
    if case.threads > 1 {
        return Err("runs on one thread here".to_owned());
    }
    Ok(match case.dims().bits {
        8 => Box::new(Assign::<u8> { case: case.clone(), element: PhantomData }),
        16 => Box::new(Assign::<u16> { case: case.clone(), element: PhantomData }),
        32 => Box::new(Assign::<u32> { case: case.clone(), element: PhantomData }),
        64 => Box::new(Assign::<u64> { case: case.clone(), element: PhantomData }),
        bits => return Err(format!("has no {bits}-bit elements")),
    })
}

struct Assign<T> {
    case: Write,
    element: PhantomData<T>,
}

impl<T: Pod> Writer for Assign<T> {
    fn write(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let Dims { batch, outer, capacity, inner, .. } = self.case.dims();
        let (shape, rows) = ((batch, outer, capacity, inner), self.case.rows);
        let starts = call.starts;
        call.each(|buffers| {
            let update = bytemuck::cast_slice::<u8, T>(buffers.update);
            let update = match self.case.update {
                UpdateLayout::Dense => ArrayView4::from_shape((batch, outer, rows, inner), update)?,
                UpdateLayout::Bshd => {
                    ArrayView4::from_shape((batch, rows, outer, inner), update)?.permuted_axes([0, 2, 1, 3])
                }
            };
            let (past, target) = match self.case.form {
                Form::InPlace => (None, &mut *buffers.cache),
                Form::Functional => (Some(&*buffers.cache), &mut *buffers.present),
            };
            let mut target = ArrayViewMut4::from_shape(shape, bytemuck::cast_slice_mut::<u8, T>(target))?;
            if let Some(past) = past {
                target.assign(&ArrayView4::from_shape(shape, bytemuck::cast_slice::<u8, T>(past))?);
            }
            for (sample, &start) in starts.iter().enumerate() {
                let start = start as usize;
                let first = rows.min(capacity - start);
                let update = update.slice(s![sample, .., .., ..]);
                let mut slots = |from: usize, rows: std::ops::Range<usize>| {
                    let mut slots = target.slice_mut(s![sample, .., from..from + rows.len(), ..]);
                    slots.assign(&update.slice(s![.., rows, ..]));
                };
                slots(start, 0..first);
                if first < rows {
                    slots(0, first..rows);
                }
            }
            Ok(())
        })
    }
}
