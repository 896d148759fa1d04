//! Random choices that follow from one seed.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A source of random choices.
pub(crate) struct Dice(Pcg64Mcg);

/// Names that mean something to the code under test, or that are difficult to print.
const NAMES: [&str; 18] = [
    "",
    "x",
    "write_indices",
    "attention_mask",
    "position_ids",
    "input_ids",
    "past_k0",
    "kvscatter",
    "kvscatter_1",
    "nonpad_kv_seqlen",
    "a\nb",
    "\u{1b}[31m",
    "\u{202e}txt",
    "..",
    "/etc/passwd",
    "batch",
    "é€𝄞",
    "then_branch",
];

/// Numbers at which arithmetic changes.
const INTS: [i64; 26] = [
    -1,
    0,
    1,
    2,
    3,
    7,
    -2,
    -3,
    64,
    127,
    128,
    255,
    256,
    4096,
    65_536,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX,
    i64::MIN,
    i64::MAX - 1,
    u32::MAX as i64,
    -(1 << 33),
];

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `limit`, or 0 if the limit is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).unwrap();
        usize::try_from(self.bits() % limit).unwrap()
    }

    /// Returns `true` in this share of the cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns an item of a list that is not empty.
    pub(crate) fn pick<'t, T>(&mut self, items: &'t [T]) -> &'t T {
        &items[self.below(items.len())]
    }

    pub(crate) fn pick_mut<'t, T>(&mut self, items: &'t mut [T]) -> Option<&'t mut T> {
        let at = self.below(items.len());
        items.get_mut(at)
    }

    /// Returns a small number in most cases, and any number in some.
    pub(crate) fn int(&mut self) -> i64 {
        match self.below(10) {
            0 => self.bits().cast_signed(),
            1..=4 => i64::try_from(self.below(9)).unwrap() - 2,
            _ => *self.pick(&INTS),
        }
    }

    pub(crate) fn float(&mut self) -> f32 {
        match self.below(3) {
            0 => {
                *self.pick(&[0.0, -0.0, 1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN, f32::MAX])
            }
            1 => *self.pick(&[0.5, 1e-30, -1e30, 2.0, 1e-45]),
            _ => f32::from_bits(u32::try_from(self.bits() >> 32).unwrap()),
        }
    }

    /// Returns a name. It is longer than names may be in a few cases.
    pub(crate) fn name(&mut self) -> String {
        match self.below(30) {
            0 => "long".repeat(1500),
            1 => "n".repeat(4096),
            _ => (*self.pick(&NAMES)).to_owned(),
        }
    }
}
