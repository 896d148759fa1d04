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

/// Declares [`ErrorKind`] from one table. Each row contains the variant of [`Error`], its name, its class,
/// and its fields except `argument`.
macro_rules! error_kinds {
    ($($variant:ident $name:ident $class:ident [$($field:ident)*],)*) => {
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
    };
}

error_kinds! {
    ElementType element_type ElementType [element accepted],
    ElementTypeMismatch element_type_mismatch ElementType [cache element],
    Rank rank Shape [rank expected],
    RankTooLow rank_too_low Shape [rank min],
    RankMismatch rank_mismatch Shape [cache update],
    AxisOutOfRange axis_out_of_range Attribute [axis rank],
    AxisIsBatch axis_is_batch Attribute [axis rank],
    UnknownMode unknown_mode Attribute [],
    DimensionMismatch dimension_mismatch Shape [dimension expected got],
    HiddenSize hidden_size Shape [heads head_size hidden],
    BatchTooLarge batch_too_large Shape [cache update],
    UpdateLongerThanCache update_longer_than_cache Shape [rows capacity],
    TooLarge too_large Shape [],
    StrideCount stride_count Buffer [strides rank],
    BeforeBuffer before_buffer Buffer [offset min],
    CacheOverlapsItself cache_overlaps_itself Buffer [],
    TooManyLoops too_many_loops Buffer [loops],
    ListLength list_length Position [got expected],
    NegativeStart negative_start Position [index value],
    StartOutOfRange start_out_of_range Position [index value rows capacity],
    EndOutOfRange end_out_of_range Position [index value min max],
    LengthOutOfRange length_out_of_range Position [index value min max],
    CumulativeStart cumulative_start Position [value],
    CumulativeOrder cumulative_order Position [index value previous],
    CumulativeLength cumulative_length Position [index rows capacity],
    TokenSum token_sum Position [got tokens],
    LayerOutOfRange layer_out_of_range Position [value layers],
    IndexTooLarge index_too_large Position [index],
    InvalidPosition invalid_position Position [value rows],
    BufferLength buffer_length Buffer [pair got expected],
    NullBuffer null_buffer Buffer [pair len],
    AddressSpace address_space Buffer [pair address len],
    Overlap overlap Buffer [with pair with_pair],
    ElementWidth element_width ElementType [got element],
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

    fn of(kind: ErrorKind, argument: Argument) -> Self {
        Self::new(kind, Some(argument))
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

    /// Sets the nearest value that fits, if it is not a field.
    fn nearest(self, limit: Option<i64>) -> Self {
        Self { limit, ..self }
    }

    /// Sets the value that was passed, if it is not a field.
    fn number(self, value: usize) -> Self {
        Self { value: Some(saturate(value)), ..self }
    }

    /// Adds the fields `min` and `max`, and sets the limit to the nearest value between them, if there is
    /// one.
    fn between(self, min: usize, max: usize) -> Self {
        let nearest = |value: i64| value.clamp(saturate(min), saturate(max));
        let limit = if min <= max { self.value.map(nearest) } else { None };
        Self { limit, ..self.field("min", min).field("max", max) }
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
    #[expect(clippy::too_many_lines, reason = "a table: one arm for each variant")]
    pub fn details(&self) -> ErrorDetails {
        use ErrorKind as Kind;
        let of = ErrorDetails::of;
        match *self {
            Self::ElementType { argument, element, accepted } => {
                of(Kind::ElementType, argument).value("element", element).field("accepted", accepted)
            }
            Self::ElementTypeMismatch { cache, argument, element } => {
                of(Kind::ElementTypeMismatch, argument).limit("cache", cache).value("element", element)
            }
            Self::Rank { argument, rank, expected } => {
                let nearest = expected.iter().min_by_key(|expected| expected.abs_diff(rank));
                of(Kind::Rank, argument)
                    .value("rank", rank)
                    .field("expected", expected)
                    .nearest(nearest.map(|&rank| saturate(rank)))
            }
            Self::RankTooLow { argument, rank, min } => {
                of(Kind::RankTooLow, argument).value("rank", rank).limit("min", min)
            }
            Self::RankMismatch { argument, cache, update } => {
                of(Kind::RankMismatch, argument).limit("cache", cache).value("update", update)
            }
            Self::AxisOutOfRange { axis, rank } => {
                let last = saturate(rank).saturating_sub(1);
                of(Kind::AxisOutOfRange, Argument::Axis)
                    .value("axis", axis)
                    .field("rank", rank)
                    .nearest(Some(if axis < 0 { last.saturating_neg() } else { last }))
            }
            Self::AxisIsBatch { axis, rank } => of(Kind::AxisIsBatch, Argument::Axis)
                .value("axis", axis)
                .field("rank", rank)
                .nearest(Some(axis.saturating_add(1))),
            Self::UnknownMode => of(Kind::UnknownMode, Argument::Mode),
            Self::DimensionMismatch { argument, dimension, expected, got, .. } => {
                of(Kind::DimensionMismatch, argument)
                    .index("dimension", dimension)
                    .limit("expected", expected)
                    .value("got", got)
            }
            Self::HiddenSize { argument, heads, head_size, hidden } => of(Kind::HiddenSize, argument)
                .field("heads", heads)
                .field("head_size", head_size)
                .limit("hidden", hidden)
                .number(heads.saturating_mul(head_size)),
            Self::BatchTooLarge { argument, cache, update } => {
                of(Kind::BatchTooLarge, argument).limit("cache", cache).value("update", update)
            }
            Self::UpdateLongerThanCache { argument, rows, capacity } => {
                of(Kind::UpdateLongerThanCache, argument).value("rows", rows).limit("capacity", capacity)
            }
            Self::TooLarge { argument } => {
                of(Kind::TooLarge, argument).nearest(Some(saturate(isize::MAX.unsigned_abs())))
            }
            Self::StrideCount { argument, strides, rank } => {
                of(Kind::StrideCount, argument).value("strides", strides).limit("rank", rank)
            }
            Self::BeforeBuffer { argument, offset, min } => {
                of(Kind::BeforeBuffer, argument).value("offset", offset).limit("min", min)
            }
            Self::CacheOverlapsItself { argument } => of(Kind::CacheOverlapsItself, argument),
            Self::TooManyLoops { loops } => {
                ErrorDetails::new(Kind::TooManyLoops, None).value("loops", loops).nearest(Some(3))
            }
            Self::ListLength { argument, got, expected } => {
                of(Kind::ListLength, argument).value("got", got).limit("expected", expected)
            }
            Self::NegativeStart { argument, index, value } => {
                of(Kind::NegativeStart, argument).index("index", index).value("value", value).nearest(Some(0))
            }
            Self::StartOutOfRange { argument, index, value, rows, capacity } => {
                of(Kind::StartOutOfRange, argument)
                    .index("index", index)
                    .value("value", value)
                    .field("rows", rows)
                    .field("capacity", capacity)
                    .nearest(Some(saturate(capacity.saturating_sub(rows))))
            }
            Self::EndOutOfRange { argument, index, value, min, max } => of(Kind::EndOutOfRange, argument)
                .index("index", index)
                .value("value", value)
                .between(min, max),
            Self::LengthOutOfRange { argument, index, value, min, max } => {
                of(Kind::LengthOutOfRange, argument)
                    .index("index", index)
                    .value("value", value)
                    .between(min, max)
            }
            Self::CumulativeStart { argument, value } => {
                let details = of(Kind::CumulativeStart, argument).value("value", value).nearest(Some(0));
                ErrorDetails { index: Some(0), ..details }
            }
            Self::CumulativeOrder { argument, index, value, previous } => of(Kind::CumulativeOrder, argument)
                .index("index", index)
                .value("value", value)
                .limit("previous", previous),
            Self::CumulativeLength { argument, index, rows, capacity } => {
                of(Kind::CumulativeLength, argument)
                    .index("index", index)
                    .value("rows", rows)
                    .limit("capacity", capacity)
            }
            Self::TokenSum { argument, got, tokens } => {
                of(Kind::TokenSum, argument).value("got", got).limit("tokens", tokens)
            }
            Self::LayerOutOfRange { argument, value, layers } => {
                let last = layers.checked_sub(1).map(|last| value.clamp(0, saturate(last)));
                of(Kind::LayerOutOfRange, argument)
                    .value("value", value)
                    .field("layers", layers)
                    .nearest(last)
            }
            Self::IndexTooLarge { argument, index } => {
                of(Kind::IndexTooLarge, argument).index("index", index).nearest(Some(i64::MAX))
            }
            Self::InvalidPosition { value, rows } => {
                ErrorDetails::new(Kind::InvalidPosition, None).value("value", value).field("rows", rows)
            }
            Self::BufferLength { argument, pair, got, expected, .. } => of(Kind::BufferLength, argument)
                .index("pair", pair)
                .value("got", got)
                .limit("expected", expected),
            Self::NullBuffer { argument, pair, len } => {
                of(Kind::NullBuffer, argument).index("pair", pair).limit("len", len)
            }
            Self::AddressSpace { argument, pair, address, len } => of(Kind::AddressSpace, argument)
                .index("pair", pair)
                .field("address", address)
                .value("len", len),
            Self::Overlap { argument, with, pair, with_pair } => of(Kind::Overlap, argument)
                .field("with", with)
                .index("pair", pair)
                .field("with_pair", with_pair),
            Self::ElementWidth { got, element } => {
                let bits = element.bits().map(saturate);
                ErrorDetails::new(Kind::ElementWidth, None)
                    .value("got", got)
                    .field("element", element)
                    .nearest(bits)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{collections::BTreeSet, string::ToString, vec::Vec};

    use super::{ErrorField, ErrorKind};
    use crate::error::LengthUnit;
    use crate::{Argument, ElementType, Error};

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

    #[test]
    fn details_have_the_fields_of_every_variant() {
        let (argument, element) = (Argument::Update, ElementType::Float16);
        let errors = [
            Error::ElementType { argument, element, accepted: &[] },
            Error::ElementTypeMismatch { cache: element, argument, element },
            Error::Rank { argument, rank: 1, expected: &[] },
            Error::RankTooLow { argument, rank: 1, min: 1 },
            Error::RankMismatch { argument, cache: 1, update: 1 },
            Error::AxisOutOfRange { axis: 1, rank: 1 },
            Error::AxisIsBatch { axis: 1, rank: 1 },
            Error::UnknownMode,
            Error::DimensionMismatch { argument, dimension: 1, expected: 1, got: 1, hint: None },
            Error::HiddenSize { argument, heads: 1, head_size: 1, hidden: 1 },
            Error::BatchTooLarge { argument, cache: 1, update: 1 },
            Error::UpdateLongerThanCache { argument, rows: 1, capacity: 1 },
            Error::TooLarge { argument },
            Error::StrideCount { argument, strides: 1, rank: 1 },
            Error::BeforeBuffer { argument, offset: 1, min: 1 },
            Error::CacheOverlapsItself { argument },
            Error::TooManyLoops { loops: 1 },
            Error::ListLength { argument, got: 1, expected: 1 },
            Error::NegativeStart { argument, index: 1, value: 1 },
            Error::StartOutOfRange { argument, index: 1, value: 1, rows: 1, capacity: 1 },
            Error::EndOutOfRange { argument, index: 1, value: 1, min: 1, max: 1 },
            Error::LengthOutOfRange { argument, index: 1, value: 1, min: 1, max: 1 },
            Error::CumulativeStart { argument, value: 1 },
            Error::CumulativeOrder { argument, index: 1, value: 1, previous: 1 },
            Error::CumulativeLength { argument, index: 1, rows: 1, capacity: 1 },
            Error::TokenSum { argument, got: 1, tokens: 1 },
            Error::LayerOutOfRange { argument, value: 1, layers: 1 },
            Error::IndexTooLarge { argument, index: 1 },
            Error::InvalidPosition { value: 1, rows: 1 },
            Error::BufferLength {
                argument,
                pair: 1,
                got: 1,
                expected: 1,
                unit: LengthUnit::Bytes,
                exact: true,
            },
            Error::NullBuffer { argument, pair: 1, len: 1 },
            Error::AddressSpace { argument, pair: 1, address: 1, len: 1 },
            Error::Overlap { argument, with: Argument::PastCache, pair: 1, with_pair: 1 },
            Error::ElementWidth { got: 1, element },
        ];
        assert!(errors.iter().map(Error::kind).eq(ErrorKind::ALL.iter().copied()));
        for error in errors {
            let details = error.details();
            // An example of the output is `BatchTooLarge { argument: Update, cache: 1, update: 1 }`.
            let debug = alloc::format!("{error:?}");
            let (variant, fields) = debug.split_once(' ').unwrap_or((&debug, ""));
            assert_eq!(variant, alloc::format!("{:?}", details.kind));
            // Only the message uses these fields.
            let is_field = |field: &&str| !["hint", "unit", "exact"].contains(field);
            let fields = fields.split([' ', '{']).filter_map(|word| word.strip_suffix(':')).filter(is_field);
            let (arguments, fields): (Vec<_>, Vec<_>) = fields.partition(|&field| field == "argument");
            assert_eq!(details.kind.fields(), fields, "{variant}");
            assert!(details.fields().map(|(name, _)| name).eq(fields), "{variant}");
            assert!(arguments.is_empty() || details.argument == Some(argument), "{variant}");
        }
    }

    #[test]
    fn details_have_all_fields_and_the_nearest_value_that_fits() {
        let argument = Argument::WriteIndices;
        let error = Error::StartOutOfRange { argument, index: 3, value: 4095, rows: 2, capacity: 4096 };
        let details = error.details();
        assert_eq!((details.kind, details.argument), (ErrorKind::StartOutOfRange, Some(argument)));
        assert_eq!((details.index, details.value, details.limit), (Some(3), Some(4095), Some(4094)));
        assert!(details.fields().eq([
            ("index", ErrorField::Size(3)),
            ("value", ErrorField::Integer(4095)),
            ("rows", ErrorField::Size(2)),
            ("capacity", ErrorField::Size(4096)),
        ]));
        let limit = |error: Error| error.details().limit;
        assert_eq!(limit(Error::AxisOutOfRange { axis: -9, rank: 4 }), Some(-3));
        assert_eq!(limit(Error::AxisOutOfRange { axis: 4, rank: 4 }), Some(3));
        assert_eq!(limit(Error::Rank { argument, rank: 3, expected: &[2, 4] }), Some(2));
        let end = |value, min, max| Error::EndOutOfRange { argument, index: 0, value, min, max };
        assert_eq!(limit(end(9, 2, 7)), Some(7));
        assert_eq!(limit(end(1, 2, 7)), Some(2));
        assert_eq!(limit(end(1, 8, 7)), None, "no value fits");
        let types = Error::ElementTypeMismatch {
            cache: ElementType::Float16,
            argument: Argument::Update,
            element: ElementType::Float32,
        };
        assert_eq!((types.details().value, types.details().limit), (Some(1), Some(10)), "ONNX codes");
    }
}
