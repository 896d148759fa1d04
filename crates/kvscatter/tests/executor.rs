//! Tests when a write uses the caller's threads, and which guarantees remain if an executor panics.
#![cfg(test)]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Executor, Prepared};

/// The elements of the update. With the real limits, these 4 MiB are enough to be shared between threads.
const UPDATE: usize = 1 << 20;
const CACHE: usize = 2 * UPDATE;

fn write() -> Prepared {
    TensorScatter::new().axis(1).prepare(ElementType::Float32, &[1, CACHE, 1], &[1, UPDATE, 1]).unwrap()
}

fn numbered(elements: std::ops::Range<usize>) -> Vec<u32> {
    elements.map(|number| u32::try_from(number).unwrap()).collect()
}

/// An executor that calls a closure.
struct By<F>(F);

impl<F: Fn(&(dyn Fn() + Sync)) + Sync> Executor for By<F> {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        (self.0)(work);
    }
}

/// An executor that panics before it does any work.
struct Panics;

impl Executor for Panics {
    fn broadcast(&self, _work: &(dyn Fn() + Sync)) {
        panic!("before any work");
    }
}

#[derive(Default)]
struct Counted(AtomicUsize);

impl Executor for Counted {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        self.0.fetch_add(1, Ordering::Relaxed);
        work();
    }
}

#[test]
fn only_writes_from_the_limit_on_are_shared() {
    for (has_tiny_limits, limit) in [(false, 512 << 10), (true, 4)] {
        for (bytes, expected) in [(limit - 1, 0), (limit, 1)] {
            let write = TensorScatter::new().axis(1).prepare(ElementType::Int8, &[1, bytes], &[1, bytes]);
            let write = write.unwrap();
            let write = if has_tiny_limits { write.with_tiny_limits() } else { write };
            let (mut cache, update, host) = (vec![0_u8; bytes], vec![1; bytes], Counted::default());
            let _ = write.plan(&[0]).unwrap().with_executor(&host).write(&mut cache, &update).unwrap();
            assert_eq!(host.0.into_inner(), expected, "{bytes} bytes");
            assert_eq!(cache, update);
        }
    }
}

#[test]
fn a_large_write_asks_once() {
    let (write, host) = (write(), Counted::default());
    let (mut cache, update) = (vec![0; CACHE], numbered(0..UPDATE));
    let plan = write.plan(&[5]).unwrap().with_executor(&host);
    let _ = plan.write(&mut cache, &update).unwrap();
    assert_eq!(host.0.load(Ordering::Relaxed), 1);
    let mut present = vec![0; CACHE];
    let _ = plan.write_present(&cache, &update, &mut present).unwrap();
    assert_eq!(host.0.load(Ordering::Relaxed), 2);
    assert!(cache == present && cache[5..][..UPDATE] == update);
}

/// A panic in `broadcast` reaches the caller of the write. The caller can then use the memory again: every
/// element is the old or the new one, elements outside the plan are unchanged, and no thread writes any more.
#[test]
fn an_executor_that_panics_leaves_old_or_new_elements() {
    let write = write();
    let (before, update) = (numbered(0..CACHE), numbered(CACHE..CACHE + UPDATE));
    let plan = write.plan(&[3]).unwrap();
    let afterwards = By(|work: &(dyn Fn() + Sync)| {
        work();
        panic!("after all work");
    });
    let on_a_thread = By(|work: &(dyn Fn() + Sync)| {
        let panicking = || {
            work();
            panic!("on another thread");
        };
        thread::scope(|threads| {
            let helper = threads.spawn(panicking);
            work();
            helper.join().unwrap_or_else(|panic| resume_unwind(panic));
        });
    });
    for (executor, written) in [(&Panics as &dyn Executor, 0), (&afterwards, UPDATE), (&on_a_thread, UPDATE)]
    {
        let plan = plan.with_executor(executor);
        let mut cache = before.clone();
        let unwound = catch_unwind(AssertUnwindSafe(|| plan.write(&mut cache, &update)));
        assert!(unwound.is_err());
        let is_new = |(slot, &element): (usize, &u32)| {
            let new = slot.checked_sub(3).and_then(|row| update.get(row));
            assert!(element == before[slot] || Some(&element) == new, "slot {slot}: {element}");
            element != before[slot]
        };
        assert_eq!(cache.iter().enumerate().filter(|&element| is_new(element)).count(), written);

        let mut present = vec![u32::MAX; CACHE];
        let fill = AssertUnwindSafe(|| plan.write_present(&before, &update, &mut present).map(|_| ()));
        assert!(catch_unwind(fill).is_err());
        let untouched = present.iter().filter(|&&element| element == u32::MAX).count();
        assert_eq!(untouched, if written == 0 { CACHE } else { 0 });

        // The same plan and the same memory can still be used.
        let _ = plan.with_executor(&Counted::default()).write(&mut cache, &update).unwrap();
        assert!(cache[..3] == before[..3] && cache[3..][..UPDATE] == update);
        assert_eq!(cache[3 + UPDATE..], before[3 + UPDATE..]);
    }
}

#[test]
fn a_plan_says_on_which_threads_it_runs() {
    let write = write();
    let plan = write.plan(&[0_i64]).unwrap();
    assert!(format!("{plan:?}").contains("threads: one thread"));
    assert!(format!("{:?}", plan.with_executor(&Panics)).contains("threads: the threads of an executor"));
}
