//! Products of activations with constant weights.
//!
//! The weights are laid out once, in panels of 32 columns. A panel stores the weights of all its columns for the
//! first row of the matrix, then those for the second row, and so on. So a product reads each panel in the order of
//! its memory, for one row of activations and for many. Weights of 2, 4 or 8 bits stay codes, and a product decodes
//! them in registers, or one panel at a time if there are many rows.
//!
//! # Precision
//! Sums are float32. The error of a result is at most `(depth + 2) × 2^-24` times the sum of its terms' absolute
//! values. For codes it is at most `(block size + blocks + 4) × 2^-24` times the sum of
//! `|activation| × |code - zero point| × |scale|`. If zero points are floats, `|code| + |zero point|` takes the place
//! of the difference.

mod kernel;
mod level;

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvscatter::Isa;

pub(crate) use kernel::Zeros;
use kernel::{COLUMNS, Coded, Decode, Floats, MAX_ROWS, Row, Words};
use level::Level;

/// The largest number of rows of activations that are multiplied while a panel is in the CPU's caches.
const ROWS: usize = 128;

/// The number of rows of the weights that are multiplied at once. Their part of a panel takes 128 KiB.
const DEPTH: usize = 1024;

/// The largest number of rows for which a kernel decodes the codes itself. With more rows, decoding each code once
/// takes less time.
const FEW_ROWS: usize = MAX_ROWS;

/// The number of multiplications from which threads share a product.
const SHARED: usize = 1 << 16;

/// A product with constant weights, which are laid out for an instruction set.
pub(crate) struct Product {
    /// The number of rows of the weights.
    depth: usize,
    /// The number of columns of the weights.
    columns: usize,
    weights: Weights,
    level: Level,
}

/// The weights, panel by panel. Columns after the last one are 0.
enum Weights {
    Floats(Vec<Row>),
    Codes(CodedWeights),
}

struct CodedWeights {
    bits: u8,
    block_size: usize,
    /// The number of blocks of a column.
    blocks: usize,
    words: Vec<Words>,
    zeros: Zeros<Vec<Words>, Vec<Row>>,
    scales: Vec<Row>,
}

/// Weights that are codes, column by column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes<'a> {
    /// The number of rows of the weights.
    pub(crate) depth: usize,
    /// The number of bits of a code: 2, 4 or 8.
    pub(crate) bits: u8,
    /// The number of weights of a column that share a scale and a zero point. It is a power of two of at least 16.
    pub(crate) block_size: usize,
    /// The codes of each column, in blocks of whole bytes. The lowest bits of a byte come first.
    pub(crate) codes: &'a [u8],
    pub(crate) zeros: &'a Zeros<Vec<u8>, Vec<f32>>,
    /// The scale of each block of each column.
    pub(crate) scales: &'a [f32],
}

impl Product {
    /// Lays out float32 weights. `row_stride` and `column_stride` are the distances in `weights` between rows and
    /// between columns. Returns `None` if a weight is missing or there is not enough memory.
    pub(crate) fn of_floats(
        [depth, columns]: [usize; 2],
        [row_stride, column_stride]: [usize; 2],
        weights: &[f32],
        isa: Isa,
    ) -> Option<Self> {
        let last = depth.checked_sub(1)?.checked_mul(row_stride)?;
        let last = last.checked_add(columns.checked_sub(1)?.checked_mul(column_stride)?)?;
        weights.get(last)?;
        let mut rows = with_room(columns.div_ceil(COLUMNS).checked_mul(depth)?)?;
        for first in (0..columns).step_by(COLUMNS) {
            let used = COLUMNS.min(columns - first);
            for row in 0..depth {
                let mut to = Row::ZERO;
                let from =
                    weights.iter().skip(row * row_stride + first * column_stride).step_by(column_stride);
                to.0.iter_mut().zip(from).take(used).for_each(|(to, from)| *to = *from);
                rows.push(to);
            }
        }
        Some(Self { depth, columns, weights: Weights::Floats(rows), level: Level::new(isa) })
    }

