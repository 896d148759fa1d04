//! A geometry as loops, for backends that find out by themselves which rows go where: those whose lists lie on a
//! device.

use alloc::vec::Vec;

use crate::geometry::{Geometry, Samples};
use crate::mapping::{Loop, Mapping};
use crate::{Mode, NegativeIndex};

/// What moves from one tensor to another, as strided loops around one contiguous run, all in elements.
///
/// Element `e` of the run at row `r` of sample `s` of layer `l` goes from `src + l·layers.src + s·samples.src +
/// r·rows.src + … + e` to the same sum over `dst`, `…` being a step of each loop in `around`. On either side a row is
/// one of that side: the slot of a cache is a row of it. G1 and `Layout` hold every sum of numbers below the counts
/// inside the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loops {
    /// Where the first element lies in the destination's buffer.
    pub dst: usize,
    /// The same for the source.
    pub src: usize,
    /// Layers of the cache. An update has none: its step is 0.
    pub layers: Loop,
    /// Samples of the source. A packed update has none: its step is 0, and the count is the cache's.
    pub samples: Loop,
    /// Rows of one sample of the source, or all tokens of a packed update.
    pub rows: Loop,
    /// Every other dimension, outermost first; those of one element are left out.
    pub around: Vec<Loop>,
    /// Elements that lie together on both sides; 0 if there are none to move.
    pub run: usize,
}

impl Geometry {
    /// How positions beyond the capacity are meant.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.rules.mode
    }

    /// What a negative index means in a ring.
    #[must_use]
    pub fn negative_index(&self) -> NegativeIndex {
        self.rules.negative_index
    }

    /// Whether the samples of the update lie one behind the other, with as many rows each as a list says.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        matches!(self.samples, Samples::Packed { .. })
    }

    /// From the update into the cache.
    #[must_use]
    pub fn write_loops(&self) -> Loops {
        self.update_loops(&self.write, self.cache.offset, self.layers.stride)
    }

    /// From the update into the present of the functional form: a dense tensor of the cache's shape.
    #[must_use]
    pub fn present_from_update_loops(&self) -> Loops {
        self.update_loops(&self.present.from_update, 0, self.present.layer_stride)
    }

    /// From the past into the present. The past's samples, rows and layers are the cache's.
    #[must_use]
    pub fn present_from_past_loops(&self) -> Loops {
        let layers = Loop { count: self.layers(), dst: self.present.layer_stride, src: self.layers.stride };
        loops(&self.present.from_past, [0, self.cache.offset], layers, [self.cache_batch(), self.capacity()])
    }

    fn update_loops(&self, mapping: &Mapping, dst: usize, layer_stride: isize) -> Loops {
        let counts = match self.samples {
            Samples::Padded { batch, rows } => [batch, rows],
            Samples::Packed { tokens } => [self.cache_batch(), tokens],
        };
        let layers = Loop { count: self.layers(), dst: layer_stride, src: 0 };
        loops(mapping, [dst, self.update.offset], layers, counts)
    }
}

fn loops(mapping: &Mapping, [dst, src]: [usize; 2], layers: Loop, [samples, rows]: [usize; 2]) -> Loops {
    let (sample, row) = mapping.steps();
    let (around, run) = mapping.around();
    Loops {
        dst,
        src,
        layers,
        samples: Loop { count: samples, dst: sample.dst, src: sample.src },
        rows: Loop { count: rows, dst: row.dst, src: row.src },
        around,
        run,
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::Loops;
    use crate::spec::{ascend::KvCacheOperation, onnx::TensorScatter};
    use crate::{Block, ElementType, Layout};

    /// Every element that moves: where it goes and where it comes from.
    #[expect(clippy::arithmetic_side_effects, reason = "small numbers")]
    fn moved(loops: &Loops, layer: isize, starts: &[usize]) -> Vec<(isize, isize)> {
        let mut around: Vec<(isize, isize)> = [(0, 0)].into();
        for by in &loops.around {
            let step = |at: (isize, isize), index| (at.0 + by.dst * index, at.1 + by.src * index);
            around = around
                .iter()
                .flat_map(|&at| (0..by.count.cast_signed()).map(move |index| step(at, index)))
                .collect();
        }
        let mut moved = Vec::new();
        for (sample, &start) in (0..loops.samples.count.cast_signed()).zip(starts) {
            for row in 0..loops.rows.count.cast_signed() {
                let dst = layer * loops.layers.dst
                    + sample * loops.samples.dst
                    + (row + start.cast_signed()) * loops.rows.dst;
                let src = sample * loops.samples.src + row * loops.rows.src;
                for at in &around {
                    let run = 0..loops.run.cast_signed();
                    moved.extend(run.map(|e| {
                        (loops.dst.cast_signed() + dst + at.0 + e, loops.src.cast_signed() + src + at.1 + e)
                    }));
                }
            }
        }
        moved.sort_unstable();
        moved
    }

    #[expect(clippy::arithmetic_side_effects, reason = "small numbers")]
    fn of_blocks(visit: impl FnOnce(&mut dyn FnMut(&Block))) -> Vec<(isize, isize)> {
        let mut moved = Vec::new();
        visit(&mut |block| {
            block.for_each_run(|dst, src| {
                moved.extend((0..block.len).map(|e| ((dst + e).cast_signed(), (src + e).cast_signed())));
            });
        });
        moved.sort_unstable();
        moved
    }

    /// The loops and the plan's blocks are two forms of one mapping.
    #[test]
    fn loops_move_what_blocks_move() {
        let strides = [[60, 20, 4, 1], [20, 60, 4, 1], [-60, 20, 4, 1], [60, 4, 12, 1], [120, 40, 8, 2]];
        for (axis, rows) in [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2)] {
            for strides in strides {
                let mut shape = [2, 3, 5, 4];
                let cache = Layout::strided(&[2, 3, 5, 4], &strides);
                let cache = cache.offset(cache.least_offset() + 1);
                shape[axis] = rows;
                let operator = TensorScatter::new().axis(i64::try_from(axis).unwrap());
                let Ok(write) = operator.prepare(ElementType::Int8, cache, &shape) else { continue };
                let starts = [1, 0];
                let plan = write.plan(&[1_i64, 0]).unwrap();
                let loops = write.geometry().write_loops();
                assert_eq!(
                    moved(&loops, 0, &starts),
                    of_blocks(|visit| plan.for_each(visit)),
                    "{axis} {strides:?}"
                );
                let mut present = moved(&write.geometry().present_from_update_loops(), 0, &starts);
                let past = moved(&write.geometry().present_from_past_loops(), 0, &[0, 0]);
                let kept =
                    past.into_iter().filter(|at| present.binary_search_by_key(&at.0, |new| new.0).is_err());
                present.extend(kept.collect::<Vec<_>>());
                present.sort_unstable();
                let blocks = of_blocks(|visit| plan.for_each_present(|_, block| visit(block)));
                assert_eq!(present, blocks, "{axis} {strides:?}");
            }
        }
    }

    #[test]
    fn layers_have_a_step_of_their_own() {
        let write = KvCacheOperation::new().prepare(ElementType::Int8, &[2, 1, 3, 2], &[3, 2, 5, 6]).unwrap();
        let plan = write.plan(&[2], &[1, 5], &[1, 1]).unwrap();
        let loops = write.geometry().write_loops();
        assert_eq!((loops.layers.count, loops.layers.dst, loops.layers.src), (3, 60, 0));
        assert_eq!(moved(&loops, 2, &[0, 4]), of_blocks(|visit| plan.for_each(visit)));
    }
}
