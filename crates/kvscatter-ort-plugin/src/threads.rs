//! Runs large calls on the runtime's own threads.

use core::any::Any;
use core::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;

use kvscatter::Executor;
use ort_sys::OrtKernelContext;

use crate::runtime::RuntimeApi;
use crate::status::discard;

/// The threads of the session in which a kernel runs.
pub(crate) struct ParallelFor {
    runtime: RuntimeApi,
    context: *const OrtKernelContext,
}

// SAFETY: The core and `kvscatter_attention` call `broadcast` on the thread on which the runtime called the
// kernel, and `context` may be used there. Other threads share this value and do not use it.
unsafe impl Sync for ParallelFor {}

impl ParallelFor {
    pub(crate) fn new(runtime: RuntimeApi, context: *const OrtKernelContext) -> Self {
        Self { runtime, context }
    }
}

impl Executor for ParallelFor {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        let job = Job { work, panicked: Mutex::new(None) };
        let data = (&raw const job).cast_mut().cast();
        // SAFETY: `self.context` belongs to the call that the kernel executes (R2). The runtime calls
        // `Job::run` only with `data` and only until `KernelContext_ParallelFor` returns, and `job` lives
        // longer.
        let status = unsafe {
            (self.runtime.api.KernelContext_ParallelFor)(self.context, Job::run, thread_count(), 0, data)
        };
        // The caller does the work that no thread has done, so an error makes the call slower but not wrong.
        let _refused = self.runtime.check(status);
        let panicked = job.panicked.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }
}

/// A closure that the runtime passes as a pointer.
struct Job<'a> {
    work: &'a (dyn Fn() + Sync),
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    /// Runs the work. A panic must not unwind into the runtime, so this function stores the panic, and
    /// `broadcast` resumes it.
    unsafe extern "C" fn run(data: *mut c_void, _index: usize) {
        // SAFETY: `data` points to the job of `broadcast`, which waits until this returns.
        let job = unsafe { &*data.cast::<Job<'_>>() };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(job.work)) {
            let mut panicked = job.panicked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match &*panicked {
                None => *panicked = Some(payload),
                Some(_) => discard(payload),
            }
        }
    }
}

/// Calls `work` with each item, on the threads of an executor if there is one. The calling thread works too.
pub(crate) fn for_each<T>(
    items: impl Iterator<Item = T> + Send,
    executor: Option<&dyn Executor>,
    work: impl Fn(T) + Sync,
) {
    let items = Mutex::new(items);
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let claim = || {
        while let Some(item) = next() {
            work(item);
        }
    };
    if let Some(executor) = executor {
        executor.broadcast(&claim);
    }
    // If the executor has no thread, no item is claimed yet.
    claim();
}

/// Returns the number of calls of the work, one for each thread that the machine can run. The runtime does
/// not report the number of threads in its pool. If the pool has fewer, some threads call the work twice, and
/// the second call does nothing.
pub(crate) fn thread_count() -> usize {
    // The number is cached, because computing it takes several system calls.
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| available_parallelism().map_or(1, usize::from))
}
