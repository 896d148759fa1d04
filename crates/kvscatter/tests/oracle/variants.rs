//! The ways in which this machine moves bytes: instruction sets, limits and executors.

use kvscatter::{Executor, Isa, Prepared};

/// An instruction set, with the real limits or with tiny ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    isa: Isa,
    has_tiny_limits: bool,
}

impl Variant {
    /// Returns every instruction set of this machine with tiny limits, so that small tensors take every path, and
    /// the widest one with the real limits.
    pub(crate) fn for_small() -> Vec<Self> {
        let tiny = Isa::allowed().up_to().map(|isa| Self { isa, has_tiny_limits: true });
        tiny.chain([Self { isa: Isa::allowed(), has_tiny_limits: false }]).collect()
    }

    /// Returns every instruction set of this machine with each of the limits.
    pub(crate) fn for_large() -> Vec<Self> {
        let limits = |isa| [true, false].map(|has_tiny_limits| Self { isa, has_tiny_limits });
        Isa::allowed().up_to().flat_map(limits).collect()
    }

    pub(crate) fn has_tiny_limits(self) -> bool {
        self.has_tiny_limits
    }

    pub(crate) fn apply(self, prepared: &Prepared) -> Prepared {
        let prepared = prepared.clone().with_isa(self.isa);
        if self.has_tiny_limits { prepared.with_tiny_limits() } else { prepared }
    }
}

/// An executor that does not run the work, so that the calling thread must do all of it.
struct Never;

impl Executor for Never {
    fn broadcast(&self, _work: &(dyn Fn() + Sync)) {}
}

/// An executor that runs the same work three times, one after the other.
struct Thrice;

impl Executor for Thrice {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        (0..3).for_each(|_| work());
    }
}

/// Executors that run the work too seldom or too often.
pub(crate) const ODD: &[&dyn Executor] = &[&Never, &Thrice];
