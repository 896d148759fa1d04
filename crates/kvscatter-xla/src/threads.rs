//! Runs large calls on threads of XLA.

use core::any::Any;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use kvscatter::Executor;

use crate::status::{discard, is_ok};
use crate::sys::{CallFrame, NumThreadsArgs, ScheduleArgs, Threads};

/// The threads that XLA offers a call.
pub(crate) struct Pool<'f> {
    frame: &'f CallFrame,
}

// SAFETY: The core calls `broadcast` on the thread on which XLA called the handler. Other threads do not use the
// frame.
unsafe impl Sync for Pool<'_> {}

impl<'f> Pool<'f> {
    pub(crate) fn new(frame: &'f CallFrame) -> Self {
        Self { frame }
    }

    /// Returns the number of threads that a call may use, its own included.
    pub(crate) fn threads(&self) -> usize {
        self.functions().map_or(1, |functions| self.count(functions).max(1))
    }

    /// Returns the functions about threads, or `None` if this XLA has none.
    fn functions(&self) -> Option<&Threads> {
        // SAFETY: The table is valid (F4).
        let size = unsafe { (*self.frame.api).struct_size };
        // SAFETY: The table has the size of this type, and is valid (F4).
        (size >= size_of::<Threads>()).then(|| unsafe { &*self.frame.api.cast::<Threads>() })
    }

    /// Returns the number of threads, or 0 if XLA offers none.
    fn count(&self, functions: &Threads) -> usize {
        let mut threads = 0;
        let mut args = NumThreadsArgs {
            struct_size: size_of::<NumThreadsArgs>(),
            extension: null_mut(),
            context: self.frame.context,
            threads: &raw mut threads,
        };
        // SAFETY: The context belongs to the call, and `args` are valid (F4).
        let error = unsafe { (functions.num_threads)(&raw mut args) };
        if is_ok(&functions.api, error) { usize::try_from(threads).unwrap_or_default() } else { 0 }
    }

    /// Asks XLA to run a job on a thread, now or later. Returns `false` if XLA refuses.
    fn schedule(&self, functions: &Threads, job: &Arc<Job>) -> bool {
        let data = Arc::into_raw(Arc::clone(job));
        let mut args = ScheduleArgs {
            struct_size: size_of::<ScheduleArgs>(),
            extension: null_mut(),
            context: self.frame.context,
            task: Job::run,
            data: data.cast_mut().cast(),
        };
        // SAFETY: The context belongs to the call, and `args` are valid (F4). `Job::run` may be called with `data`
        // once.
        let error = unsafe { (functions.schedule)(&raw mut args) };
        if is_ok(&functions.api, error) {
            return true;
        }
        // SAFETY: `data` is the counted reference from above, which XLA has refused.
        drop(unsafe { Arc::from_raw(data) });
        false
    }
}

impl Executor for Pool<'_> {
    /// XLA may call the handler on a thread of the same pool, and may run a task only when that thread is free
    /// again. So the write does not wait for tasks that have not begun. It closes the job, and they find it closed.
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        let Some(functions) = self.functions() else { return };
        let helpers = self.count(functions).saturating_sub(1);
        // SAFETY: Only the lifetime changes. Other threads call `work` only while they are counted in an open job,
        // and dropping `close` waits until none is counted and none can enter again.
        let work: *const (dyn Fn() + Sync + 'static) = unsafe { core::mem::transmute(work) };
        let job = Arc::new(Job { work, state: AtomicUsize::new(0), panicked: Mutex::new(None) });
        let close = Close(&job);
        let _scheduled = (0..helpers).take_while(|_| self.schedule(functions, &job)).count();
        // SAFETY: `work` is borrowed until this function returns.
        unsafe { (*work)() };
        drop(close);
        let panicked = job.panicked.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }
}

