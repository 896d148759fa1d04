//! The bounds: reading every valid byte once, and the multiply-adds alone.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kvscatter::Isa;

use super::raw;
use super::run::with_threads;
use crate::attention::case::Attention;
use crate::attention::scene::Scene;
use crate::measure::{Failed, Prepared, Subject};

/// Sums the valid bytes of keys and values as words.
#[derive(Default)]
pub(super) struct Pass {
    sum: u64,
}

impl Subject<Scene> for Pass {
    fn time(&mut self, scene: &mut Scene, calls: usize) -> Result<Duration, Failed> {
        let mut heads: Vec<_> = scene.valid_bytes().collect();
        // With fewer heads than threads nothing would be left for some. Halves are enough for two threads.
        let half = |bytes: &'_ [u8]| bytes.len() / 2 / 64 * 64;
        heads = heads
            .into_iter()
            .flat_map(|[key, value]| {
                let ((k, key), (v, value)) = (key.split_at(half(key)), value.split_at(half(value)));
                [[k, v], [key, value]]
            })
            .collect();
        with_threads(&scene.case, |executor| {
            let began = Instant::now();
            for _ in 0..calls {
                let (next, sum) = (AtomicUsize::new(0), AtomicU64::new(0));
                let work = || {
                    let mut own = 0_u64;
                    while let Some([key, value]) = heads.get(next.fetch_add(1, Ordering::Relaxed)) {
                        own = own.wrapping_add(raw::sum(key)).wrapping_add(raw::sum(value));
                    }
                    sum.fetch_add(own, Ordering::Relaxed);
                };
                match executor {
                    Some(executor) => executor.broadcast(&work),
                    None => work(),
                }
                self.sum = sum.into_inner();
            }
            Ok(began.elapsed())
        })
    }

    fn check(&mut self, scene: &mut Scene) -> Result<(), String> {
        self.time(scene, 1).map_err(|error| error.to_string())?;
        let words = |bytes: &[u8]| {
            let words = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word));
            words.fold(0, u64::wrapping_add)
        };
        let expected = scene.valid_bytes().flatten().map(words).fold(0, u64::wrapping_add);
        if self.sum == expected { Ok(()) } else { Err(format!("the sum is {}, not {expected}", self.sum)) }
    }
}

/// Makes as many multiply-adds as the case, with operands in registers.
pub(super) struct MultiplyAdds {
    /// Makes at least a number of multiply-adds, and returns how many.
    make: Box<dyn Fn(usize) -> usize + Send + Sync>,
    /// The multiply-adds of all threads together.
    count: usize,
    done: usize,
}

impl MultiplyAdds {
    pub(super) fn prepare(case: &Attention, isa: Isa) -> Prepared<Scene> {
        if raw::lanes(isa).is_none() {
            return Err(format!("there is no loop for {isa}"));
        }
        Ok(Self::of(case, move |count| raw::multiply_adds(isa, count)))
    }

    /// Prepares multiply-adds with AVX2, of which one operand is converted from float16.
    pub(super) fn prepare_converted(case: &Attention) -> Prepared<Scene> {
        if case.query_heads != case.heads * raw::PER_CONVERSION {
            return Err(format!("a head of keys must have {} query heads", raw::PER_CONVERSION));
        }
        raw::converted_multiply_adds(0).ok_or("there is no loop for this machine")?;
        Ok(Self::of(case, |count| raw::converted_multiply_adds(count).unwrap_or(0)))
    }

    fn of(
        case: &Attention,
        make: impl Fn(usize) -> usize + Send + Sync + 'static,
    ) -> Box<dyn Subject<Scene>> {
        // One product with each key, and one with each value.
        let count = case.query_heads * case.seen() * 2 * case.head_size;
        Box::new(Self { make: Box::new(make), count, done: 0 })
    }
}

impl Subject<Scene> for MultiplyAdds {
    fn time(&mut self, scene: &mut Scene, calls: usize) -> Result<Duration, Failed> {
        let (make, share) = (&self.make, self.count.div_ceil(scene.case.threads));
        with_threads(&scene.case, |executor| {
            let began = Instant::now();
            for _ in 0..calls {
                let done = AtomicUsize::new(0);
                let work = || {
                    done.fetch_add(black_box(make(share)), Ordering::Relaxed);
                };
                match executor {
                    Some(executor) => executor.broadcast(&work),
                    None => work(),
                }
                self.done = done.into_inner();
            }
            Ok(began.elapsed())
        })
    }

    fn check(&mut self, scene: &mut Scene) -> Result<(), String> {
        self.time(scene, 1).map_err(|error| error.to_string())?;
        if self.done >= self.count { Ok(()) } else { Err(format!("{} of {}", self.done, self.count)) }
    }
}
