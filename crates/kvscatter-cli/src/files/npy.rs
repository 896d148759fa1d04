//! `.npy`: NumPy's array file, versions 1 to 3.
//!
//! The header is one Python literal, a dictionary of three known keys, and is read as exactly that. General
//! readers parse any literal: they recurse as deep as the file nests and multiply the shape before anyone has
//! compared it with the data.
//!
//! NumPy has no names for the types of `ml_dtypes` and saves them by width: `<V2` for bfloat16, `<V1` for most
//! 8-bit floats and for the 4-bit types, which `ml_dtypes` keeps **one value per byte**. Such a file says its
//! shape but not its type, so the user does (`--type`). Only `float8_e5m2` is saved by a name, `<f1`, which NumPy itself
//! does not load: it is read here, and written as the others are.

use std::io::{BufReader, Read};
use std::path::Path;

use kvscatter::ElementType;
use kvscatter_onnx::{Data, Tensor, storage_len};
use winnow::ascii::{dec_int, multispace0};
use winnow::combinator::{alt, delimited, eof, opt, separated, separated_pair, terminated};
use winnow::error::ContextError;
use winnow::prelude::*;
use winnow::token::take_till;

use super::error::NpyHeader;
use super::{Problem, pack, source, unpack};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// NumPy's own readers refuse longer headers; a plain array's is under 200 bytes.
const MAX_HEADER: usize = 10_000;

/// What a header says, and where the data begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) element: ElementType,
    pub(super) shape: Vec<usize>,
    /// Bytes before the data.
    pub(super) data_offset: u64,
    /// Bytes of data the shape asks for.
    pub(super) data_len: usize,
}

impl Header {
    /// Whether each byte of the data holds one 4-bit element.
    pub(super) fn byte_per_element(&self) -> bool {
        self.element.bits() == Some(4)
    }

    /// The tensor of these bytes, which are exactly [`data_len`](Self::data_len).
    pub(super) fn tensor(self, data: Vec<u8>) -> Result<Tensor, Problem> {
        let data = if self.byte_per_element() { pack(self.element, &data)? } else { data };
        Ok(Tensor::new(self.element, self.shape, Data::Bytes(data))?)
    }
}

pub(super) fn read(path: &Path, ty: Option<ElementType>) -> Result<Tensor, Problem> {
    let (file, file_len) = source::open(path)?;
    let mut file = BufReader::new(file);
    let header = read_header(&mut file, ty)?;
    check_len(&header, file_len)?;
    let data = source::exactly(&mut file, header.data_len)?;
    header.tensor(data)
}

/// The data a file of this length has must be the data its header asks for.
pub(super) fn check_len(header: &Header, file_len: u64) -> Result<(), Problem> {
    let got = file_len.saturating_sub(header.data_offset);
    if u64::try_from(header.data_len) == Ok(got) {
        return Ok(());
    }
    Err(Problem::DataLength {
        element: header.element,
        shape: header.shape.clone(),
        expected: header.data_len,
        got,
    })
}

/// Reads the header; the source is left at the first byte of data.
pub(super) fn read_header(source: &mut impl Read, ty: Option<ElementType>) -> Result<Header, Problem> {
    let truncated = |_| Problem::from(NpyHeader::EndsEarly);
    let mut start = [0; 8];
    source.read_exact(&mut start).map_err(truncated)?;
    let [magic @ .., major, _minor] = start;
    if &magic != MAGIC {
        return Err(NpyHeader::Magic.into());
    }
    let (len, prefix) = match major {
        1 => {
            let mut len = [0; 2];
            source.read_exact(&mut len).map_err(truncated)?;
            (u32::from(u16::from_le_bytes(len)), 10_u64)
        }
        2 | 3 => {
            let mut len = [0; 4];
            source.read_exact(&mut len).map_err(truncated)?;
            (u32::from_le_bytes(len), 12)
        }
        _ => {
            return Err(NpyHeader::Version { major }.into());
        }
    };
    let text_len = usize::try_from(len)
        .ok()
        .filter(|&len| len <= MAX_HEADER)
        .ok_or(NpyHeader::TooLong { len, limit: MAX_HEADER })?;
    let mut text = vec![0; text_len];
    source.read_exact(&mut text).map_err(truncated)?;
    let literal = std::str::from_utf8(&text).map_err(|_| NpyHeader::NotUtf8)?;
    let literal = dictionary.parse(literal).map_err(|_| NpyHeader::NotPlain)?;
    interpret(literal, ty, prefix.saturating_add(u64::from(len)))
}

