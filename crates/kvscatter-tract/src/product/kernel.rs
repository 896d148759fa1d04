//! The kernels of products, which are compiled once for each instruction set.
//!
//! A kernel multiplies some rows of activations with one panel, which is 32 columns of the weights. It adds the
//! terms of each result in the order of the depth, so a result does not depend on the other rows of the call.

/// The number of columns of a panel.
pub(super) const COLUMNS: usize = 32;

/// The largest number of rows that a kernel multiplies at once.
pub(super) const MAX_ROWS: usize = 4;

/// Adding a code below 2^23 to the bits of this number gives the number `2^23 + code`.
const MAGIC: f32 = 8_388_608.0;

/// One float32 for each column of a panel.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
pub(super) struct Row(pub(super) [f32; COLUMNS]);

/// 32 bits of codes for each column of a panel. The lowest bits come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub(super) struct Words(pub(super) [u32; COLUMNS]);

impl Row {
    pub(super) const ZERO: Self = Self([0.0; COLUMNS]);
}

impl Words {
    pub(super) const ZERO: Self = Self([0; COLUMNS]);
}

/// The codes of a panel, block by block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes<'a> {
    /// The number of bits of a code: 2, 4 or 8.
    pub(super) bits: u8,
    /// The number of weights of a column that share a scale and a zero point.
    pub(super) block_size: usize,
    pub(super) words: &'a [Words],
    /// Integers are bytes. One of [`Words`] has those of four blocks.
    pub(super) zeros: Zeros<&'a [Words], &'a [Row]>,
    /// The scales of each block.
    pub(super) scales: &'a [Row],
}

/// The code that means 0.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Zeros<C, F> {
    /// The same for all weights.
    Same(u8),
    /// An integer for each block of each column.
    Codes(C),
    /// Any number for each block of each column.
    Floats(F),
}

impl Codes<'_> {
    /// Returns the number of words of a block.
    fn words_of_block(&self) -> usize {
        self.block_size * usize::from(self.bits) / 32
    }
}

/// A kernel's call, which is compiled for each instruction set.
pub(super) trait KernelCall {
    /// Computes with at most `LIMIT` numbers in vectors, beside those of the weights. With `FUSED`, products are added
    /// without being rounded.
    fn run<const LIMIT: usize, const FUSED: bool>(self);
}

/// Adds products with float32 weights: `sums[row] += x[k][row] * weights[k]` for every `k`.
pub(super) struct Floats<'a, const R: usize> {
    pub(super) x: &'a [[f32; R]],
    pub(super) weights: &'a [Row],
    pub(super) sums: &'a mut [Row; R],
}

/// Adds products with the weights of whole blocks: `sums[row] += x[k][row] * (code[k] - zero) * scale`.
pub(super) struct Coded<'a, const R: usize> {
    pub(super) x: &'a [[f32; R]],
    pub(super) codes: Codes<'a>,
    /// The first block, and the codes of that block and later ones as [`Decode`] returns them. Without these, the
    /// kernel decodes all blocks itself.
    pub(super) decoded: Option<(usize, &'a [Row])>,
    pub(super) sums: &'a mut [Row; R],
}

/// Stores the codes of some blocks as numbers. Unless zero points are floats, they are subtracted.
pub(super) struct Decode<'a> {
    pub(super) codes: Codes<'a>,
    pub(super) first_block: usize,
    pub(super) to: &'a mut [Row],
}

/// Calls a kernel with as many columns at once as fit into the registers for `R` rows.
macro_rules! with_width {
    ($rows:expr, $kernel:ident($call:expr)) => {
        match LIMIT / $rows {
            32.. => $kernel::<32, R, FUSED>($call),
            16.. => $kernel::<16, R, FUSED>($call),
            _ => $kernel::<8, R, FUSED>($call),
        }
    };
}

impl<const R: usize> KernelCall for Floats<'_, R> {
    #[inline(always)]
    fn run<const LIMIT: usize, const FUSED: bool>(self) {
        with_width!(R, floats(self));
    }
}

impl<const R: usize> KernelCall for Coded<'_, R> {
    #[inline(always)]
    fn run<const LIMIT: usize, const FUSED: bool>(self) {
        with_width!(R, coded(self));
    }
}

impl KernelCall for Decode<'_> {
    #[inline(always)]
    fn run<const LIMIT: usize, const FUSED: bool>(self) {
        match self.codes.bits {
            2 => decode_of::<16, 2>(self),
            4 => decode_of::<16, 4>(self),
            _ => decode_of::<16, 8>(self),
        }
    }
}

#[inline(always)]
fn floats<const W: usize, const R: usize, const FUSED: bool>(call: Floats<'_, R>) {
    for first in (0..COLUMNS).step_by(W) {
        let mut sums = [[0.0; W]; R];
        for (sums, row) in sums.iter_mut().zip(&*call.sums) {
            *sums = load(&row.0, first);
        }
        for (x, weights) in call.x.iter().zip(call.weights) {
            add_products::<W, R, FUSED>(x, &load(&weights.0, first), &mut sums);
        }
        for (sums, row) in sums.iter().zip(call.sums.iter_mut()) {
            store(sums, row, first);
        }
    }
}

#[inline(always)]
fn coded<const W: usize, const R: usize, const FUSED: bool>(call: Coded<'_, R>) {
    match (call.decoded, call.codes.bits) {
        (Some(_), _) => coded_of::<W, R, FUSED, 0>(call),
        (None, 2) => coded_of::<W, R, FUSED, 2>(call),
        (None, 4) => coded_of::<W, R, FUSED, 4>(call),
        (None, _) => coded_of::<W, R, FUSED, 8>(call),
    }
}

