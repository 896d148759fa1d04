//! kvscatter, called as a host program calls it, and the two yardsticks.

use std::sync::{Mutex, PoisonError};

use bytemuck::Pod;
use kvscatter::{Error, Executor, Mode, Prepared, WritePlan};

use super::case::{Form, Write};
use super::copies::{Copies, starts_of, straddles};
use super::scene::{Buffers, Call};
use super::writer::{Task, Writer};
use crate::measure::Failed;
use crate::threads::Pool;

type Made = Result<Box<dyn Writer>, String>;

/// Returns the first yardstick: one memcpy of the number of bytes that the write moves, or one on each thread.
pub(super) fn memcpy(case: &Write, threads: usize) -> Made {
    if threads > 1 && straddles(&case.dims()) {
        return Err("rows that straddle bytes cannot be divided among threads".to_owned());
    }
    let copies = Copies::new(case, Task::Memcpy, &case.starts_at(0));
    let pool = (threads > 1).then(|| Pool::new(threads));
    Ok(Box::new(Memcpy { case: case.clone(), copies, pool }))
}

/// Returns the second yardstick: one memcpy for each contiguous run, at offsets that were computed in advance. In
/// functional form, a memcpy of the past comes first.
pub(super) fn hand_loop(case: &Write) -> Made {
    if straddles(&case.dims()) {
        return Err("memcpy cannot move half bytes".to_owned());
    }
    let copies = Copies::new(case, Task::Write, &case.starts_at(0));
    Ok(Box::new(HandLoop { case: case.clone(), copies }))
}

/// Returns kvscatter, which is prepared once and creates one plan for each call.
pub(super) fn kvscatter(case: &Write, task: Task, threads: usize) -> Made {
    let mode = if task == Task::Unwrapped { Mode::Linear } else { case.mode };
    let write = case.prepare(mode)?;
    let calls = match case.dims().bits {
        4 => PACKED,
        8 => Calls::typed::<u8>(),
        16 => Calls::typed::<u16>(),
        32 => Calls::typed::<u32>(),
        64 => Calls::typed::<u64>(),
        _ => Calls::typed::<u128>(),
    };
    let pool = (threads > 1).then(|| Pool::new(threads));
    Ok(Box::new(Kvscatter { write, calls, pool, case: case.clone(), task, starts: Vec::new() }))
}

struct Memcpy {
    case: Write,
    copies: Copies,
    pool: Option<Pool>,
}

impl Writer for Memcpy {
    fn aim(&mut self, starts: &[i64]) {
        self.copies = Copies::new(&self.case, Task::Memcpy, starts);
    }

    fn write(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        call.each(|buffers| {
            match (&self.pool, self.case.form) {
                (None, Form::InPlace) => self.copies.copy(buffers.cache, buffers.update),
                (None, Form::Functional) => copy(buffers.present, buffers.cache),
                (Some(pool), Form::InPlace) => {
                    for [to, _] in self.copies.ranges() {
                        copy_on(pool, &mut buffers.cache[to], buffers.update);
                    }
                }
                (Some(pool), Form::Functional) => copy_on(pool, buffers.present, buffers.cache),
            }
            Ok(())
        })
    }
}

/// Calls libc's memcpy. The compiler cannot replace the call, because it does not know the length.
fn copy(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

/// Copies an equal share on each thread.
fn copy_on(pool: &Pool, to: &mut [u8], from: &[u8]) {
    let share = to.len().div_ceil(pool.threads()).max(1);
    let shares = Mutex::new(to.chunks_mut(share).zip(from.chunks(share)));
    pool.broadcast(&|| {
        let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((to, from)) = next() {
            copy(to, from);
        }
    });
}

struct HandLoop {
    case: Write,
    copies: Copies,
}

impl Writer for HandLoop {
    fn aim(&mut self, starts: &[i64]) {
        self.copies = Copies::new(&self.case, Task::Write, starts);
    }

    fn write(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        call.each(|buffers| {
            match self.case.form {
                Form::InPlace => self.copies.copy(buffers.cache, buffers.update),
                Form::Functional => {
                    copy(buffers.present, buffers.cache);
                    self.copies.copy(buffers.present, buffers.update);
                }
            }
            Ok(())
        })
    }
}

struct Kvscatter {
    write: Prepared,
    calls: Calls,
    pool: Option<Pool>,
    case: Write,
    task: Task,
    starts: Vec<i64>,
}

/// The ways to call the library, for elements of one width.
#[derive(Clone, Copy)]
struct Calls {
    once: fn(&Prepared, &[i64], &mut Buffers<'_>) -> Result<(), Error>,
    in_place: fn(&WritePlan<'_>, &mut Buffers<'_>) -> Result<(), Error>,
    functional: fn(&WritePlan<'_>, &mut Buffers<'_>) -> Result<(), Error>,
}

/// 4-bit elements, two in a byte.
const PACKED: Calls = Calls {
    once: |write, starts, it| write.plan(starts)?.write_bytes(it.cache, it.update).map(drop),
    in_place: |plan, it| plan.write_bytes(it.cache, it.update).map(drop),
    functional: |plan, it| plan.write_present_bytes(it.cache, it.update, it.present).map(drop),
};

impl Calls {
    /// Passes slices of an integer type that is as wide as the element.
    fn typed<T: Pod>() -> Self {
        use bytemuck::{cast_slice, cast_slice_mut};
        Self {
            once: |write, starts, it| {
                write.write(cast_slice_mut::<u8, T>(it.cache), cast_slice(it.update), starts).map(drop)
            },
            in_place: |plan, it| {
                plan.write(cast_slice_mut::<u8, T>(it.cache), cast_slice(it.update)).map(drop)
            },
            functional: |plan, it| {
                let (past, update) = (cast_slice::<u8, T>(it.cache), cast_slice(it.update));
                plan.write_present(past, update, cast_slice_mut(it.present)).map(drop)
            },
        }
    }
}

impl Writer for Kvscatter {
    fn aim(&mut self, starts: &[i64]) {
        self.starts = starts_of(&self.case, self.task, starts);
    }

    fn write(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        if self.pool.is_none() && self.case.form == Form::InPlace && call.values.is_none() {
            return Ok((self.calls.once)(&self.write, &self.starts, &mut call.keys)?);
        }
        let mut plan = self.write.plan(&self.starts)?;
        if let Some(pool) = &self.pool {
            plan = plan.with_executor(pool);
        }
        Ok(call.each(|buffers| match self.case.form {
            Form::InPlace => (self.calls.in_place)(&plan, buffers),
            Form::Functional => (self.calls.functional)(&plan, buffers),
        })?)
    }
}