fn interpret(literal: Literal<'_>, ty: Option<ElementType>, data_offset: u64) -> Result<Header, Problem> {
    let element = element(literal.descr, ty)?;
    if literal.fortran_order {
        return Err(Problem::FortranOrder);
    }
    let dim = |(axis, &dim)| usize::try_from(dim).map_err(|_| Problem::NpyDimension { axis, dim });
    let shape = literal.shape.iter().enumerate().map(dim).collect::<Result<Vec<_>, _>>()?;
    // One byte per element, as the file stores them.
    let stored = if element.bits() == Some(4) { ElementType::UInt8 } else { element };
    let data_len = storage_len(stored, &shape)?;
    Ok(Header { element, shape, data_offset, data_len })
}

/// The element type of a `descr`: a byte order, a kind and a width in bytes.
fn element(descr: &str, ty: Option<ElementType>) -> Result<ElementType, Problem> {
    let unknown = || Problem::NpyType { descr: descr.to_owned() };
    let mut chars = descr.chars();
    let (order, kind, width) =
        (chars.next().ok_or_else(unknown)?, chars.next().ok_or_else(unknown)?, chars.as_str());
    match (kind, width) {
        ('O', _) => return Err(Problem::ObjectArray),
        ('U' | 'S' | 'T', _) => return Err(Problem::NumpyString),
        _ => {}
    }
    match order {
        '<' | '|' => {}
        '>' => {
            return Err(Problem::BigEndian { descr: descr.to_owned() });
        }
        _ => return Err(unknown()),
    }
    let bits = width.parse::<usize>().ok().and_then(|width| width.checked_mul(8)).ok_or_else(unknown)?;
    let named = match (kind, bits) {
        ('b', 8) => ElementType::Bool,
        ('i', 8) => ElementType::Int8,
        ('i', 16) => ElementType::Int16,
        ('i', 32) => ElementType::Int32,
        ('i', 64) => ElementType::Int64,
        ('u', 8) => ElementType::UInt8,
        ('u', 16) => ElementType::UInt16,
        ('u', 32) => ElementType::UInt32,
        ('u', 64) => ElementType::UInt64,
        ('f', 8) => ElementType::Float8E5M2,
        ('f', 16) => ElementType::Float16,
        ('f', 32) => ElementType::Float32,
        ('f', 64) => ElementType::Float64,
        ('c', 64) => ElementType::Complex64,
        ('c', 128) => ElementType::Complex128,
        ('V', 8 | 16) => return by_width(descr, bits, ty),
        _ => return Err(unknown()),
    };
    Ok(named)
}

/// A type that the file gives only by its width.
fn by_width(descr: &str, bits: usize, ty: Option<ElementType>) -> Result<ElementType, Problem> {
    let ty = ty.ok_or_else(|| Problem::TypeNeeded { descr: descr.to_owned() })?;
    let stored = match ty.bits() {
        Some(4) => Some(8),
        other => other,
    };
    if stored != Some(bits) {
        return Err(Problem::TypeWidth { descr: descr.to_owned(), asked: ty });
    }
    Ok(ty)
}

/// The bytes of an `.npy` file.
///
/// # Errors
/// [`Problem::StringsOnlyInPb`] for strings: NumPy stores those as Python pickles.
pub(super) fn encode(tensor: &Tensor) -> Result<Vec<u8>, Problem> {
    let Data::Bytes(bytes) = tensor.data() else {
        return Err(Problem::StringsOnlyInPb);
    };
    let element = tensor.element();
    let unpacked;
    let data = if element.bits() == Some(4) {
        unpacked = unpack(bytes, tensor.elements());
        &unpacked
    } else {
        bytes
    };
    let mut file = header(descr(element)?, tensor.shape())?;
    file.extend_from_slice(data);
    Ok(file)
}

fn header(descr: &str, shape: &[usize]) -> Result<Vec<u8>, Problem> {
    let dims: Vec<_> = shape.iter().map(|dim| format!("{dim}, ")).collect();
    // A tuple of several ends without a comma, a tuple of one must not.
    let dims = match dims.len() {
        1 => dims.concat().trim_end().to_owned(),
        _ => dims.concat().trim_end_matches([' ', ',']).to_owned(),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // The data begins at a multiple of 64, after a line feed.
    let unpadded = text.len().saturating_add(MAGIC.len()).saturating_add(5);
    let padding = unpadded.next_multiple_of(64).saturating_sub(unpadded);
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let len = u16::try_from(text.len()).map_err(|_| NpyHeader::TooManyDimensions { rank: shape.len() })?;
    let mut file = MAGIC.to_vec();
    file.extend_from_slice(&[1, 0]);
    file.extend_from_slice(&len.to_le_bytes());
    file.extend_from_slice(text.as_bytes());
    Ok(file)
}

/// How NumPy writes the type.
fn descr(element: ElementType) -> Result<&'static str, Problem> {
    Ok(match element {
        ElementType::Bool => "|b1",
        ElementType::Int8 => "|i1",
        ElementType::Int16 => "<i2",
        ElementType::Int32 => "<i4",
        ElementType::Int64 => "<i8",
        ElementType::UInt8 => "|u1",
        ElementType::UInt16 => "<u2",
        ElementType::UInt32 => "<u4",
        ElementType::UInt64 => "<u8",
        ElementType::Float16 => "<f2",
        ElementType::Float32 => "<f4",
        ElementType::Float64 => "<f8",
        ElementType::Complex64 => "<c8",
        ElementType::Complex128 => "<c16",
        _ => match element.bits() {
            Some(4 | 8) => "|V1",
            Some(16) => "|V2",
            _ => return Err(Problem::StringsOnlyInPb),
        },
    })
}

