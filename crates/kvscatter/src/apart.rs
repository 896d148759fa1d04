//! Which positions of caches share memory: within one (G2), and between two that have the same strides.

use alloc::vec::Vec;

use crate::Error;
use crate::layout::View;

/// The strides of a cache in ascending order, each of which steps over everything that those before it reach: how G2 is
/// known to hold. Dimensions that continue each other are one.
#[derive(Clone, Debug)]
pub(crate) struct Steps(Vec<Step>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    stride: usize,
    size: usize,
}

/// Strides that no others continue: more than a tensor has that anyone slices, and few enough to try both ways at each.
const MOST: usize = 16;

impl Steps {
    /// Establishes G2: no two positions share an element, so the view may be written.
    ///
    /// Sufficient, not necessary: views made by slicing, transposing and reversing a dense buffer all pass.
    pub(crate) fn of(view: &View) -> Result<Self, Error> {
        let mut steps: Vec<Step> = Vec::with_capacity(view.dims.len());
        if view.elements == 0 {
            return Ok(Self(steps));
        }
        let counted = view.dims.iter().filter(|dim| dim.size > 1);
        steps.extend(counted.map(|dim| Step { stride: dim.stride.unsigned_abs(), size: dim.size }));
        steps.sort_unstable_by_key(|step| (step.stride, step.size));
        let mut covered = 1_usize;
        for Step { stride, size } in &steps {
            if *stride < covered {
                return Err(Error::CacheOverlapsItself);
            }
            // Their sum is `below + above - offset` of `resolve`, and `below <= offset`: it fits.
            covered = covered.wrapping_add(size.wrapping_sub(1).wrapping_mul(*stride));
        }
        steps.dedup_by(|next, step| {
            let continues = step.stride.checked_mul(step.size) == Some(next.stride);
            if continues {
                // G1: a part of all elements.
                step.size = step.size.wrapping_mul(next.size);
            }
            continues
        });
        Ok(Self(steps))
    }

    /// Whether two caches of elements of this width share a bit whose buffers begin so many bytes apart. Strides that
    /// are too many to try count as meeting.
    pub(crate) fn meet(&self, bytes: isize, bits: usize) -> bool {
        let Ok(bits) = isize::try_from(bits) else { return true };
        // Beyond what fits, nothing of a buffer is.
        let Some(distance) = bytes.checked_mul(8) else { return false };
        let (whole, part) = (distance.div_euclid(bits.max(1)), distance.rem_euclid(bits.max(1)));
        let next = whole.checked_add(1).filter(|_| part != 0);
        self.0.len() > MOST
            || [Some(whole), next].into_iter().flatten().any(|elements| meets(&self.0, elements))
    }
}

/// Whether two positions lie this far apart: whether the distance is a sum of strides, each taken fewer times than it
/// has positions, forwards or backwards. All smaller strides together stay below one more step of the largest, so only
/// the two multiples around the distance can be part of the sum.
fn meets(steps: &[Step], distance: isize) -> bool {
    let Some((Step { stride, size }, smaller)) = steps.split_last() else { return distance == 0 };
    let Ok(stride) = isize::try_from(*stride) else { return true };
    let below = distance.div_euclid(stride.max(1));
    [below, below.saturating_add(1)].into_iter().any(|times| {
        let rest = times.checked_mul(stride).and_then(|covered| distance.checked_sub(covered));
        times.unsigned_abs() < *size && rest.is_some_and(|rest| meets(smaller, rest))
    })
}

#[cfg(test)]
mod tests {
    use super::Steps;
    use crate::{Argument, Error, Layout};
    use alloc::collections::BTreeSet;

    fn steps(shape: &[usize], strides: &[isize]) -> Result<Steps, Error> {
        let layout = Layout::strided(shape, strides);
        Steps::of(&layout.offset(layout.least_offset()).resolve(Argument::PastCache, 8).unwrap())
    }

