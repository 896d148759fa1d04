//! Failures that are injected in a run.

use std::sync::{Arc, Mutex, PoisonError};

/// A failure that is injected in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The engine refuses the run and has written nothing.
    Refuses,
    /// The engine panics before it has written anything.
    PanicsFirst,
    /// The engine fails after it has written rows.
    FailsLate,
    /// The engine panics after it has written rows.
    Panics,
    /// The logits have a wrong shape.
    WrongShape,
    /// The logits are NaN.
    Nan,
    /// The step is interrupted before the run.
    Interrupts,
}

pub(crate) const FAULTS: [Fault; 7] = [
    Fault::Refuses,
    Fault::PanicsFirst,
    Fault::FailsLate,
    Fault::Panics,
    Fault::WrongShape,
    Fault::Nan,
    Fault::Interrupts,
];

/// The payload of an injected panic. It is raised without the hook, so nothing is printed.
pub(crate) const PANIC: &str = "an injected panic";

/// The failure of a later run, and the number of runs before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan(Arc<Mutex<Option<(usize, Fault)>>>);

impl Plan {
    pub(crate) fn set(&self, runs: usize, fault: Fault) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((runs, fault));
    }

    /// Returns `true` if no failure is waiting, and forgets it.
    pub(crate) fn clear(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().is_none()
    }

    /// Returns `true` if the next run is to be interrupted.
    pub(crate) fn interrupts(&self) -> bool {
        let mut plan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        plan.take_if(|plan| *plan == (0, Fault::Interrupts)).is_some()
    }

    /// Returns the failure of this run.
    pub(crate) fn of_run(&self) -> Option<Fault> {
        let mut plan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *plan {
            Some((0, _)) => plan.take().map(|(_, fault)| fault),
            Some((runs, _)) => {
                *runs -= 1;
                None
            }
            None => None,
        }
    }
}
