//! An error as a message: one lower-case line without a full stop.

use core::fmt;

use super::{Error, LengthUnit, SequenceHint};
use crate::argument::Argument;

impl Error {
    /// Returns the message with other names for the arguments, such as their names in another language.
    ///
    /// ```
    /// use kvscatter::{Argument, Error};
    ///
    /// let error = Error::NegativeStart { argument: Argument::TensorRtWriteIndices, index: 1, value: -1 };
    /// assert_eq!(error.to_string(), "writeIndices[1] = -1: must not be negative");
    /// let python = error.display_with(|argument| match argument {
    ///     Argument::TensorRtWriteIndices => "write_indices",
    ///     other => other.name(),
    /// });
    /// assert_eq!(python.to_string(), "write_indices[1] = -1: must not be negative");
    /// ```
    ///
    /// The message contains a copy of the error, so it does not borrow the error.
    pub fn display_with<'n, F: Fn(Argument) -> &'n str>(&self, name: F) -> impl fmt::Display + use<'n, F> {
        Message { error: *self, name }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.display_with(Argument::name).fmt(f)
    }
}

struct Message<N> {
    error: Error,
    name: N,
}

impl<'n, N: Fn(Argument) -> &'n str> fmt::Display for Message<N> {
    #[expect(clippy::too_many_lines, reason = "a table: one arm for each variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, name } = self;
        let details = error.details();
        let argument = details.argument.map_or("", name);
        match *error {
            Error::ElementType { element, accepted, .. } => {
                write!(f, "{argument} is {element}, must be {}", OneOf(accepted))
            }
            Error::ElementTypeMismatch { cache, element, .. } => {
                write!(f, "{argument} is {element}, but the cache is {cache}: both must have the same type")
            }
            Error::Rank { rank, expected, .. } => {
                write!(f, "{argument} has {}, must have {}", Counted(rank, "dimension"), OneOf(expected))
            }
            Error::RankTooLow { rank, min, .. } => {
                write!(f, "{argument} has {}, must have at least {min}", Counted(rank, "dimension"))
            }
            Error::RankMismatch { cache, update, .. } => {
                let update = Counted(update, "dimension");
                write!(f, "{argument} has {update}, the cache has {cache}: both must have the same")
            }
            Error::AxisOutOfRange { axis, rank } => {
                write!(f, "{argument} = {axis} is not a dimension of a cache of rank {rank}")
            }
            Error::AxisIsBatch { axis, rank } => write!(
                f,
                "{argument} = {axis} is the batch dimension of a cache of rank {rank}: choose a later dimension"
            ),
            Error::UnknownMode => write!(f, "{argument} must be linear or circular"),
            Error::DimensionMismatch { dimension, expected, got, hint, .. } => write!(
                f,
                "dimension {dimension} of {argument} is {got}, must be {expected} as in the cache{}",
                match hint {
                    None => "",
                    Some(SequenceHint::SetAxis) => "; if it is the sequence, set axis",
                    Some(SequenceHint::GiveStrides) => "; if it is the sequence, give strides",
                }
            ),
            Error::HiddenSize { heads, head_size, hidden, .. } => write!(
                f,
                "{argument} has {} of size {head_size}: their product must be {}'s hiddenSize of {hidden}",
                Counted(heads, "head"),
                name(Argument::Past)
            ),
            Error::BatchTooLarge { cache, update, .. } => {
                write!(f, "{argument} has {}, more than the {cache} of the cache", Counted(update, "sample"))
            }
            Error::UpdateLongerThanCache { rows, capacity, .. } => {
                write!(
                    f,
                    "{argument} has {}, more than the cache's capacity of {capacity}",
                    Counted(rows, "row")
                )
            }
            Error::TooLarge { .. } => {
                write!(f, "{argument} is too large: a buffer has at most {} bytes", isize::MAX)
            }
            Error::StrideCount { strides, rank, .. } => {
                write!(f, "{argument} has {} for {}", Counted(strides, "stride"), Counted(rank, "dimension"))
            }
            Error::BeforeBuffer { offset, min, .. } => {
                write!(f, "{argument} has offset {offset}, but its negative strides need at least {min}")
            }
            Error::CacheOverlapsItself { .. } => {
                write!(
                    f,
                    "the strides of {argument} let two positions share memory, so {argument} cannot be written"
                )
            }
            Error::TooManyLoops { loops } => write!(
                f,
                "the strides need {loops} nested loops inside the outer dimensions, at most 3 are possible: make one side contiguous"
            ),
            // The call is one of another operator, because this operator has no such list.
            Error::ListLength {
                expected: 0, argument: Argument::LayerId | Argument::UpdateLengths, ..
            } => {
                write!(f, "{argument} is not an argument of this operator")
            }
            Error::ListLength { got, expected, .. } => {
                write!(f, "{argument} has {}, must have {expected}", Counted(got, "value"))?;
                let is_cumulative = details.argument == Some(Argument::UpdateLengths);
                f.write_str(if is_cumulative {
                    ": a leading 0 and one cumulative length per sample"
                } else {
                    ""
                })
            }
            Error::NegativeStart { index, value, .. } => {
                write!(f, "{argument}[{index}] = {value}: must not be negative")
            }
            Error::StartOutOfRange { index, value, rows, capacity, .. } => write!(
                f,
                "{argument}[{index}] = {value}: {value} + {rows} rows exceed the cache's capacity of {capacity}"
            ),
            Error::EndOutOfRange { index, value, min, max, .. } => write!(
                f,
                "{argument}[{index}] = {value}: the length after the write must be between {min} and {max}"
            ),
            Error::LengthOutOfRange { index, value, min, max, .. } if min > max => {
                write!(
                    f,
                    "{argument}[{index}] = {value}: must be at least {min} and at most {max}, so no value is valid"
                )
            }
            Error::LengthOutOfRange { index, value, min, max, .. } => {
                write!(f, "{argument}[{index}] = {value}: must be between {min} and {max}")
            }
            Error::CumulativeStart { value, .. } => {
                write!(f, "{argument}[0] = {value}: cumulative lengths begin with 0")
            }
            Error::CumulativeOrder { index, value, previous, .. } => write!(
                f,
                "{argument}[{index}] = {value}: cumulative lengths must not fall below the previous {previous}"
            ),
            Error::CumulativeLength { index, rows, capacity, .. } => write!(
                f,
                "{argument}[{}] - {argument}[{index}] = {rows}: a sample has at most {capacity} rows, the cache's capacity",
                index.saturating_add(1)
            ),
            Error::TokenSum { got, tokens, .. } => {
                write!(f, "{argument} adds up to {got}, the update has {}", Counted(tokens, "token"))
            }
            Error::LayerOutOfRange { value, layers, .. } => {
                write!(f, "{argument} = {value}: the cache has {}, numbered from 0", Counted(layers, "layer"))
            }
            Error::SlotOutOfRange { index, value, slots, .. } => write!(
                f,
                "{argument}[{index}] = {value}: the cache has {}, numbered from 0",
                Counted(slots, "slot")
            ),
            Error::DuplicateSlot { index, value, earlier, .. } => write!(
                f,
                "{argument}[{index}] = {value}: {argument}[{earlier}] is the same slot, which holds one token"
            ),
            Error::BlockOutOfRange { sample, index, value, blocks, .. } => write!(
                f,
                "{argument}[{sample}][{index}] = {value}: the cache has {}, numbered from 0",
                Counted(blocks, "block")
            ),
            Error::IndexTooLarge { index, .. } => {
                write!(f, "{argument}[{index}] is too large: must be at most {}", i64::MAX)
            }
            Error::InvalidPosition { value, rows } => write!(
                f,
                "position {value} with {}: a write must not begin before slot 0 or end out of range",
                Counted(rows, "row")
            ),
            Error::BufferLength { pair, got, expected, unit, exact, .. } => write!(
                f,
                "the buffer of {argument}{} has {}, must have {}{expected}",
                Pair(pair),
                Counted(got, unit.name()),
                if exact { "" } else { "at least " }
            ),
            Error::NullBuffer { pair, len, .. } => {
                write!(f, "the buffer of {argument}{} is null, must have {len} bytes", Pair(pair))
            }
            Error::AddressSpace { pair, address, len, .. } => write!(
                f,
                "the buffer of {argument}{} at {address:#x} has {len} bytes, which reach beyond the address space",
                Pair(pair)
            ),
            Error::Overlap { with, pair, with_pair, .. } if pair != with_pair => write!(
                f,
                "the buffer of {argument} (pair {pair}) shares memory with that of {} (pair {with_pair})",
                name(with)
            ),
            Error::Overlap { with, pair, .. } => {
                let with = name(with);
                write!(f, "the buffer of {argument}{} shares memory with that of {with}", Pair(pair))
            }
            Error::InPlaceOnly { .. } => {
                write!(f, "{argument} is not possible for a paged cache: write it in place")
            }
            Error::ElementWidth { got, element } => match element.bits() {
                None => f.write_str("strings have no width: use the `_cloned` methods"),
                Some(4) => write!(f, "{element} is packed two to a byte: use the `_bytes` methods"),
                Some(expected) => {
                    write!(f, "the elements of the slice have {got} bits, {element} has {expected}")
                }
            },
        }
    }
}