    #[test]
    fn a_cache_whose_positions_meet_is_refused() {
        let apart = |shape: &[usize], strides: &[isize]| steps(shape, strides).map(drop);
        assert_eq!(apart(&[2, 3, 4], &[12, 4, 1]), Ok(()));
        assert_eq!(apart(&[2, 3, 4], &[1, 2, 6]), Ok(()), "transposed");
        assert_eq!(apart(&[2, 3, 4], &[-12, 4, -1]), Ok(()), "reversed");
        assert_eq!(apart(&[2, 3, 4], &[20, 5, 1]), Ok(()), "padded");
        assert_eq!(apart(&[1, 3, 1], &[0, 1, 0]), Ok(()), "a single position shares with none");
        assert_eq!(apart(&[0, 3, 4], &[0, 0, 0]), Ok(()), "no positions at all");
        assert_eq!(apart(&[2, 3, 4], &[0, 4, 1]), Err(Error::CacheOverlapsItself), "broadcast");
        assert_eq!(apart(&[2, 3, 4], &[12, 3, 1]), Err(Error::CacheOverlapsItself), "sliding window");
    }

    #[test]
    fn dense_is_one_step() {
        for (shape, strides) in [(&[2, 3, 4], &[12, 4, 1]), (&[2, 3, 4], &[-1, 8, 2])] {
            assert_eq!(steps(shape, strides).unwrap().0.len(), 1);
        }
        assert_eq!(steps(&[2, 3, 4], &[24, 4, 1]).unwrap().0.len(), 2);
    }

    /// Every shape and stride of a small domain, every distance, against the sets of their bytes.
    #[test]
    #[expect(clippy::as_conversions, reason = "small numbers")]
    fn two_meet_exactly_if_their_bytes_do() {
        for width in [1_isize, 2] {
            for code in 0..3 * 3 * 3 * 8 * 8 {
                let shape = [1 + code % 3, 1 + code / 3 % 3, 1 + code / 9 % 3];
                let strides = [1, (code / 27 % 8) as isize + 1, -((code / 216) as isize + 1)];
                let Ok(steps) = steps(&shape, &strides) else { continue };
                let places = (0..shape[0] * shape[1] * shape[2]).flat_map(|index| {
                    let along = [index % shape[0], index / shape[0] % shape[1], index / shape[0] / shape[1]];
                    let place: isize =
                        along.iter().zip(strides).map(|(&at, stride)| at as isize * stride).sum();
                    (0..width).map(move |byte| place * width + byte)
                });
                let bytes: BTreeSet<isize> = places.collect();
                for distance in -45..=45 {
                    let share = bytes.iter().any(|byte| bytes.contains(&(byte + distance)));
                    assert_eq!(
                        steps.meet(distance, 8 * width as usize),
                        share,
                        "{shape:?} {strides:?} {distance}"
                    );
                }
            }
        }
    }

    #[test]
    fn four_bit_elements_meet_by_halves_of_bytes() {
        let steps = steps(&[3], &[3]).unwrap();
        // At 0, 3 and 6; one byte on, at 2, 5 and 8; three bytes on, at 6, 9 and 12.
        assert_eq!(
            [0, 1, 2, 3, 4, -3].map(|bytes| steps.meet(bytes, 4)),
            [true, false, false, true, false, true]
        );
    }

    #[test]
    fn absurd_distances_and_many_strides_end() {
        let two = steps(&[2, 2], &[isize::MAX / 4, 1]).unwrap();
        for distance in [isize::MIN, isize::MAX, isize::MAX / 4] {
            two.meet(distance, 8);
        }
        let strides: Vec<isize> = (0..20).map(|power| 3_isize.pow(power)).collect();
        assert!(steps(&[2; 20], &strides).unwrap().meet(1 << 40, 8), "not tried");
        assert!(!steps(&[2; 16], &strides[..16]).unwrap().meet(1 << 40, 8));
    }
}