    /// Lays out codes. Returns `None` if a number is missing or there is not enough memory.
    pub(crate) fn of_codes(columns: usize, codes: &Codes<'_>, isa: Isa) -> Option<Self> {
        let Codes { depth, bits, block_size, .. } = *codes;
        let blocks = depth.div_ceil(block_size);
        let bytes = blocks.checked_mul(block_size * usize::from(bits) / 8)?;
        let words = panels(columns, bytes / 4, Words::ZERO, |column, word, panel, lane| {
            let at = column * bytes + word * 4;
            panel.0[lane] = u32::from_le_bytes(*codes.codes.get(at..)?.first_chunk()?);
            Some(())
        })?;
        let rows = |numbers: &[f32]| {
            panels(columns, blocks, Row::ZERO, |column, block, panel, lane| {
                panel.0[lane] = *numbers.get(column * blocks + block)?;
                Some(())
            })
        };
        let zeros = match codes.zeros {
            Zeros::Same(zero) => Zeros::Same(*zero),
            Zeros::Floats(zeros) => Zeros::Floats(rows(zeros)?),
            Zeros::Codes(zeros) => {
                let words = panels(columns, blocks.div_ceil(4), Words::ZERO, |column, word, panel, lane| {
                    let of_column = zeros.get(column * blocks..)?.get(..blocks)?;
                    let mut bytes = [0; 4];
                    bytes.iter_mut().zip(of_column.iter().skip(word * 4)).for_each(|(to, from)| *to = *from);
                    panel.0[lane] = u32::from_le_bytes(bytes);
                    Some(())
                });
                Zeros::Codes(words?)
            }
        };
        let scales = rows(codes.scales)?;
        let weights = Weights::Codes(CodedWeights { bits, block_size, blocks, words, zeros, scales });
        Some(Self { depth, columns, weights, level: Level::new(isa) })
    }

    /// Returns the number of rows and of columns of the weights.
    pub(crate) const fn shape(&self) -> [usize; 2] {
        [self.depth, self.columns]
    }

    /// Multiplies: `y[row][column]` is the sum of `x[row][k] * weight[k][column]`. Both are contiguous. Each row of a
    /// result has the same bits, however many rows and threads there are.
    pub(crate) fn run(&self, x: &[f32], y: &mut [f32], executor: Option<&dyn kvscatter::Executor>) {
        let pieces = x.chunks(ROWS * self.depth).zip(y.chunks_mut(ROWS * self.columns));
        pieces.for_each(|(x, y)| self.run_piece(x, y, executor));
    }

    fn run_piece(&self, x: &[f32], y: &mut [f32], executor: Option<&dyn kvscatter::Executor>) {
        let rows = y.len() / self.columns;
        let executor = executor.filter(|_| rows * self.depth * self.columns >= SHARED);
        let groups = Groups::new(x, self.depth, self.padded_depth());
        let panels = self.columns.div_ceil(COLUMNS);
        let mut sums = vec![Row::ZERO; panels * rows];
        // A thread that is late leaves at most this part to do.
        let share = if executor.is_some() { panels.div_ceil(16) } else { panels };
        share_out(sums.chunks_mut(share * rows), executor, |index, sums| {
            let mut decoded = Vec::new();
            for (panel, sums) in sums.chunks_mut(rows).enumerate() {
                self.multiply(index * share + panel, &groups, sums, &mut decoded);
            }
        });
        let executor = executor.filter(|_| rows >= ROWS);
        share_out(y.chunks_mut(self.columns), executor, |row, y| {
            for (y, sums) in y.chunks_mut(COLUMNS).zip(sums.iter().skip(row).step_by(rows)) {
                y.copy_from_slice(&sums.0[..y.len()]);
            }
        });
    }

    /// Returns the number of rows of the weights with those that fill the last block.
    fn padded_depth(&self) -> usize {
        match &self.weights {
            Weights::Floats(_) => self.depth,
            Weights::Codes(codes) => codes.blocks * codes.block_size,
        }
    }

