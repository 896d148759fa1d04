//! An error as plain data: a stable name and the fields.

use core::fmt;

use super::Error;
use crate::argument::Argument;
use crate::element::ElementType;

/// The subject of an [`Error`]. A language with exceptions can raise a different exception for each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The shapes of the tensors.
    Shape,
    /// An attribute of the operator.
    Attribute,
    /// The type of an element.
    ElementType,
    /// Positions, lengths and layers.
    Position,
    /// Strides and memory.
    Buffer,
}

/// Declares [`ErrorKind`] and [`Error::tabled`] from one table. Each row contains the variant of [`Error`], its name,
/// its class, its argument, and its other fields in order. The word before a field is the method of [`ErrorDetails`]
/// that adds it. Fields after `-` are left out, because only the message uses them.
macro_rules! error_kinds {
    (@argument) => { None };
    (@argument $field:ident) => { Some($field) };
    (@argument $field:ident $constant:ident) => { Some(Argument::$constant) };
    ($(
        $variant:ident $name:ident $class:ident
        ($($argument:ident)? $(= $constant:ident)?)
        [$($role:ident $field:ident),*]
        $(- $($unused:ident),*)?;
    )*) => {
        /// The stable name of a variant of [`Error`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "each variant has the name and the meaning of a variant of `Error`")]
        pub enum ErrorKind {
            $($variant,)*
        }

        impl ErrorKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            const fn name_and_class(self) -> (&'static str, ErrorClass) {
                match self {
                    $(Self::$variant => (stringify!($name), ErrorClass::$class),)*
                }
            }

            /// Returns the names of the fields that [`ErrorDetails::fields`] returns for errors of this kind,
            /// in the same order.
            #[must_use]
            pub const fn fields(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$(stringify!($field)),*],)*
                }
            }
        }

        impl Error {
            /// Returns the details that the table contains.
            fn tabled(&self) -> ErrorDetails {
                match *self {
                    $(
                        Self::$variant { $($argument,)? $($field,)* $($($unused: _,)*)? } => {
                            ErrorDetails::new(
                                ErrorKind::$variant,
                                error_kinds!(@argument $($argument)? $(axis $constant)?),
                            )
                            $(.$role(stringify!($field), $field))*
                        }
                    )*
                }
            }
        }
    };
}

error_kinds! {
    ElementType element_type ElementType (argument) [value element, field accepted];
    ElementTypeMismatch element_type_mismatch ElementType (argument) [limit cache, value element];
    Rank rank Shape (argument) [value rank, field expected];
    RankTooLow rank_too_low Shape (argument) [value rank, limit min];
    RankMismatch rank_mismatch Shape (argument) [limit cache, value update];
    AxisOutOfRange axis_out_of_range Attribute (= Axis) [value axis, field rank];
    AxisIsBatch axis_is_batch Attribute (= Axis) [value axis, field rank];
    UnknownMode unknown_mode Attribute (= Mode) [];
    DimensionMismatch dimension_mismatch Shape (argument) [index dimension, limit expected, value got] - hint;
    HiddenSize hidden_size Shape (argument) [field heads, field head_size, limit hidden];
    BatchTooLarge batch_too_large Shape (argument) [limit cache, value update];
    UpdateLongerThanCache update_longer_than_cache Shape (argument) [value rows, limit capacity];
    TooLarge too_large Shape (argument) [];
    StrideCount stride_count Buffer (argument) [value strides, limit rank];
    BeforeBuffer before_buffer Buffer (argument) [value offset, limit min];
    CacheOverlapsItself cache_overlaps_itself Buffer (argument) [];
    TooManyLoops too_many_loops Buffer () [value loops];
    ListLength list_length Position (argument) [value got, limit expected];
    NegativeStart negative_start Position (argument) [index index, value value];
    StartOutOfRange start_out_of_range Position (argument) [index index, value value, field rows, field capacity];
    EndOutOfRange end_out_of_range Position (argument) [index index, value value, field min, field max];
    LengthOutOfRange length_out_of_range Position (argument) [index index, value value, field min, field max];
    CumulativeStart cumulative_start Position (argument) [value value];
    CumulativeOrder cumulative_order Position (argument) [index index, value value, limit previous];
    CumulativeLength cumulative_length Position (argument) [index index, value rows, limit capacity];
    TokenSum token_sum Position (argument) [value got, limit tokens];
    LayerOutOfRange layer_out_of_range Position (argument) [value value, field layers];
    SlotOutOfRange slot_out_of_range Position (argument) [index index, value value, field slots];
    DuplicateSlot duplicate_slot Position (argument) [index index, value value, field earlier];
    BlockOutOfRange block_out_of_range Position (argument) [field sample, index index, value value, field blocks];
    IndexTooLarge index_too_large Position (argument) [index index];
    InvalidPosition invalid_position Position () [value value, field rows];
    BufferLength buffer_length Buffer (argument) [index pair, value got, limit expected] - unit, exact;
    NullBuffer null_buffer Buffer (argument) [index pair, limit len];
    AddressSpace address_space Buffer (argument) [index pair, field address, value len];
    Overlap overlap Buffer (argument) [field with, index pair, field with_pair];
    InPlaceOnly in_place_only Buffer (argument) [];
    ElementWidth element_width ElementType () [value got, field element];
}