/// The three keys of the header, as written.
struct Literal<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<i128>,
}

/// One entry of the dictionary.
enum HeaderEntry<'a> {
    Descr(&'a str),
    FortranOrder(bool),
    Shape(Vec<i128>),
}

fn dictionary<'a>(input: &mut &'a str) -> Result<Literal<'a>, ContextError> {
    let entries: Vec<HeaderEntry<'a>> = delimited(
        spaced("{"),
        terminated(separated(0..=3, entry, ","), opt(spaced(","))),
        (spaced("}"), eof),
    )
    .parse_next(input)?;
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    for entry in entries {
        // A key given twice is as wrong as a missing one.
        let repeated = match entry {
            HeaderEntry::Descr(text) => descr.replace(text).is_some(),
            HeaderEntry::FortranOrder(flag) => fortran_order.replace(flag).is_some(),
            HeaderEntry::Shape(dims) => shape.replace(dims).is_some(),
        };
        if repeated {
            return Err(ContextError::new());
        }
    }
    match (descr, fortran_order, shape) {
        (Some(descr), Some(fortran_order), Some(shape)) => Ok(Literal { descr, fortran_order, shape }),
        _ => Err(ContextError::new()),
    }
}

fn entry<'a>(input: &mut &'a str) -> Result<HeaderEntry<'a>, ContextError> {
    alt((
        separated_pair(key("descr"), ":", quoted).map(|(_, text)| HeaderEntry::Descr(text)),
        separated_pair(key("fortran_order"), ":", boolean).map(|(_, flag)| HeaderEntry::FortranOrder(flag)),
        separated_pair(key("shape"), ":", tuple).map(|(_, dims)| HeaderEntry::Shape(dims)),
    ))
    .parse_next(input)
}

fn key<'a>(name: &'static str) -> impl Parser<&'a str, &'a str, ContextError> {
    quoted.verify(move |text: &str| text == name)
}

fn quoted<'a>(input: &mut &'a str) -> Result<&'a str, ContextError> {
    spaced(alt((
        delimited("'", take_till(0.., ['\'', '\\']), "'"),
        delimited("\"", take_till(0.., ['"', '\\']), "\""),
    )))
    .parse_next(input)
}

fn boolean(input: &mut &str) -> Result<bool, ContextError> {
    spaced(alt(("True".value(true), "False".value(false)))).parse_next(input)
}

fn tuple(input: &mut &str) -> Result<Vec<i128>, ContextError> {
    // Python 2 marked long integers with an `L`, and such files are still about.
    let dim = spaced(terminated(dec_int::<_, i128, _>, opt("L")));
    delimited(spaced("("), terminated(separated(0.., dim, ","), opt(spaced(","))), spaced(")"))
        .parse_next(input)
}

