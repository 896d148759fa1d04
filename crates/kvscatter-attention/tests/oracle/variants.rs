//! The ways in which this machine computes a call: instruction sets and limits.

use kvscatter::Isa;
use kvscatter_attention::{Attention, AttentionError, Prepared};

use super::call::{Operands, Results};
use super::element::Element;

/// An instruction set, with the real limits or with tiny ones, and with wide blocks for
/// many rows or for any number of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    isa: Isa,
    has_tiny_limits: bool,
    has_wide_blocks: bool,
}

impl Variant {
    /// The variant that users have.
    pub(crate) const USUAL: Self = Self::with_real_limits(Isa::Avx512);

    const fn with_real_limits(isa: Isa) -> Self {
        Self { isa, has_tiny_limits: false, has_wide_blocks: false }
    }

    /// Returns every instruction set of this machine that has kernels, with the limits that users have.
    pub(crate) fn real() -> Vec<Self> {
        let sets = Isa::allowed().up_to().filter(|isa| *isa != Isa::Sse2);
        sets.map(Self::with_real_limits).collect()
    }

    /// Returns every instruction set of this machine that has kernels, with each of the limits.
    pub(crate) fn all() -> Vec<Self> {
        let limits = [(true, true), (true, false), (false, true), (false, false)];
        let with_limits = |variant: Self| {
            limits.map(|(has_tiny_limits, has_wide_blocks)| Self {
                has_tiny_limits,
                has_wide_blocks,
                ..variant
            })
        };
        Self::real().into_iter().flat_map(with_limits).collect()
    }

    /// Returns those with tiny limits, so that short calls take every path, and the usual one.
    pub(crate) fn for_short() -> Vec<Self> {
        Self::all().into_iter().filter(|variant| variant.has_tiny_limits).chain([Self::USUAL]).collect()
    }

    pub(crate) fn apply(self, prepared: Prepared) -> Prepared {
        let prepared = prepared.with_isa(self.isa);
        let prepared = if self.has_tiny_limits { prepared.with_tiny_limits() } else { prepared };
        if self.has_wide_blocks { prepared.with_wide_blocks() } else { prepared }
    }
}

impl<T: Element> Operands<T> {
    /// Prepares a call for a variant, and runs it on this thread, with every output.
    pub(crate) fn run_as(&self, variant: Variant, op: &Attention) -> Result<Results<T>, AttentionError> {
        let prepared = variant.apply(self.prepare(op)?);
        self.run_on(&prepared, op, true, &mut prepared.scratch(1), None)
    }
}
