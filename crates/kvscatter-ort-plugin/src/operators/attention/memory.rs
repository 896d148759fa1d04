//! The memory of the outputs of a call.

use core::fmt::Display;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::slice;

use kvscatter::RawBuffer;
use kvscatter_attention::Operand;

use crate::context::Context;
use crate::input::range;
use crate::status::CallError;

/// The memory of one output, which may contain anything. `N` is the type of its name.
pub(crate) struct OutputMemory<T, N = Operand> {
    name: N,
    data: *mut MaybeUninit<T>,
    count: usize,
}

impl<T, N: Copy + Display> OutputMemory<T, N> {
    /// Requests the memory of an output with elements of `T` from the runtime. Returns the status of a function of the
    /// runtime that fails, or an error for memory that is not aligned, which a program may have bound.
    pub(crate) fn request(
        context: &Context<'_>,
        index: usize,
        name: N,
        shape: &[i64],
    ) -> Result<Self, CallError> {
        let RawBuffer { ptr, len } = context.output(index, shape)?;
        let (data, width) = (ptr.cast::<MaybeUninit<T>>(), size_of::<T>());
        let count = shape.iter().map(|&size| usize::try_from(size).unwrap_or(0)).product();
        if Some(len) != usize::checked_mul(count, width) {
            return Err(CallError::fail(format!(
                "{name} has {len} bytes, its shape requires {count} elements of {width}"
            )));
        }
        if count > 0 && !data.is_aligned() {
            return Err(CallError::fail(format!("{name} must begin at a multiple of {width} bytes")));
        }
        Ok(Self { name, data, count })
    }

    /// Returns the elements.
    ///
    /// # Safety
    /// This is called once for the memory of a call, after [`check_separate`] has accepted it.
    pub(crate) unsafe fn into_slice<'a>(self) -> &'a mut [MaybeUninit<T>] {
        if self.count == 0 {
            return &mut [];
        }
        // SAFETY: The runtime returned an output, which is valid for writes until the call returns (R2), and
        // `request` has checked its length and its alignment. Nothing else refers to the memory, by this function's
        // contract.
        unsafe { slice::from_raw_parts_mut(self.data, self.count) }
    }

    /// Returns the address and the size of the memory.
    pub(crate) fn buffer(&self) -> RawBuffer {
        RawBuffer { ptr: self.data.cast(), len: self.count.saturating_mul(size_of::<T>()) }
    }

    /// Returns the name and the addresses.
    pub(crate) fn addresses(&self) -> (N, Range<usize>) {
        (self.name, range(self.buffer()))
    }
}

/// Checks that no output shares memory with an input or with another output. A program may have bound them so. `N` is
/// the type of their names. Returns an error that names both.
pub(crate) fn check_separate<N: Display>(
    outputs: impl Iterator<Item = (N, Range<usize>)> + Clone,
    inputs: impl Iterator<Item = (N, Range<usize>)> + Clone,
) -> Result<(), CallError> {
    let mut others = outputs.clone();
    for (output, memory) in outputs {
        others.next();
        let mut all = inputs.clone().chain(others.clone());
        if let Some((with, _)) = all.find(|(_, other)| overlaps(&memory, other)) {
            return Err(CallError::fail(format!("the buffer of {output} shares memory with that of {with}")));
        }
    }
    Ok(())
}

fn overlaps(one: &Range<usize>, other: &Range<usize>) -> bool {
    !one.is_empty() && !other.is_empty() && one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use kvscatter_attention::Operand;

    use super::{OutputMemory, check_separate};

    #[test]
    fn memory_that_is_shared_is_refused() {
        let mut memory = [0_u32; 12];
        let first = memory.as_mut_ptr();
        let output = |operand, offset: usize, count| OutputMemory::<u32> {
            name: operand,
            data: first.wrapping_add(offset).cast(),
            count,
        };
        let refusal = |outputs: &[OutputMemory<u32>], input: core::ops::Range<usize>| {
            let input = memory[input].as_ptr_range();
            let input = (Operand::Key, input.start.addr()..input.end.addr());
            check_separate(outputs.iter().map(OutputMemory::addresses), [input].into_iter())
                .err()
                .map(|refused| refused.to_string())
        };
        let (y, present) = (Operand::Output, Operand::PresentKey);
        assert_eq!(refusal(&[output(y, 4, 4), output(present, 8, 4)], 0..4), None);
        assert_eq!(
            refusal(&[output(y, 4, 4), output(present, 5, 0)], 4..4),
            None,
            "empty ones share nothing"
        );
        let with_input = Some("the buffer of Y shares memory with that of K".to_owned());
        assert_eq!(refusal(&[output(y, 3, 1)], 0..4), with_input);
        assert_eq!(refusal(&[output(y, 0, 12)], 4..5), with_input);
        let with_output = Some("the buffer of Y shares memory with that of present_key".to_owned());
        assert_eq!(refusal(&[output(y, 4, 4), output(present, 7, 2)], 0..4), with_output);
    }
}
