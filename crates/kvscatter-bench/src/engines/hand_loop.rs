//! The second yardstick: the loop that a programmer would write by hand for one shape.

use crate::call::{Call, Task};
use crate::case::{Case, Form};
use crate::engine::{Engine, Failed, Run, Unsupported};
use crate::engines::{HAND_LOOP, memcpy};
use crate::layout::{runs, straddles};
use crate::raw::Runs;
use crate::scene::Scene;

/// One libc memcpy for each contiguous run, at offsets that were computed in advance. In functional form, a
/// memcpy of the past comes first.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandLoop;

struct HandLoopRun {
    case: Case,
    runs: Runs,
}

impl Engine for HandLoop {
    fn name(&self) -> &str {
        HAND_LOOP
    }

    fn prepare(&self, case: &Case, scene: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        if straddles(&case.dims()) {
            return Err(Unsupported("memcpy cannot move half bytes".to_owned()));
        }
        Ok(Box::new(HandLoopRun { case: case.clone(), runs: runs(case, Task::Write, scene.starts()) }))
    }
}

impl Run for HandLoopRun {
    fn aim(&mut self, starts: &[i64]) {
        self.runs = runs(&self.case, Task::Write, starts);
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        call.each(|tensor| {
            match self.case.parameters().form {
                Form::InPlace => self.runs.copy(tensor.cache, tensor.update),
                Form::Functional => {
                    memcpy::copy(tensor.present, tensor.cache);
                    self.runs.copy(tensor.present, tensor.update);
                }
            }
            Ok(())
        })
    }
}
