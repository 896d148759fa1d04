//! The header of a `.npy` file, with the element type, the shape and the offset of the data.

use std::io::Read;

use kvscatter::ElementType;
use kvscatter_onnx::internal::storage_len;
use winnow::Parser;

use super::literal::{Literal, dictionary};
use crate::files::error::NpyHeader;
use crate::files::error::Problem;
use crate::files::header::Header;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest header. NumPy also refuses longer ones, and the header of a plain array has less than 200
/// bytes.
const MAX_HEADER: usize = 10_000;

/// Reads the header. The source is then at the first byte of data.
pub(in crate::files) fn read_header(
    source: &mut impl Read,
    ty: Option<ElementType>,
) -> Result<Header, Problem> {
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

fn interpret(literal: Literal<'_>, ty: Option<ElementType>, offset: u64) -> Result<Header, Problem> {
    let element = element(literal.descr, ty)?;
    if literal.fortran_order {
        return Err(Problem::FortranOrder);
    }
    let dim = |(axis, &dim)| usize::try_from(dim).map_err(|_| Problem::NpyDimension { axis, dim });
    let shape = literal.shape.iter().enumerate().map(dim).collect::<Result<Vec<_>, _>>()?;
    let is_unpacked = element.bits() == Some(4);
    let len = storage_len(if is_unpacked { ElementType::UInt8 } else { element }, &shape)?;
    Ok(Header { element, shape, is_unpacked, offset, len })
}

/// Returns the element type of a `descr`, which has a byte order, a kind and a width in bytes.
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

/// Returns the type that the user gives for a `descr` with only a width.
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

/// Returns the header of a tensor, padded so that its data begins at a multiple of 64.
///
/// # Errors
/// - Returns [`Problem::StringsOnlyInPb`] for strings.
/// - Returns [`NpyHeader::TooManyDimensions`] if the header would be too long.
pub(super) fn encode(element: ElementType, shape: &[usize]) -> Result<Vec<u8>, Problem> {
    let descr = descr(element)?;
    let dims: Vec<_> = shape.iter().map(|dim| format!("{dim}, ")).collect();
    // A tuple of one dimension needs a trailing comma. Longer tuples have none.
    let dims = match dims.len() {
        1 => dims.concat().trim_end().to_owned(),
        _ => dims.concat().trim_end_matches([' ', ',']).to_owned(),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // A line feed ends the header, and the data begins at a multiple of 64.
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

/// Returns the `descr` that NumPy writes for the type.
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

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::{Header, MAX_HEADER, Problem, read_header};

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
                assert_eq!(usize::try_from(header.offset), Ok(file.len()));
                assert_eq!(header.len, 24);
            }
        }
    }

    #[test]
    fn scalars_vectors_and_empty_shapes() {
        for (shape, dims, len) in [("()", &[][..], 8), ("(5,)", &[5], 40), ("(0, 7)", &[0, 7], 0)] {
            let header =
                parse(&format!("{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}"), None)
                    .unwrap();
            assert_eq!((header.shape.as_slice(), header.len), (dims, len));
        }
    }

    #[test]
    fn widths_take_the_type_from_the_user() {
        let bf16 = Some(ElementType::BFloat16);
        assert_eq!(parse(&plain("<V2"), bf16).unwrap().element, ElementType::BFloat16);
        assert_eq!(
            parse(&plain("|V1"), Some(ElementType::Int4)).unwrap().len,
            6,
            "4-bit types are one value per byte"
        );
        assert!(matches!(parse(&plain("|V2"), None), Err(Problem::TypeNeeded { .. })));
        assert!(matches!(parse(&plain("|V1"), bf16), Err(Problem::TypeWidth { .. })));
    }

    #[test]
    fn headers_of_numpy_that_are_not_supported_are_refused() {
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
}