impl ErrorKind {
    /// Returns the name in `snake_case`, such as `start_out_of_range`. Its meaning does not change between
    /// versions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name_and_class().0
    }

    /// Returns the class of errors of this kind.
    #[must_use]
    pub const fn class(self) -> ErrorClass {
        self.name_and_class().1
    }
}

impl fmt::Display for ErrorKind {
    /// Writes the [name](Self::name).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An [`Error`] as plain data. [`Error::details`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorDetails {
    /// The variant of the error.
    pub kind: ErrorKind,
    /// The argument that is wrong. `None` if the error is not about one argument.
    pub argument: Option<Argument>,
    /// The index of the sample, the dimension, the pair of buffers or the place in a list, depending on the
    /// variant. `None` if the variant has no index.
    pub index: Option<usize>,
    /// The value that is wrong, saturated at `i64::MAX`. `None` if it is not a number or an element type.
    pub value: Option<i64>,
    /// The nearest value that is accepted. `None` if there is no such value, or if it is not a number or an
    /// element type.
    pub limit: Option<i64>,
    fields: [Option<(&'static str, ErrorField)>; MAX_FIELDS],
}

/// The largest number of fields of a variant, without `argument`.
const MAX_FIELDS: usize = 4;

/// The value of one field of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorField {
    /// A size, a count or an index.
    Size(usize),
    /// A number that can be negative.
    Integer(i64),
    /// An argument.
    Argument(Argument),
    /// An element type.
    Element(ElementType),
    /// A list of sizes.
    Sizes(&'static [usize]),
    /// A list of element types.
    Elements(&'static [ElementType]),
}

impl ErrorDetails {
    /// Returns the fields of the variant that are numbers, element types or arguments, with their names in
    /// [`Error`].
    ///
    /// The field `argument` is left out.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, ErrorField)> + use<> {
        self.fields.into_iter().flatten()
    }

    fn new(kind: ErrorKind, argument: Option<Argument>) -> Self {
        Self { kind, argument, index: None, value: None, limit: None, fields: [None; MAX_FIELDS] }
    }

    fn field(mut self, name: &'static str, field: impl Into<ErrorField>) -> Self {
        if let Some(place) = self.fields.iter_mut().find(|place| place.is_none()) {
            *place = Some((name, field.into()));
        }
        self
    }

    /// Adds a field that is also the index.
    fn index(self, name: &'static str, index: usize) -> Self {
        Self { index: Some(index), ..self.field(name, index) }
    }

    /// Adds a field that is also the value.
    fn value(self, name: &'static str, value: impl Into<ErrorField>) -> Self {
        let value = value.into();
        Self { value: value.number(), ..self.field(name, value) }
    }

    /// Adds a field that is also the limit.
    fn limit(self, name: &'static str, limit: impl Into<ErrorField>) -> Self {
        let limit = limit.into();
        Self { limit: limit.number(), ..self.field(name, limit) }
    }
}

impl ErrorField {
    /// Returns the number that represents this field where only numbers are possible. An element type becomes
    /// its ONNX code.
    fn number(self) -> Option<i64> {
        match self {
            Self::Size(size) => Some(saturate(size)),
            Self::Integer(value) => Some(value),
            Self::Element(element) => Some(element.onnx_code().into()),
            Self::Argument(_) | Self::Sizes(_) | Self::Elements(_) => None,
        }
    }
}

fn saturate(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

impl From<usize> for ErrorField {
    fn from(size: usize) -> Self {
        Self::Size(size)
    }
}

impl From<i64> for ErrorField {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<Argument> for ErrorField {
    fn from(argument: Argument) -> Self {
        Self::Argument(argument)
    }
}

impl From<ElementType> for ErrorField {
    fn from(element: ElementType) -> Self {
        Self::Element(element)
    }
}

impl From<&'static [usize]> for ErrorField {
    fn from(sizes: &'static [usize]) -> Self {
        Self::Sizes(sizes)
    }
}

impl From<&'static [ElementType]> for ErrorField {
    fn from(elements: &'static [ElementType]) -> Self {
        Self::Elements(elements)
    }
}

impl Error {
    /// Returns the stable name of the variant.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.details().kind
    }

    /// Returns the error as plain data, for surfaces that report it in another language.
    ///
    /// ```
    /// use kvscatter::{ElementType, Error, spec::onnx::TensorScatter};
    ///
    /// let scatter = TensorScatter::new().prepare(ElementType::Float32, &[1, 1, 4, 2], &[1, 1, 1, 2])?;
    /// let details = scatter.plan(&[4_i64]).unwrap_err().details();
    /// assert_eq!(details.kind.name(), "start_out_of_range");
    /// assert_eq!((details.value, details.limit), (Some(4), Some(3)));
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn details(&self) -> ErrorDetails {
        let mut details = self.tabled();
        // Indices, values and limits that are no fields.
        if let Self::HiddenSize { heads, head_size, .. } = *self {
            details.value = Some(saturate(heads.saturating_mul(head_size)));
        }
        if let Self::CumulativeStart { .. } = self {
            details.index = Some(0);
        }
        let limit = match *self {
            Self::Rank { rank, expected, .. } => {
                expected.iter().min_by_key(|expected| expected.abs_diff(rank)).map(|&rank| saturate(rank))
            }
            Self::AxisOutOfRange { axis, rank } => {
                let last = saturate(rank).saturating_sub(1);
                Some(if axis < 0 { last.saturating_neg() } else { last })
            }
            Self::AxisIsBatch { axis, .. } => Some(axis.saturating_add(1)),
            Self::TooLarge { .. } => Some(saturate(isize::MAX.unsigned_abs())),
            Self::TooManyLoops { .. } => Some(3),
            Self::NegativeStart { .. } | Self::CumulativeStart { .. } => Some(0),
            Self::StartOutOfRange { rows, capacity, .. } => Some(saturate(capacity.saturating_sub(rows))),
            Self::EndOutOfRange { value, min, max, .. } | Self::LengthOutOfRange { value, min, max, .. } => {
                (min <= max).then(|| value.clamp(saturate(min), saturate(max)))
            }
            Self::LayerOutOfRange { value, layers: count, .. }
            | Self::SlotOutOfRange { value, slots: count, .. }
            | Self::BlockOutOfRange { value, blocks: count, .. } => {
                count.checked_sub(1).map(|last| value.clamp(0, saturate(last)))
            }
            Self::IndexTooLarge { .. } => Some(i64::MAX),
            Self::ElementWidth { element, .. } => element.bits().map(saturate),
            _ => return details,
        };
        ErrorDetails { limit, ..details }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{collections::BTreeSet, string::ToString};

    use super::ErrorKind;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        let names: BTreeSet<_> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ErrorKind::ALL.len());
        let debug: BTreeSet<_> = ErrorKind::ALL.iter().map(|kind| alloc::format!("{kind:?}")).collect();
        let camel = |name: &str| -> alloc::string::String {
            let upper =
                |word: &str| word.chars().next().unwrap().to_ascii_uppercase().to_string() + &word[1..];
            name.split('_').map(upper).collect()
        };
        assert_eq!(names.into_iter().map(camel).collect::<BTreeSet<_>>(), debug);
    }
}