impl LengthUnit {
    const fn name(self) -> &'static str {
        match self {
            Self::Elements => "element",
            Self::Bytes => "byte",
        }
    }
}

/// A number of things, with the plural if there are several.
struct Counted(usize, &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// A list of accepted values, such as `float16, bfloat16 or int8`.
struct OneOf<T: 'static>(&'static [T]);

impl<T: fmt::Display> fmt::Display for OneOf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, accepted) in self.0.iter().enumerate() {
            let separator = match place {
                0 => "",
                _ if place.saturating_add(1) == self.0.len() => " or ",
                _ => ", ",
            };
            write!(f, "{separator}{accepted}")?;
        }
        Ok(())
    }
}

/// The index of a buffer's pair in a call over many pairs. The first pair is not printed.
struct Pair(usize);

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 0 { write!(f, " (pair {})", self.0) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use crate::{Argument, Error};

    #[test]
    fn all_names_in_a_message_can_be_replaced() {
        let error = Error::Overlap {
            argument: Argument::PastCache,
            with: Argument::WriteIndices,
            pair: 0,
            with_pair: 0,
        };
        let message = error.display_with(|argument| match argument {
            Argument::PastCache => "cache",
            _ => "slots",
        });
        assert_eq!(message.to_string(), "the buffer of cache shares memory with that of slots");
    }
}
