//! Checks whether positions share memory, within one cache (G2) and between two caches with the same strides.
//!
//! The crate documentation defines G1 and G2.

use alloc::vec::Vec;

use super::layout::View;
use crate::argument::Argument;
use crate::error::Error;

/// The strides of a cache in ascending order.
///
/// Each stride is larger than the distance that all smaller strides together can reach, which proves G2.
/// Contiguous dimensions are merged.
#[derive(Clone, Debug)]
pub(crate) struct SortedStrides(Vec<Strided>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Strided {
    stride: usize,
    size: usize,
}

/// The largest number of strides that `overlaps_at` searches, because each stride doubles the search. A
/// sliced tensor has fewer strides.
const MAX_SEARCHED: usize = 16;

impl SortedStrides {
    /// Checks G2: no two positions share an element, so the view may be written. An error names `argument`.
    ///
    /// The check is sufficient but not necessary. Views made by slicing, transposing and reversing a dense
    /// buffer pass.
    pub(crate) fn new(view: &View, argument: Argument) -> Result<Self, Error> {
        let mut strides: Vec<Strided> = Vec::with_capacity(view.dims.len());
        if view.elements == 0 {
            return Ok(Self(strides));
        }
        let dims = view.dims.iter().filter(|dim| dim.size > 1);
        strides.extend(dims.map(|dim| Strided { stride: dim.stride.unsigned_abs(), size: dim.size }));
        strides.sort_unstable_by_key(|each| (each.stride, each.size));
        let mut covered = 1_usize;
        for Strided { stride, size } in &strides {
            if *stride < covered {
                return Err(Error::CacheOverlapsItself { argument });
            }
            // The sum fits, because the total is `below + above - offset` of `resolve`, and
            // `below <= offset`.
            covered = covered.wrapping_add(size.wrapping_sub(1).wrapping_mul(*stride));
        }
        strides.dedup_by(|next, previous| {
            let contiguous = previous.stride.checked_mul(previous.size) == Some(next.stride);
            if contiguous {
                // G1: these are a part of all elements.
                previous.size = previous.size.wrapping_mul(next.size);
            }
            contiguous
        });
        Ok(Self(strides))
    }

    /// Returns `true` if two caches share a bit when one buffer begins `bytes` after the other and elements
    /// are `bits` wide. With more than [`MAX_SEARCHED`] strides, an overlap is assumed.
    pub(crate) fn overlaps_at(&self, bytes: isize, bits: usize) -> bool {
        let Ok(bits) = isize::try_from(bits) else { return true };
        // No buffer reaches a distance whose bits do not fit.
        let Some(distance) = bytes.checked_mul(8) else { return false };
        let (whole, part) = (distance.div_euclid(bits.max(1)), distance.rem_euclid(bits.max(1)));
        let next = whole.checked_add(1).filter(|_| part != 0);
        self.0.len() > MAX_SEARCHED
            || [Some(whole), next].into_iter().flatten().any(|elements| is_sum_of_strides(&self.0, elements))
    }
}

/// Returns `true` if two positions can have this distance.
///
/// They can if the distance is a sum of strides in which each stride is added or subtracted fewer times than
/// its dimension has positions. All smaller strides together reach less than one step of the largest stride.
/// Therefore the part of the sum from the largest stride must be the multiple just below or just above the
/// distance.
fn is_sum_of_strides(strides: &[Strided], distance: isize) -> bool {
    let Some((Strided { stride, size }, smaller)) = strides.split_last() else { return distance == 0 };
    let Ok(stride) = isize::try_from(*stride) else { return true };
    let below = distance.div_euclid(stride.max(1));
    [below, below.saturating_add(1)].into_iter().any(|times| {
        let rest = times.checked_mul(stride).and_then(|covered| distance.checked_sub(covered));
        times.unsigned_abs() < *size && rest.is_some_and(|rest| is_sum_of_strides(smaller, rest))
    })
}

#[cfg(test)]
mod tests {
    use super::SortedStrides;
    use crate::{Argument, Error, Layout};
    use alloc::collections::BTreeSet;

    const OVERLAP: Result<(), Error> = Err(Error::CacheOverlapsItself { argument: Argument::PastCache });

    fn sorted(shape: &[usize], strides: &[isize]) -> Result<SortedStrides, Error> {
        let layout = Layout::strided(shape, strides);
        let view = layout.with_offset(layout.min_offset()).resolve(Argument::PastCache, 8).unwrap();
        SortedStrides::new(&view, Argument::PastCache)
    }

    #[test]
    fn a_cache_whose_positions_meet_is_refused() {
        let check = |shape: &[usize], strides: &[isize]| sorted(shape, strides).map(drop);
        assert_eq!(check(&[2, 3, 4], &[12, 4, 1]), Ok(()));
        assert_eq!(check(&[2, 3, 4], &[1, 2, 6]), Ok(()), "transposed");
        assert_eq!(check(&[2, 3, 4], &[-12, 4, -1]), Ok(()), "reversed");
        assert_eq!(check(&[2, 3, 4], &[20, 5, 1]), Ok(()), "padded");
        assert_eq!(check(&[1, 3, 1], &[0, 1, 0]), Ok(()), "a single position shares with none");
        assert_eq!(check(&[0, 3, 4], &[0, 0, 0]), Ok(()), "no positions at all");
        assert_eq!(check(&[2, 3, 4], &[0, 4, 1]), OVERLAP, "broadcast");
        assert_eq!(check(&[2, 3, 4], &[12, 3, 1]), OVERLAP, "sliding window");
    }

    #[test]
    fn dense_is_one_step() {
        for (shape, strides) in [(&[2, 3, 4], &[12, 4, 1]), (&[2, 3, 4], &[-1, 8, 2])] {
            assert_eq!(sorted(shape, strides).unwrap().0.len(), 1);
        }
        assert_eq!(sorted(&[2, 3, 4], &[24, 4, 1]).unwrap().0.len(), 2);
    }

    /// Compares every shape and stride of a small domain at every distance with the sets of their bytes.
    #[test]
    #[expect(clippy::as_conversions, reason = "small numbers")]
    fn two_meet_exactly_if_their_bytes_do() {
        for width in [1_isize, 2] {
            for code in 0..3 * 3 * 3 * 8 * 8 {
                let shape = [1 + code % 3, 1 + code / 3 % 3, 1 + code / 9 % 3];
                let strides = [1, (code / 27 % 8) as isize + 1, -((code / 216) as isize + 1)];
                let Ok(cache) = sorted(&shape, &strides) else { continue };
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
                        cache.overlaps_at(distance, 8 * width as usize),
                        share,
                        "{shape:?} {strides:?} {distance}"
                    );
                }
            }
        }
    }

    #[test]
    fn four_bit_elements_meet_by_halves_of_bytes() {
        let cache = sorted(&[3], &[3]).unwrap();
        // The elements lie at 0, 3 and 6. One byte further they lie at 2, 5 and 8, and three bytes further at
        // 6, 9 and 12.
        assert_eq!(
            [0, 1, 2, 3, 4, -3].map(|bytes| cache.overlaps_at(bytes, 4)),
            [true, false, false, true, false, true]
        );
    }

    #[test]
    fn absurd_distances_and_many_strides_end() {
        let two = sorted(&[2, 2], &[isize::MAX / 4, 1]).unwrap();
        for distance in [isize::MIN, isize::MAX, isize::MAX / 4] {
            two.overlaps_at(distance, 8);
        }
        let strides: Vec<isize> = (0..20).map(|power| 3_isize.pow(power)).collect();
        assert!(sorted(&[2; 20], &strides).unwrap().overlaps_at(1 << 40, 8), "not tried");
        assert!(!sorted(&[2; 16], &strides[..16]).unwrap().overlaps_at(1 << 40, 8));
    }
}