fn spaced<'a, O>(parser: impl Parser<&'a str, O, ContextError>) -> impl Parser<&'a str, O, ContextError> {
    delimited(multispace0, parser, multispace0)
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;
    use kvscatter_onnx::{Data, Tensor};

    use super::{Header, MAX_HEADER, Problem, encode, read_header};

    fn file(version: u8, literal: &str) -> Vec<u8> {
        let mut file = b"\x93NUMPY".to_vec();
        file.extend([version, 0]);
        let len = u32::try_from(literal.len()).unwrap().to_le_bytes();
        file.extend(if version == 1 { &len[..2] } else { &len });
        file.extend(literal.as_bytes());
        file
    }

    fn parse(literal: &str, ty: Option<ElementType>) -> Result<Header, Problem> {
        read_header(&mut file(1, literal).as_slice(), ty)
    }

    fn plain(descr: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 3), }}   \n")
    }

    #[test]
    fn every_version_and_spelling() {
        let literals = [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }    \n",
            "{\"shape\": (2L, 3L,), \"fortran_order\": False, \"descr\": \"<f4\"}",
            "{ 'shape' :( 2,3 ) , 'descr':'<f4','fortran_order':False}",
        ];
        for version in 1..=3 {
            for literal in literals {
                let file = file(version, literal);
                let header = read_header(&mut file.as_slice(), None).unwrap();
                assert_eq!(header.element, ElementType::Float32);
                assert_eq!(header.shape, [2, 3]);
                assert_eq!(usize::try_from(header.data_offset), Ok(file.len()));
                assert_eq!(header.data_len, 24);
            }
        }
    }

    #[test]
    fn scalars_vectors_and_empty_shapes() {
        for (shape, dims, len) in [("()", &[][..], 8), ("(5,)", &[5], 40), ("(0, 7)", &[0, 7], 0)] {
            let header =
                parse(&format!("{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}"), None)
                    .unwrap();
            assert_eq!((header.shape.as_slice(), header.data_len), (dims, len));
        }
    }

    #[test]
    fn widths_take_the_type_from_the_user() {
        let bf16 = Some(ElementType::BFloat16);
        assert_eq!(parse(&plain("<V2"), bf16).unwrap().element, ElementType::BFloat16);
        assert_eq!(
            parse(&plain("|V1"), Some(ElementType::Int4)).unwrap().data_len,
            6,
            "4-bit types are one value per byte"
        );
        assert!(matches!(parse(&plain("|V2"), None), Err(Problem::TypeNeeded { .. })));
        assert!(matches!(parse(&plain("|V1"), bf16), Err(Problem::TypeWidth { .. })));
    }

    #[test]
    fn what_numpy_can_say_and_we_cannot_read() {
        type Check = fn(&Problem) -> bool;
        let cases: [(&str, Check); 7] = [
            (">f4", |p| matches!(p, Problem::BigEndian { .. })),
            ("|O", |p| matches!(p, Problem::ObjectArray)),
            ("<U5", |p| matches!(p, Problem::NumpyString)),
            ("<f16", |p| matches!(p, Problem::NpyType { .. })),
            ("<M8[ns]", |p| matches!(p, Problem::NpyType { .. })),
            ("<V4", |p| matches!(p, Problem::NpyType { .. })),
            ("", |p| matches!(p, Problem::NpyType { .. })),
        ];
        for (descr, check) in cases {
            let problem = parse(&plain(descr), None).unwrap_err();
            assert!(check(&problem), "{descr}: {problem}");
        }
        let fortran = plain("<f4").replace("False", "True");
        assert!(matches!(parse(&fortran, None), Err(Problem::FortranOrder)));
    }

    #[test]
    fn hostile_headers_are_refused() {
        let nested = format!("{}{}", "(".repeat(5000), ")".repeat(4999));
        for literal in [
            "",
            "{}",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'descr': '<f4', 'shape': (2,)}",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2e9,)}",
            &format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},)}}", "9".repeat(40)),
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} __import__('os')",
            &nested,
            &" ".repeat(MAX_HEADER + 1),
        ] {
            assert!(matches!(parse(literal, None), Err(Problem::NpyHeader(_))), "{literal:.60}");
        }
        for dim in ["-2", "99999999999999999999999"] {
            let literal = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (3, {dim})}}");
            let problem = parse(&literal, None).unwrap_err();
            assert!(matches!(problem, Problem::NpyDimension { axis: 1, .. }), "{dim}: {problem}");
        }
        let overflowing = "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 3)}";
        assert!(matches!(parse(overflowing, None), Err(Problem::Tensor(_))));
        let mut claims_4_gib = b"\x93NUMPY\x02\x00".to_vec();
        claims_4_gib.extend(u32::MAX.to_le_bytes());
        assert!(matches!(read_header(&mut claims_4_gib.as_slice(), None), Err(Problem::NpyHeader(_))));
    }

    #[test]
    fn every_prefix_of_a_header_is_refused() {
        let whole = file(1, &plain("<f4"));
        for len in 0..whole.len() {
            assert!(read_header(&mut &whole[..len], None).is_err(), "{len}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for element in ElementType::ALL {
            let Some(bits) = element.bits() else { continue };
            for shape in [vec![], vec![3], vec![2, 0], vec![3, 5]] {
                let count: usize = shape.iter().product();
                let len = (count * bits).div_ceil(8);
                let mut bytes: Vec<u8> = (0..=u8::MAX).map(|byte| byte | 0x50).cycle().take(len).collect();
                if count * bits % 8 == 4 {
                    *bytes.last_mut().unwrap() &= 0x0f;
                }
                let tensor = Tensor::new(element, shape, Data::Bytes(bytes)).unwrap();
                let file = encode(&tensor).unwrap();
                let mut source = file.as_slice();
                let header = read_header(&mut source, Some(element)).unwrap();
                assert_eq!(header.data_offset % 64, 0);
                assert_eq!(header.data_len, source.len());
                assert_eq!(header.tensor(source.to_vec()).unwrap(), tensor);
            }
        }
    }
}