    /// Multiplies all rows with one panel.
    fn multiply(&self, panel: usize, groups: &Groups, sums: &mut [Row], decoded: &mut Vec<Row>) {
        match &self.weights {
            Weights::Floats(weights) => {
                let weights = &weights[panel * self.depth..][..self.depth];
                for (index, weights) in weights.chunks(DEPTH).enumerate() {
                    groups.each(index * DEPTH, weights.len(), sums, self.level, Part::Floats(weights));
                }
            }
            Weights::Codes(coded) => {
                let codes = coded.panel(panel);
                if groups.rows <= FEW_ROWS {
                    let part = Part::Codes { codes, decoded: None };
                    return groups.each(0, groups.depth, sums, self.level, part);
                }
                let step = (DEPTH / coded.block_size).max(1);
                for first_block in (0..coded.blocks).step_by(step) {
                    let depth = step.min(coded.blocks - first_block) * coded.block_size;
                    decoded.resize(depth, Row::ZERO);
                    self.level.run(Decode { codes, first_block, to: decoded });
                    let part = Part::Codes { codes, decoded: Some((first_block, decoded)) };
                    groups.each(first_block * coded.block_size, depth, sums, self.level, part);
                }
            }
        }
    }
}

impl CodedWeights {
    fn panel(&self, panel: usize) -> kernel::Codes<'_> {
        let words = self.words.len() / self.scales.len() * self.blocks;
        let zeros = match &self.zeros {
            Zeros::Same(zero) => Zeros::Same(*zero),
            Zeros::Codes(words) => {
                let count = self.blocks.div_ceil(4);
                Zeros::Codes(&words[panel * count..][..count])
            }
            Zeros::Floats(zeros) => Zeros::Floats(&zeros[panel * self.blocks..][..self.blocks]),
        };
        kernel::Codes {
            bits: self.bits,
            block_size: self.block_size,
            words: &self.words[panel * words..][..words],
            zeros,
            scales: &self.scales[panel * self.blocks..][..self.blocks],
        }
    }
}

impl std::fmt::Debug for Product {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Product")
            .field("depth", &self.depth)
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

/// Rows of activations, in groups that a kernel multiplies at once. A group stores the first number of each of its
/// rows, then the second number of each, and so on.
struct Groups {
    numbers: Vec<f32>,
    rows: usize,
    /// The number of numbers of a row.
    depth: usize,
}

/// The weights of a kernel's call, as in [`Floats`] or [`Coded`].
#[derive(Clone, Copy)]
enum Part<'a> {
    Floats(&'a [Row]),
    Codes { codes: kernel::Codes<'a>, decoded: Option<(usize, &'a [Row])> },
}

impl Groups {
    /// Groups the rows, and adds zeros to each until it has `depth` numbers.
    fn new(x: &[f32], columns: usize, depth: usize) -> Self {
        let rows = x.len() / columns;
        let mut numbers = vec![0.0; rows * depth];
        let (mut x, mut to) = (x, numbers.as_mut_slice());
        for size in group_sizes(rows) {
            let (group, others) = x.split_at(size * columns);
            let (to_group, to_others) = to.split_at_mut(size * depth);
            for (index, row) in group.chunks_exact(columns).enumerate() {
                to_group.iter_mut().skip(index).step_by(size).zip(row).for_each(|(to, from)| *to = *from);
            }
            (x, to) = (others, to_others);
        }
        Self { numbers, rows, depth }
    }

    /// Calls a kernel for each group, with `depth` numbers of its rows from `first` on.
    fn each(&self, first: usize, depth: usize, sums: &mut [Row], level: Level, part: Part<'_>) {
        let (mut numbers, mut sums) = (self.numbers.as_slice(), sums);
        for size in group_sizes(self.rows) {
            let (group, others) = numbers.split_at(size * self.depth);
            let (to, to_others) = sums.split_at_mut(size);
            let x = &group[first * size..][..depth * size];
            match size {
                MAX_ROWS => multiply::<MAX_ROWS>(level, x, part, to),
                2 => multiply::<2>(level, x, part, to),
                _ => multiply::<1>(level, x, part, to),
            }
            (numbers, sums) = (others, to_others);
        }
    }
}

fn multiply<const R: usize>(level: Level, x: &[f32], part: Part<'_>, sums: &mut [Row]) {
    let (x, Some(sums)) = (x.as_chunks::<R>().0, sums.first_chunk_mut()) else { return };
    match part {
        Part::Floats(weights) => level.run(Floats { x, weights, sums }),
        Part::Codes { codes, decoded } => level.run(Coded { x, codes, decoded, sums }),
    }
}

/// Returns the number of rows of each group, which is the largest power of two that fits.
fn group_sizes(rows: usize) -> impl Iterator<Item = usize> {
    let mut left = rows;
    std::iter::from_fn(move || {
        let size = MAX_ROWS.min(1 << left.checked_ilog2()?);
        left -= size;
        Some(size)
    })
}

