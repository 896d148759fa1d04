//! Converts the keyword arguments of an operator to the core's types.

use kvscatter::picture::Picture;
use kvscatter::ring::Feeding;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Mode, NegativeIndex, OutOfRange};
use kvscatter_onnx::convert::CacheType;
use kvscatter_session::{GenerateSetting, LoadOptions};
use kvscatter_xla::AttentionLayout;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::{ArgumentNames, Class, Digits, raise};
use crate::failure::{Failure, class_name};
use crate::integer::{self, decimal};
use crate::session_error;

/// Accepts any integer. An axis that does not fit 64 bits does not exist either, so it has the same error.
pub(crate) fn axis(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let axis = integer(value, "axis")?.and_then(|axis| i64::try_from(axis).ok());
    axis.ok_or_else(|| Failure::Axis { argument: "axis", axis: Digits(decimal(value)) }.into())
}

/// Defines the conversion of each integer argument, with its bounds.
macro_rules! integers {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $read:ident { $($bounds:tt)* };)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(value: &Bound<'_, PyAny>) -> PyResult<$type> {
            Bounds { argument: stringify!($name), $($bounds)* }.$read(value)
        }
    )*};
}

integers! {
    width: usize = number { ..PICTURE };
    samples: usize = number { ..PICTURE };
    batch: Option<usize> = optional { ..COUNT };
    window: Option<usize> = optional { ..COUNT };
    capacity: Option<usize> = optional { ..COUNT };
    threads: Option<usize> = optional { max: wide(LoadOptions::MAX_THREADS), ..COUNT };
    chunk: usize = number { ..COUNT };
    block_size: usize = number { ..COUNT };
    num_blocks: usize = number { min: 0, ..COUNT };
    max_new_tokens: Option<usize> = optional { min: 0, ..COUNT };
    max_seq: Option<usize> = optional { ..COUNT };
    /// 0 means no limit.
    top_k: usize = number { min: 0, ..COUNT };
    draft: usize = number { min: 0, ..COUNT };
    copies: usize = number { min: 0, ..COUNT };
    /// Accepts every unsigned number of 64 bits.
    seed: u64 = number { min: 0, max: u64::MAX.into(), ..COUNT };
    /// Accepts every unsigned number of 64 bits.
    memory: u64 = number { min: 0, max: u64::MAX.into(), ..COUNT };
    /// Raises `PositionError` for a number out of range, because it is a position in the sample.
    length: usize = number { class: Class::Position, min: 0, ..COUNT };
    /// Raises `PositionError` for a number out of range. The write decides which slots fit the cache.
    slot: i64 = number { class: Class::Position, min: I64_MIN, max: I64_MAX };
    /// Raises `PositionError` for a number out of range, because it is a position among the tokens since `begin`.
    tokens: usize = number { class: Class::Position, min: 0, ..COUNT };
    /// Raises `PositionError` for a number out of range, because it is an index among the tokens of a step.
    token: usize = number { class: Class::Position, min: 0, ..COUNT };
}

pub(crate) fn temperature(value: &Bound<'_, PyAny>) -> PyResult<f32> {
    real(value, GenerateSetting::Temperature)
}

pub(crate) fn top_p(value: &Bound<'_, PyAny>) -> PyResult<f32> {
    real(value, GenerateSetting::TopP)
}

pub(crate) fn min_p(value: &Bound<'_, PyAny>) -> PyResult<f32> {
    real(value, GenerateSetting::MinP)
}

pub(crate) fn repetition_penalty(value: &Bound<'_, PyAny>) -> PyResult<f32> {
    real(value, GenerateSetting::RepetitionPenalty)
}

/// The bounds for pictures. The maximum is the core's limit of lanes, because larger pictures do not fit a
/// screen and only use memory.
const PICTURE: Bounds<'_> = Bounds { max: wide(Picture::MAX_LANES), ..COUNT };

