//! Tests P3 with 4-bit elements on many threads: a byte that two samples share belongs to one thread.

use std::sync::atomic::{AtomicUsize, Ordering};

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Executor, Layout, Mode, Prepared};

use crate::large::paint;
use crate::pool::POOL;
use crate::variants::Variant;

#[derive(Default)]
struct CountedPool {
    asked: AtomicUsize,
}

impl Executor for CountedPool {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        POOL.broadcast(work);
    }
}

/// Compares whole buffers, in place and functional, with the result of one thread, with every variant. `shared`
/// has how often the pool is used for each form.
///
/// The comparison is repeated several times, because a race does not always give a wrong result.
fn check(
    write: &Prepared,
    starts: &[i64],
    [cache_len, update_len, present_len]: [usize; 3],
    shared: [usize; 2],
) {
    let [past, update] = [paint(0, cache_len), paint(99, update_len)];
    let unset = vec![0xEE; present_len];
    let [mut want_cache, mut want_present] = [past.clone(), unset.clone()];
    let plan = write.plan(starts).unwrap();
    let _ = plan.write_bytes(&mut want_cache, &update).unwrap();
    let _ = plan.write_present_bytes(&past, &update, &mut want_present).unwrap();
    assert!(want_cache != past && want_present != unset);

    for variant in Variant::for_large().into_iter().flat_map(|variant| [variant; 8]) {
        let pool = CountedPool::default();
        let write = variant.apply(write);
        let plan = write.plan(starts).unwrap().with_executor(&pool);
        let [mut cache, mut present] = [past.clone(), unset.clone()];
        let _ = plan.write_bytes(&mut cache, &update).unwrap();
        let in_place = pool.asked.swap(0, Ordering::Relaxed);
        let _ = plan.write_present_bytes(&past, &update, &mut present).unwrap();
        assert_eq!([in_place, pool.asked.into_inner()], shared, "{variant:?}");
        assert!(cache == want_cache, "in place, {variant:?}");
        assert!(present == want_present, "functional, {variant:?}");
    }
}

fn bytes<const N: usize>(shape: [usize; N]) -> usize {
    ElementType::Int4.storage_len(&shape).unwrap()
}

/// Samples have an odd number of elements, so the second sample of a pair begins in the middle of a byte.
#[test]
fn pairs_of_samples() {
    for (batch, heads, capacity, rows, size) in
        [(9, 3, 1501, 1213, 65), (700, 1, 31, 29, 129), (6001, 1, 3, 3, 101)]
    {
        let (cache, update) = ([batch, heads, capacity, size], [batch, heads, rows, size]);
        let starts: Vec<i64> = (0..batch).map(|sample| sample as i64 * 17).collect();
        let ring =
            TensorScatter::new().mode(Mode::Circular).prepare(ElementType::Int4, &cache, &update).unwrap();
        let lens = [bytes(cache), bytes(update), bytes(cache)];
        check(&ring, &starts, lens, [1, 1]);
    }
}

/// Each sample begins at a byte, but not each row.
#[test]
fn single_samples() {
    let (cache, update) = ([5, 2, 2048, 65], [5, 2, 1999, 65]);
    let write = TensorScatter::new().prepare(ElementType::Int4, &cache, &update).unwrap();
    check(&write, &[0, 49, 7, 13, 22], [bytes(cache), bytes(update), bytes(cache)], [1, 1]);
}

/// The samples of a view may be interleaved, as they are here, so the write in place uses one thread. The
/// present is dense.
#[test]
fn a_view_stays_on_one_thread() {
    let (batch, capacity, size) = (3_usize, 9001_usize, 65_usize);
    let strides = [size, batch * size, 1].map(usize::cast_signed);
    let shape = [batch, capacity, size];
    let cache = Layout::strided(&shape, &strides);
    let update = [batch, 8999, size];
    let write = TensorScatter::new().axis(1).prepare(ElementType::Int4, cache, &update).unwrap();
    let lens = [bytes(shape), bytes(update), bytes(shape)];
    check(&write, &[0, 1, 2], lens, [0, 1]);
}