/// Calls `work` with each part and its index. Threads of the executor take the parts in turn, and the caller takes the
/// rest.
fn share_out<'a, T: Send + 'a>(
    parts: impl Iterator<Item = T> + Send,
    executor: Option<&dyn kvscatter::Executor>,
    work: impl Fn(usize, T) + Sync,
) {
    let mut parts = parts.enumerate();
    let Some(executor) = executor else { return parts.for_each(|(index, part)| work(index, part)) };
    let parts = Mutex::new(&mut parts);
    let next = || {
        let mut parts: MutexGuard<'_, _> = parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.next()
    };
    let work = || {
        while let Some((index, part)) = next() {
            work(index, part);
        }
    };
    executor.broadcast(&work);
    // The executor may have called nothing.
    work();
}

/// Collects `count` values for each panel. `fill` sets one lane of one value from a column.
fn panels<T: Copy>(
    columns: usize,
    count: usize,
    zero: T,
    fill: impl Fn(usize, usize, &mut T, usize) -> Option<()>,
) -> Option<Vec<T>> {
    let mut values = with_room(columns.div_ceil(COLUMNS).checked_mul(count)?)?;
    for first in (0..columns).step_by(COLUMNS) {
        for index in 0..count {
            let mut value = zero;
            for lane in 0..COLUMNS.min(columns - first) {
                fill(first + lane, index, &mut value, lane)?;
            }
            values.push(value);
        }
    }
    Some(values)
}

/// Returns an empty vector with room for `count` values, or `None` if there is not enough memory.
fn with_room<T>(count: usize) -> Option<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).ok()?;
    Some(values)
}

#[cfg(test)]
mod tests {
    use kvscatter::Isa;

    use super::{Codes, Product, Zeros};

    const ISAS: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

    /// Three threads that take parts of the work.
    struct Three;

    impl kvscatter::Executor for Three {
        fn broadcast(&self, work: &(dyn Fn() + Sync)) {
            std::thread::scope(|scope| (0..3).for_each(|_| _ = scope.spawn(work)));
        }
    }

    /// Threads that never take work.
    struct Never;

    impl kvscatter::Executor for Never {
        fn broadcast(&self, _: &(dyn Fn() + Sync)) {}
    }

    /// Returns a number between -1 and 1 with all digits of a float32.
    fn number(index: usize) -> f32 {
        let bits = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        bits as f32 / (1 << 23) as f32 - 1.0
    }

    fn numbers(count: usize, first: usize) -> Vec<f32> {
        (first..first + count).map(number).collect()
    }

    /// Compares each result with sums in float64. `weight` returns a weight and the size that bounds its error, and
    /// `terms` is the number of roundings. Then compares the bits with those of each row alone, and of three threads.
    fn check(product: &Product, rows: &[usize], terms: usize, weight: impl Fn(usize, usize) -> (f64, f64)) {
        let [depth, columns] = product.shape();
        let weights: Vec<(f64, f64)> = (0..columns)
            .flat_map(|column| (0..depth).map(move |row| (row, column)))
            .map(|(row, column)| weight(row, column))
            .collect();
        for &rows in rows {
            let x = numbers(rows * depth, 7);
            let mut y = vec![f32::NAN; rows * columns];
            product.run(&x, &mut y, None);
            for (x, y) in x.chunks(depth).zip(y.chunks(columns)).step_by(rows.div_ceil(5)) {
                for (weights, y) in weights.chunks(depth).zip(y) {
                    let (mut sum, mut size) = (0.0, 0.0);
                    for (x, (weight, bound)) in x.iter().zip(weights) {
                        sum += f64::from(*x) * weight;
                        size += f64::from(x.abs()) * bound;
                    }
                    let (error, bound) = ((f64::from(*y) - sum).abs(), terms as f64 * size * 2_f64.powi(-24));
                    assert!(
                        error <= bound,
                        "{product:?}: {rows} rows, {y} is not {sum}, {error:e} > {bound:e}"
                    );
                }
            }
            let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            let mut others = vec![f32::NAN; y.len()];
            for (x, y) in x.chunks(depth).zip(others.chunks_mut(columns)) {
                product.run(x, y, None);
            }
            assert_eq!(bits(&others), bits(&y), "{product:?}: each of {rows} rows alone");
            for threads in [&Three as &dyn kvscatter::Executor, &Never] {
                others.fill(f32::NAN);
                product.run(&x, &mut others, Some(threads));
                assert_eq!(bits(&others), bits(&y), "{product:?}: {rows} rows with threads");
            }
        }
    }