/// The bounds of a count of at least 1. The maximum is the largest size in Rust.
const COUNT: Bounds<'_> =
    Bounds { argument: "", class: Class::Option, min: 1, max: wide(isize::MAX.cast_unsigned()) };

/// The allowed values of an integer argument.
pub(crate) struct Bounds<'a> {
    pub(crate) argument: &'a str,
    /// The class of the error for a value out of range.
    pub(crate) class: Class,
    pub(crate) min: i128,
    pub(crate) max: i128,
}

impl Bounds<'_> {
    fn optional(&self, value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        if value.is_none() { Ok(None) } else { self.number(value).map(Some) }
    }

    /// Returns the value in a type that can represent all values within the bounds.
    pub(crate) fn number<T: TryFrom<i128>>(&self, value: &Bound<'_, PyAny>) -> PyResult<T> {
        let Self { argument, class, min, max } = *self;
        let given = integer(value, argument)?;
        let fits = given.filter(|number| (min..=max).contains(number));
        if let Some(number) = fits.and_then(|number| T::try_from(number).ok()) {
            return Ok(number);
        }
        let value_text = decimal(value);
        // A limit of 64 bits is of no interest if the value is beyond the other one.
        let limits = match given {
            Some(given) if given > max && min == i128::from(i64::MIN) => format!("at most {max}"),
            Some(given) if given < min && max >= i128::from(i64::MAX) => format!("at least {min}"),
            _ => format!("from {min} to {max}"),
        };
        let message = format!("{argument} = {value_text}: must be {limits}");
        let fields = [("value", value_text), ("min", min.to_string()), ("max", max.to_string())];
        let fields = fields.map(|(name, digits)| (name, Digits(digits).into()));
        Err(raise(value.py(), class, "integer_range", Some(argument), message, &fields))
    }
}

const I64_MIN: i128 = -(1 << 63);
const I64_MAX: i128 = (1 << 63) - 1;

const fn wide(size: usize) -> i128 {
    // No target has sizes of more than 64 bits.
    #[expect(clippy::as_conversions, reason = "`From` is not const")]
    {
        size as i128
    }
}

/// Returns `None` for an integer that does not fit 128 bits.
fn integer(value: &Bound<'_, PyAny>, argument: &str) -> PyResult<Option<i128>> {
    let integer = integer::integer(value)?.ok_or_else(|| not_an_integer(value, argument))?;
    Ok(integer.extract().ok())
}

/// Accepts a number in the range of an option. It is checked also if another argument makes it ineffective.
fn real(value: &Bound<'_, PyAny>, setting: GenerateSetting) -> PyResult<f32> {
    let number = float(value, setting.name())?;
    setting.check(number).map(|()| number).map_err(|error| session_error::raise(value.py(), &error))
}

fn not_an_integer(value: &Bound<'_, PyAny>, argument: &str) -> PyErr {
    let class = class_name(&value.get_type());
    let message = format!("{argument} is of type {class}: must be an integer");
    raise(value.py(), Class::ElementType, "keyword_type", Some(argument), message, &[])
}

/// Checks that `argument` is an integer within bounds. Modules in Python use this.
#[pyfunction]
pub(crate) fn integer_within(
    argument: &str,
    value: &Bound<'_, PyAny>,
    min: i128,
    max: i128,
) -> PyResult<i128> {
    Bounds { argument, class: Class::Option, min, max }.number(value)
}

/// Returns the sequence dimension of a cache of `rank` dimensions, counted from the front. Modules in Python
/// use this.
#[pyfunction]
pub(crate) fn resolve_axis(
    py: Python<'_>,
    #[pyo3(from_py_with = self::axis)] axis: i64,
    rank: usize,
) -> PyResult<usize> {
    TensorScatter::new()
        .axis(axis)
        .resolve_axis(rank)
        .map_err(|refused| ArgumentNames::Functional.raise(py, refused))
}

pub(crate) fn mode(value: &Bound<'_, PyAny>) -> PyResult<Mode> {
    word(value, "mode", &["linear", "circular"], |word| word.parse().ok())
}

