//! The message and the plain data of every error.

use std::fmt::Write;

use kvscatter::error::{ErrorKind, LengthUnit, SequenceHint};
use kvscatter::{Argument, ElementType, Error};

const ARGUMENT: Argument = Argument::WriteIndices;
const ACCEPTED: &[ElementType] = &[ElementType::Float16, ElementType::Int8];

/// Returns errors of every variant. The numbers of an error differ, so that none can be in the place of another.
fn errors() -> Vec<Error> {
    let argument = ARGUMENT;
    let mismatch = |hint| Error::DimensionMismatch {
        argument: Argument::Update,
        dimension: 1,
        expected: 5,
        got: 6,
        hint,
    };
    let count = |argument, expected| Error::ListLength { argument, got: 1, expected };
    let start = |value| Error::StartOutOfRange { argument, index: 3, value, rows: 2, capacity: 4096 };
    let end = |value, min, max| Error::EndOutOfRange { argument, index: 2, value, min, max };
    let length = |value, min, max| Error::LengthOutOfRange { argument, index: 2, value, min, max };
    let layer = |value, layers| Error::LayerOutOfRange { argument, value, layers };
    let slot = |value, slots| {
        let argument = Argument::SlotMapping;
        Error::SlotOutOfRange { argument, index: 3, value, slots }
    };
    let block = |value, blocks| {
        let (argument, sample) = (Argument::BlockTables, 1);
        Error::BlockOutOfRange { argument, sample, index: 3, value, blocks }
    };
    let buffer = |unit, exact| Error::BufferLength { argument, pair: 3, got: 9, expected: 11, unit, exact };
    let overlap = |pair, with_pair| Error::Overlap { argument, with: Argument::Present, pair, with_pair };
    let width = |element| Error::ElementWidth { got: 7, element };
    vec![
        Error::ElementType { argument, element: ElementType::Float32, accepted: ACCEPTED },
        Error::ElementTypeMismatch { cache: ElementType::Bool, argument, element: ElementType::Float32 },
        Error::Rank { argument, rank: 3, expected: &[2, 4] },
        Error::Rank { argument, rank: 9, expected: &[2, 4, 5] },
        Error::RankTooLow { argument, rank: 1, min: 2 },
        Error::RankMismatch { argument, cache: 3, update: 4 },
        Error::AxisOutOfRange { axis: -9, rank: 4 },
        Error::AxisOutOfRange { axis: 5, rank: 4 },
        Error::AxisIsBatch { axis: -4, rank: 4 },
        Error::UnknownMode,
        mismatch(None),
        mismatch(Some(SequenceHint::SetAxis)),
        mismatch(Some(SequenceHint::GiveStrides)),
        Error::HiddenSize { argument, heads: 3, head_size: 5, hidden: 16 },
        Error::BatchTooLarge { argument, cache: 1, update: 2 },
        Error::UpdateLongerThanCache { argument, rows: 6, capacity: 4 },
        Error::TooLarge { argument },
        Error::StrideCount { argument, strides: 1, rank: 3 },
        Error::BeforeBuffer { argument, offset: 3, min: 8 },
        Error::CacheOverlapsItself { argument },
        Error::TooManyLoops { loops: 5 },
        count(ARGUMENT, 2),
        count(Argument::UpdateLengths, 3),
        count(Argument::UpdateLengths, 0),
        count(Argument::LayerId, 0),
        count(ARGUMENT, 0),
        Error::NegativeStart { argument, index: 2, value: -5 },
        start(4095),
        start(i64::MAX),
        end(9, 2, 7),
        end(1, 2, 7),
        end(1, 8, 7),
        length(9, 2, 7),
        length(1, 2, 7),
        length(5, 7, 7),
        length(1, 8, 7),
        Error::CumulativeStart { argument, value: 4 },
        Error::CumulativeOrder { argument, index: 2, value: 4, previous: 5 },
        Error::CumulativeLength { argument, index: 2, rows: 9, capacity: 8 },
        Error::TokenSum { argument, got: 5, tokens: 1 },
        layer(7, 2),
        layer(-7, 2),
        layer(7, 0),
        slot(12, 8),
        slot(12, 0),
        Error::DuplicateSlot { argument: Argument::SlotMapping, index: 3, value: 12, earlier: 1 },
        block(9, 8),
        block(-9, 8),
        block(9, 0),
        Error::IndexTooLarge { argument, index: 2 },
        Error::InvalidPosition { value: -3, rows: 1 },
        buffer(LengthUnit::Elements, false),
        buffer(LengthUnit::Bytes, true),
        Error::NullBuffer { argument, pair: 0, len: 12 },
        Error::NullBuffer { argument, pair: 2, len: 12 },
        Error::AddressSpace { argument, pair: 1, address: 0xABCD, len: usize::MAX },
        overlap(0, 0),
        overlap(2, 2),
        overlap(2, 4),
        Error::InPlaceOnly { argument: Argument::PresentCache },
        width(ElementType::Float16),
        width(ElementType::Int4),
        width(ElementType::String),
    ]
}

#[test]
fn messages_and_data() {
    let mut lines = String::new();
    for error in errors() {
        let details = error.details();
        let (kind, argument) = (details.kind, details.argument.map_or("—", Argument::name));
        writeln!(lines, "{error}").unwrap();
        writeln!(lines, "    {kind} ({:?}) about {argument}", kind.class()).unwrap();
        let (index, value, limit) = (details.index, details.value, details.limit);
        writeln!(lines, "    index {index:?}, value {value:?}, limit {limit:?}").unwrap();
        writeln!(lines, "    {:?}", details.fields().collect::<Vec<_>>()).unwrap();
        assert_eq!(error.kind(), kind);
    }
    insta::assert_snapshot!(lines);
    let mut kinds: Vec<_> = errors().iter().map(Error::kind).collect();
    kinds.dedup();
    assert_eq!(kinds, ErrorKind::ALL);
}