    #[test]
    fn products_with_floats_are_those_of_float64_on_every_instruction_set() {
        for [depth, columns] in [[1, 1], [3, 33], [1, 64], [17, 31], [64, 32], [1027, 65]] {
            let weights = numbers(depth * columns, 3);
            for isa in ISAS {
                for strides in [[columns, 1], [1, depth]] {
                    let product = Product::of_floats([depth, columns], strides, &weights, isa).unwrap();
                    // The kernels take rows in groups of 4, 2 and 1, and at most 128 in a piece.
                    check(&product, &[1, 4, 7, 131], depth + 2, |row, column| {
                        let weight = f64::from(weights[row * strides[0] + column * strides[1]]);
                        (weight, weight.abs())
                    });
                }
            }
        }
    }

    #[test]
    fn products_with_codes_are_those_of_float64_on_every_instruction_set() {
        // The last depth takes more than one part of a panel.
        for (bits, block_size, depth, columns) in [
            (2, 16, 33_usize, 37),
            (4, 16, 48, 32),
            (4, 32, 100, 65),
            (4, 64, 64, 3),
            (4, 128, 2300, 33),
            (8, 16, 31, 33),
            (8, 128, 200, 40),
            (2, 64, 1100, 34),
            (4, 2048, 2100, 5),
        ] {
            let blocks = depth.div_ceil(block_size);
            let count = columns * blocks;
            let codes: Vec<u8> =
                (0..count * block_size * bits / 8).map(|index| (index * 89 + index / 7) as u8).collect();
            let scales: Vec<f32> = (0..count).map(|index| 0.01 + number(index).abs()).collect();
            let integers: Vec<u8> = (0..count).map(|index| (index * 5 % (1 << bits)) as u8).collect();
            let floats: Vec<f32> = integers.iter().map(|zero| f32::from(*zero) + 0.3).collect();
            let code = |row: usize, column: usize| {
                let at = (column * blocks * block_size + row) * bits;
                f64::from((codes[at / 8] >> (at % 8)) & (u8::MAX >> (8 - bits)))
            };
            for zeros in [Zeros::Same(1 << (bits - 1)), Zeros::Codes(integers), Zeros::Floats(floats)] {
                let (zeros, bits) = (&zeros, bits as u8);
                let given = Codes { depth, bits, block_size, codes: &codes, zeros, scales: &scales };
                for isa in ISAS {
                    let product = Product::of_codes(columns, &given, isa).unwrap();
                    // The kernels decode codes themselves for up to 4 rows.
                    check(&product, &[3, 7], block_size + blocks + 4, |row, column| {
                        let block = column * blocks + row / block_size;
                        let (code, scale) = (code(row, column), f64::from(scales[block]));
                        match zeros {
                            Zeros::Same(zero) => weight(code, f64::from(*zero), scale),
                            Zeros::Codes(zeros) => weight(code, f64::from(zeros[block]), scale),
                            Zeros::Floats(zeros) => {
                                let zero = f64::from(zeros[block]);
                                ((code - zero) * scale, (code + zero) * scale)
                            }
                        }
                    });
                }
            }
        }
    }

    fn weight(code: f64, zero: f64, scale: f64) -> (f64, f64) {
        ((code - zero) * scale, (code - zero).abs() * scale)
    }

    #[test]
    fn weights_that_are_missing_are_refused() {
        assert!(Product::of_floats([3, 4], [4, 1], &[0.0; 11], Isa::Portable).is_none());
        assert!(Product::of_floats([0, 4], [4, 1], &[], Isa::Portable).is_none());
        let (codes, zeros) = (&[0; 16], &Zeros::Same(8));
        let codes = |scales| Codes { depth: 32, bits: 4, block_size: 32, codes, zeros, scales };
        assert!(Product::of_codes(1, &codes(&[]), Isa::Portable).is_none());
        assert!(Product::of_codes(2, &codes(&[1.0, 1.0]), Isa::Portable).is_none());
        assert!(Product::of_codes(1, &codes(&[1.0]), Isa::Portable).is_some());
    }
}