/// Multiplies with codes of some bits, or with decoded ones if `BITS` is 0.
#[inline(always)]
fn coded_of<const W: usize, const R: usize, const FUSED: bool, const BITS: u32>(call: Coded<'_, R>) {
    let Coded { x, codes, decoded, sums: all_sums } = call;
    let (first_block, decoded) = decoded.unwrap_or_default();
    for first in (0..COLUMNS).step_by(W) {
        for (index, x) in x.chunks_exact(codes.block_size).enumerate() {
            let block = first_block + index;
            let mut sums = [[0.0; W]; R];
            if BITS == 0 {
                let weights = decoded.iter().skip(index * codes.block_size);
                for (x, weights) in x.iter().zip(weights) {
                    add_products::<W, R, FUSED>(x, &load(&weights.0, first), &mut sums);
                }
            } else {
                let zeros = integer_zeros::<W>(&codes, block, first);
                let words = codes.words.iter().skip(block * codes.words_of_block());
                for (x, words) in x.chunks_exact(per_word(BITS)).zip(words) {
                    let words: [u32; W] = load(&words.0, first);
                    for (index, x) in x.iter().enumerate() {
                        add_products::<W, R, FUSED>(
                            x,
                            &decode_one::<W, BITS>(&words, index, &zeros),
                            &mut sums,
                        );
                    }
                }
            }
            if let Zeros::Floats(zeros) = codes.zeros
                && let Some(zeros) = zeros.get(block)
            {
                let mut total = [0.0; R];
                for x in x {
                    total.iter_mut().zip(x).for_each(|(total, x)| *total -= x);
                }
                add_products::<W, R, FUSED>(&total, &load(&zeros.0, first), &mut sums);
            }
            let Some(scales) = codes.scales.get(block) else { return };
            let scales: [f32; W] = load(&scales.0, first);
            for (sums, row) in sums.iter().zip(all_sums.iter_mut()) {
                let mut scaled: [f32; W] = load(&row.0, first);
                for ((scaled, sum), scale) in scaled.iter_mut().zip(sums).zip(&scales) {
                    *scaled = mul_add::<FUSED>(*sum, *scale, *scaled);
                }
                store(&scaled, row, first);
            }
        }
    }
}

#[inline(always)]
fn decode_of<const W: usize, const BITS: u32>(call: Decode<'_>) {
    let Decode { codes, first_block, to } = call;
    for first in (0..COLUMNS).step_by(W) {
        for (index, to) in to.chunks_exact_mut(codes.block_size).enumerate() {
            let block = first_block + index;
            let zeros = integer_zeros::<W>(&codes, block, first);
            let words = codes.words.iter().skip(block * codes.words_of_block());
            for (to, words) in to.chunks_exact_mut(per_word(BITS)).zip(words) {
                let words: [u32; W] = load(&words.0, first);
                for (index, to) in to.iter_mut().enumerate() {
                    store(&decode_one::<W, BITS>(&words, index, &zeros), to, first);
                }
            }
        }
    }
}

/// Returns the number of codes of this many bits in a word.
const fn per_word(bits: u32) -> usize {
    match bits {
        2 => 16,
        4 => 8,
        _ => 4,
    }
}

/// Returns [`MAGIC`] plus the zero point of each column in a block, or plus 0 if zero points are floats.
#[inline(always)]
fn integer_zeros<const W: usize>(codes: &Codes<'_>, block: usize, first: usize) -> [f32; W] {
    match codes.zeros {
        Zeros::Same(zero) => [MAGIC + f32::from(zero); W],
        Zeros::Codes(words) => {
            let words = load(&words.get(block / 4).unwrap_or(&Words::ZERO).0, first);
            decode_one::<W, 8>(&words, block % 4, &[0.0; W])
        }
        Zeros::Floats(_) => [MAGIC; W],
    }
}

/// Returns the code with this index of each word, plus [`MAGIC`] and minus `zeros`.
#[inline(always)]
fn decode_one<const W: usize, const BITS: u32>(words: &[u32; W], index: usize, zeros: &[f32; W]) -> [f32; W] {
    let shift = BITS * index as u32;
    let mut decoded = *zeros;
    for (decoded, word) in decoded.iter_mut().zip(words) {
        let code = (word >> shift) & ((1 << BITS) - 1);
        *decoded = f32::from_bits(code | MAGIC.to_bits()) - *decoded;
    }
    decoded
}

/// Adds the product of each row's activation with the weights.
#[inline(always)]
fn add_products<const W: usize, const R: usize, const FUSED: bool>(
    x: &[f32; R],
    weights: &[f32; W],
    sums: &mut [[f32; W]; R],
) {
    for (sums, x) in sums.iter_mut().zip(x) {
        for (sum, weight) in sums.iter_mut().zip(weights) {
            *sum = mul_add::<FUSED>(*x, *weight, *sum);
        }
    }
}

/// Returns `a * b + c`. Without a fused instruction, `f32::mul_add` would call a function.
#[inline(always)]
fn mul_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn load<T: Copy + Default, const W: usize>(row: &[T; COLUMNS], first: usize) -> [T; W] {
    let mut loaded = [T::default(); W];
    loaded.copy_from_slice(&row[first..first + W]);
    loaded
}

#[inline(always)]
fn store<const W: usize>(numbers: &[f32; W], row: &mut Row, first: usize) {
    row.0[first..first + W].copy_from_slice(numbers);
}
