//! Runs large writes and long calls of attention on the threads of the calling program.
//!
//! `lib.rs` defines C1 and C6.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use kvscatter::Executor;

use crate::boundary::reference;
use crate::call_error::{CallError, CallErrorKind};
use crate::guard::discard;

/// Threads of your program that a call may use. Only large writes, of hundreds of kilobytes and more, and calls
/// of attention with a million multiplications and more use them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_executor {
    /// Calls `work(context)` once or more on each thread that is to help. It returns when all of these calls
    /// have returned and their stores are visible to the calling thread. Joining the threads makes the stores
    /// visible, and so does any release and acquire. It must not call `work` after it has returned. Each call
    /// of `work` takes parts of the call until none are left, and the calling thread does the parts that no call
    /// took. An executor that never calls `work`, or calls it on one thread only, is slow but
    /// correct.
    pub broadcast: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            work: Option<unsafe extern "C" fn(context: *mut c_void)>,
            context: *mut c_void,
        ),
    >,
    /// The value that is passed to `broadcast` unchanged.
    pub user: *mut c_void,
}

/// The executor of one call.
#[derive(Debug)]
pub(crate) struct CExecutor {
    broadcast: unsafe extern "C" fn(*mut c_void, Option<unsafe extern "C" fn(*mut c_void)>, *mut c_void),
    user: *mut c_void,
}

// SAFETY: Nothing here reads through `user`, and the core calls `broadcast` on the thread on which the core
// was called.
unsafe impl Sync for CExecutor {}

impl CExecutor {
    /// Reads an executor, which may be NULL.
    ///
    /// # Safety
    /// `executor` satisfies C1. The struct that it points to satisfies C6 while the result is used.
    #[inline]
    pub(crate) unsafe fn read(executor: *const kvs_executor) -> Result<Option<Self>, CallError> {
        if executor.is_null() {
            return Ok(None);
        }
        // SAFETY: This function's contract requires C1 for `executor`.
        let kvs_executor { broadcast, user } = *unsafe { reference(executor, c"executor") }?;
        let broadcast =
            broadcast.ok_or(CallErrorKind::NullPointer { subject: c"executor.broadcast".into() })?;
        Ok(Some(Self { broadcast, user }))
    }
}

impl Executor for CExecutor {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        let task = Task { work, panic: Mutex::new(None) };
        let context = (&raw const task).cast_mut().cast();
        // SAFETY: The contract of `CExecutor::read` requires C6 for `broadcast` and `user`. `task` lives
        // until `broadcast` returns.
        unsafe { (self.broadcast)(self.user, Some(run), context) };
        let panic = task.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(panic) = panic {
            resume_unwind(panic); // as if the work had run on this thread
        }
    }
}

/// The `context` of `broadcast`.
struct Task<'a> {
    work: &'a (dyn Fn() + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Runs the work. A panic must not unwind into a thread of the host, so this function stores the panic, and
/// `broadcast` resumes it.
///
/// # Safety
/// `context` points to a `Task` that lives until this returns.
unsafe extern "C" fn run(context: *mut c_void) {
    // SAFETY: This function's contract requires that `context` points to a `Task` that lives until this
    // returns.
    let task = unsafe { &*context.cast_const().cast::<Task<'_>>() };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(task.work)) {
        let earlier = task.panic.lock().unwrap_or_else(PoisonError::into_inner).replace(panic);
        if let Some(earlier) = earlier {
            discard(earlier);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::ptr;

    use kvscatter::Executor;

    use super::{CExecutor, kvs_executor};

    unsafe extern "C" fn twice(
        calls: *mut c_void,
        work: Option<unsafe extern "C" fn(context: *mut c_void)>,
        context: *mut c_void,
    ) {
        for _ in 0..2 {
            // SAFETY: `broadcast` passes a `work` that may be called with `context` until this returns.
            unsafe { work.unwrap()(context) };
            // SAFETY: `user` points to the test's counter, which nothing else uses meanwhile.
            unsafe { *calls.cast::<u32>() += 1 };
        }
    }

    #[test]
    fn a_panic_on_a_thread_of_the_host_reaches_the_caller_and_not_the_host() {
        let mut calls = 0_u32;
        let executor = kvs_executor { broadcast: Some(twice), user: (&raw mut calls).cast() };
        // SAFETY: `executor` outlives the host, and `twice` satisfies C6.
        let host = unsafe { CExecutor::read(&executor) }.unwrap().unwrap();
        let panics = catch_unwind(AssertUnwindSafe(|| host.broadcast(&|| panic!("in the work"))));
        assert_eq!(*panics.unwrap_err().downcast::<&str>().unwrap(), "in the work");
        assert_eq!(calls, 2);
    }

    #[test]
    fn no_executor_is_no_host() {
        // SAFETY: NULL is allowed.
        assert!(unsafe { CExecutor::read(ptr::null()) }.unwrap().is_none());
    }
}