pub(crate) fn attention_layout(value: &Bound<'_, PyAny>) -> PyResult<AttentionLayout> {
    word(value, "layout", &AttentionLayout::NAMES, AttentionLayout::named)
}

/// Reads the scale of attention, which attention checks.
pub(crate) fn scale(value: &Bound<'_, PyAny>) -> PyResult<Option<f32>> {
    if value.is_none() { Ok(None) } else { float(value, "scale").map(Some) }
}

/// Reads the cap of attention, which attention checks. `None` means no cap.
pub(crate) fn softcap(value: &Bound<'_, PyAny>) -> PyResult<f32> {
    if value.is_none() { Ok(0.0) } else { float(value, "softcap") }
}

fn float(value: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<f32> {
    value.extract().map_err(|_| {
        let class = class_name(&value.get_type());
        Failure::Keyword { argument, class, wanted: "a number" }.into()
    })
}

pub(crate) fn out_of_range(value: &Bound<'_, PyAny>) -> PyResult<OutOfRange> {
    word(value, "out_of_range", &["error", "skip"], |word| {
        let all = [OutOfRange::Error, OutOfRange::SkipSample];
        all.into_iter().find(|&policy| out_of_range_name(policy) == word)
    })
}

pub(crate) const fn out_of_range_name(policy: OutOfRange) -> &'static str {
    match policy {
        OutOfRange::SkipSample => "skip",
        _ => "error",
    }
}

pub(crate) fn negative_index(value: &Bound<'_, PyAny>) -> PyResult<NegativeIndex> {
    word(value, "negative_index", &["modulo", "reject"], |word| {
        let all = [NegativeIndex::Modulo, NegativeIndex::Reject];
        all.into_iter().find(|&policy| negative_index_name(policy) == word)
    })
}

pub(crate) const fn negative_index_name(policy: NegativeIndex) -> &'static str {
    match policy {
        NegativeIndex::Reject => "reject",
        _ => "modulo",
    }
}

pub(crate) fn feeding(value: &Bound<'_, PyAny>) -> PyResult<Feeding> {
    word(value, "feeding", &["without_padding", "padded_on_the_right", "idle"], |word| match word {
        "without_padding" => Some(Feeding::WithoutPadding),
        "padded_on_the_right" => Some(Feeding::PaddedOnTheRight),
        "idle" => Some(Feeding::Idle),
        _ => None,
    })
}

pub(crate) fn cache_type(value: &Bound<'_, PyAny>) -> PyResult<Option<CacheType>> {
    if value.is_none() {
        return Ok(None);
    }
    let name = string(value, "cache_type")?;
    CacheType::parse(&name).map(Some).map_err(|error| {
        let message = format!("cache_type: {error}");
        raise(value.py(), Class::Option, "choice", Some("cache_type"), message, &[("value", name.into())])
    })
}

fn word<T>(
    value: &Bound<'_, PyAny>,
    argument: &'static str,
    choices: &'static [&'static str],
    known: impl Fn(&str) -> Option<T>,
) -> PyResult<T> {
    let word = string(value, argument)?;
    known(&word).ok_or_else(|| Failure::Choice { argument, value: word, choices }.into())
}

fn string(value: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<String> {
    match value.cast::<PyString>() {
        Ok(text) => Ok(text.to_string_lossy().into_owned()),
        Err(_) => {
            let class = class_name(&value.get_type());
            Err(Failure::Keyword { argument, class, wanted: "a string" }.into())
        }
    }
}

/// Returns the operator with the attributes of `TensorScatter` and with the policies of kvscatter.
pub(crate) fn tensor_scatter(
    axis: i64,
    mode: Mode,
    out_of_range: OutOfRange,
    negative_index: NegativeIndex,
) -> TensorScatter {
    TensorScatter::new().axis(axis).mode(mode).out_of_range(out_of_range).negative_index(negative_index)
}