/// A closure for other threads, as long as it is open.
struct Job {
    work: *const (dyn Fn() + Sync),
    /// The number of threads that are in the closure, and [`CLOSED`].
    state: AtomicUsize,
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` may be called on any thread, and the rest is `Send` and `Sync`.
unsafe impl Send for Job {}
// SAFETY: `work` may be called by many threads at once, and the rest is `Send` and `Sync`.
unsafe impl Sync for Job {}

/// The bit of a job that no thread may enter any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl Job {
    /// Runs the work on a thread of XLA, unless the job is closed.
    unsafe extern "C" fn run(data: *mut c_void) {
        // SAFETY: `data` is a counted reference that `Pool::schedule` passed, and XLA calls this once.
        let job = unsafe { Arc::from_raw(data.cast_const().cast::<Self>()) };
        if job.state.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
            // SAFETY: The job is not closed, so `broadcast` has not returned and waits for this thread.
            let work = AssertUnwindSafe(|| unsafe { (*job.work)() });
            if let Err(payload) = catch_unwind(work) {
                let mut panicked = job.panicked.lock().unwrap_or_else(PoisonError::into_inner);
                match &*panicked {
                    None => *panicked = Some(payload),
                    Some(_) => discard(payload),
                }
            }
        }
        // Stores of the work become visible to the thread that closes the job.
        job.state.fetch_sub(1, Ordering::Release);
    }
}

/// Closes a job when it is dropped, also if the work panics, and waits for the threads that are in it.
struct Close<'j>(&'j Job);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_or(CLOSED, Ordering::AcqRel);
        // Every thread in the job has at most one part of the write left.
        while self.0.state.load(Ordering::Acquire) != CLOSED {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::c_void;
    use core::ptr::null_mut;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
    use std::sync::Mutex;
    use std::thread::{JoinHandle, spawn};

    use kvscatter::Executor;

    use super::Pool;
    use crate::sys::tests::{frame, table};
    use crate::sys::{NumThreadsArgs, ScheduleArgs, XlaError};

    const THREADS: usize = 4;

    unsafe extern "C" fn num_threads(args: *mut NumThreadsArgs) -> *mut XlaError {
        // SAFETY: The arguments are valid, as in XLA.
        let args = unsafe { &*args };
        // SAFETY: The address is that of a variable.
        unsafe { args.threads.write(4) };
        null_mut()
    }

    /// A task, which may run on any thread.
    struct Task(ScheduleArgs);

    // SAFETY: `Job::run` may be called on any thread.
    unsafe impl Send for Task {}

    impl Task {
        fn run(self) {
            // SAFETY: Every task runs once.
            unsafe { (self.0.task)(self.0.data) };
        }
    }

    /// The tasks of a host, which it may keep.
    static LATER: Mutex<Vec<Task>> = Mutex::new(Vec::new());
    static RUNNING: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

    unsafe extern "C" fn keep(args: *mut ScheduleArgs) -> *mut XlaError {
        // SAFETY: The arguments are valid, as in XLA, and are read once.
        LATER.lock().unwrap().push(Task(unsafe { args.read() }));
        null_mut()
    }

    unsafe extern "C" fn start(args: *mut ScheduleArgs) -> *mut XlaError {
        // SAFETY: The arguments are valid, as in XLA, and are read once.
        let task = Task(unsafe { args.read() });
        RUNNING.lock().unwrap().push(spawn(|| task.run()));
        null_mut()
    }

    unsafe extern "C" fn refuse(_: *mut ScheduleArgs) -> *mut XlaError {
        core::ptr::dangling_mut::<c_void>().cast()
    }

    #[test]
    fn tasks_that_begin_late_find_the_job_closed() {
        let table = table(keep, num_threads);
        let calls = AtomicUsize::new(0);
        Pool::new(&frame(&table)).broadcast(&|| _ = calls.fetch_add(1, Ordering::Relaxed));
        let tasks = std::mem::take(&mut *LATER.lock().unwrap());
        assert_eq!((tasks.len(), calls.load(Ordering::Relaxed)), (THREADS - 1, 1));
        tasks.into_iter().for_each(Task::run);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn all_calls_have_returned_and_their_panics_are_resumed() {
        let table = table(start, num_threads);
        for _ in 0..200 {
            let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let caller = std::thread::current().id();
            let work = || {
                begun.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
                ended.fetch_add(1, Ordering::Relaxed);
                if std::thread::current().id() != caller {
                    panic_any("on a thread of XLA");
                }
            };
            let result = catch_unwind(AssertUnwindSafe(|| Pool::new(&frame(&table)).broadcast(&work)));
            let [begun, ended] = [begun, ended].map(AtomicUsize::into_inner);
            assert_eq!((begun, result.is_err()), (ended, begun > 1));
        }
        RUNNING.lock().unwrap().drain(..).for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_host_without_threads_leaves_the_work_to_the_caller() {
        let table = table(refuse, num_threads);
        let calls = AtomicUsize::new(0);
        Pool::new(&frame(&table)).broadcast(&|| _ = calls.fetch_add(1, Ordering::Relaxed));
        assert_eq!(calls.into_inner(), 1);
    }
}
