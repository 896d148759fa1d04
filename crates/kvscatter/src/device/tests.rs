use alloc::vec::Vec;

use super::{ListCounts, ListValue, Loops, RowLimits};
use crate::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
use crate::spec::onnx::TensorScatter;
use crate::spec::tensorrt::{KvCacheUpdate, PackedCall};
use crate::{Argument, Block, Convention, ElementType, Error, Layout, Lengths, Mode, NegativeIndex};

/// Returns the destination and the source of every element that moves.
#[expect(clippy::arithmetic_side_effects, reason = "small numbers")]
fn moved(loops: &Loops, layer: isize, starts: &[usize]) -> Vec<(isize, isize)> {
    let mut around: Vec<(isize, isize)> = [(0, 0)].into();
    for by in &loops.others {
        let step = |at: (isize, isize), index| (at.0 + by.dst_stride * index, at.1 + by.src_stride * index);
        around = around
            .iter()
            .flat_map(|&at| (0..by.count.cast_signed()).map(move |index| step(at, index)))
            .collect();
    }
    let mut moved = Vec::new();
    for (sample, &start) in (0..loops.samples.count.cast_signed()).zip(starts) {
        for row in 0..loops.rows.count.cast_signed() {
            let dst = layer * loops.layers.dst_stride
                + sample * loops.samples.dst_stride
                + (row + start.cast_signed()) * loops.rows.dst_stride;
            let src = sample * loops.samples.src_stride + row * loops.rows.src_stride;
            for at in &around {
                let run = 0..loops.run.cast_signed();
                moved.extend(run.map(|e| {
                    (
                        loops.dst_offset.cast_signed() + dst + at.0 + e,
                        loops.src_offset.cast_signed() + src + at.1 + e,
                    )
                }));
            }
        }
    }
    moved.sort_unstable();
    moved
}

#[expect(clippy::arithmetic_side_effects, reason = "small numbers")]
fn of_blocks(visit: impl FnOnce(&mut dyn FnMut(&Block))) -> Vec<(isize, isize)> {
    let mut moved = Vec::new();
    visit(&mut |block| {
        block.for_each_run(|dst, src| {
            moved.extend((0..block.len).map(|e| ((dst + e).cast_signed(), (src + e).cast_signed())));
        });
    });
    moved.sort_unstable();
    moved
}

/// The loops and the plan's blocks describe the same mapping.
#[test]
fn loops_move_what_blocks_move() {
    let strides = [[60, 20, 4, 1], [20, 60, 4, 1], [-60, 20, 4, 1], [60, 4, 12, 1], [120, 40, 8, 2]];
    for (axis, rows) in [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2)] {
        for strides in strides {
            let mut shape = [2, 3, 5, 4];
            let cache = Layout::strided(&[2, 3, 5, 4], &strides);
            let cache = cache.with_offset(cache.min_offset() + 1);
            shape[axis] = rows;
            let operator = TensorScatter::new().axis(i64::try_from(axis).unwrap());
            let Ok(write) = operator.prepare(ElementType::Int8, cache, &shape) else { continue };
            let starts = [1, 0];
            let plan = write.plan(&[1_i64, 0]).unwrap();
            let loops = write.device_interface().write_loops();
            assert_eq!(
                moved(&loops, 0, &starts),
                of_blocks(|visit| plan.for_each_block(visit)),
                "{axis} {strides:?}"
            );
            let mut present = moved(&write.device_interface().present_from_update_loops(), 0, &starts);
            let past = moved(&write.device_interface().present_from_past_loops(), 0, &[0, 0]);
            let kept =
                past.into_iter().filter(|at| present.binary_search_by_key(&at.0, |new| new.0).is_err());
            present.extend(kept.collect::<Vec<_>>());
            present.sort_unstable();
            let blocks = of_blocks(|visit| plan.for_each_present(|_, block| visit(block)));
            assert_eq!(present, blocks, "{axis} {strides:?}");
        }
    }
}

#[test]
fn layers_have_a_step_of_their_own() {
    let write = KvCacheOperation::new().prepare(ElementType::Int8, &[3, 2, 5, 6], &[2, 1, 3, 2]).unwrap();
    let plan = write.plan(call(&[2], &[1, 5], &[1, 1])).unwrap();
    let loops = write.device_interface().write_loops();
    assert_eq!((loops.layers.count, loops.layers.dst_stride, loops.layers.src_stride), (3, 60, 0));
    assert_eq!(moved(&loops, 2, &[0, 4]), of_blocks(|visit| plan.for_each_block(visit)));
    // The present is dense, also if the cache is not.
    let past = Layout::strided(&[3, 2, 5, 6], &[100, 40, 8, 1]);
    let write = KvCacheOperation::new().prepare(ElementType::Int8, past, &[2, 1, 3, 2]).unwrap();
    let device = write.device_interface();
    let strides = |loops: Loops| (loops.layers.count, loops.layers.dst_stride, loops.layers.src_stride);
    assert_eq!(strides(device.write_loops()), (3, 100, 0));
    assert_eq!(strides(device.present_from_update_loops()), (3, 60, 0));
    assert_eq!(strides(device.present_from_past_loops()), (3, 60, 100));
}

fn call<'a>(layer_id: &'a [i32], token_offset: &'a [i32], seq_len: &'a [i32]) -> KvCacheOperationCall<'a> {
    KvCacheOperationCall { layer_id, token_offset, seq_len }
}

const HALF: ElementType = ElementType::Float16;

#[test]
fn conventions_limit_the_rows_of_a_sample() {
    let onnx = TensorScatter::new().prepare(HALF, &[2, 5, 1], &[2, 3, 1]);
    let totals = KvCacheUpdate::new().prepare_packed(HALF, &[3, 1, 5, 1], &[7, 1, 1]);
    let ends = |new_kv: &[usize]| KvCacheOperation::new().prepare(HALF, &[2, 3, 5, 2], new_kv);
    for (write, convention, min, max) in [
        (onnx, Convention::Starts, 3, 3),
        (totals, Convention::StartsAndCumulativeLengths, 0, 5),
        (ends(&[4, 2]), Convention::EndsAndRowCounts, 1, 5),
        (ends(&[3, 2, 1, 2]), Convention::EndsAndRowCounts, 2, 2),
        (ends(&[3, 0, 1, 2]), Convention::EndsAndRowCounts, 1, 0),
    ] {
        let write = write.unwrap();
        let limits = write.device_interface().row_limits();
        assert_eq!((write.convention(), limits), (convention, RowLimits { min, max }));
    }
}

#[test]
fn counts_of_lists_give_the_number_of_samples() {
    use Argument::{LayerId, SeqLen, TensorRtWriteIndices, TokenOffset, UpdateLengths, WriteIndices};
    let onnx = TensorScatter::new().prepare(HALF, &[2, 5, 1], &[2, 3, 1]).unwrap();
    let padded = KvCacheUpdate::new().prepare(HALF, &[2, 1, 5, 1], &[1, 1, 3, 1]).unwrap();
    let packed = KvCacheUpdate::new().prepare_packed(HALF, &[3, 1, 5, 1], &[7, 1, 1]).unwrap();
    let ends = KvCacheOperation::new().prepare(HALF, &[2, 3, 5, 2], &[4, 2]).unwrap();
    let wrong = |argument, got, expected| Err(Error::ListLength { argument, got, expected });
    let too_many = Error::BatchTooLarge { argument: TensorRtWriteIndices, cache: 3, update: 4 };
    for (write, positions, row_counts, lengths, layers, expected) in [
        (&onnx, Some(2), None, None, 0, Ok(2)),
        (&onnx, None, None, None, 0, Ok(2)), // absent starts are 0
        (&onnx, Some(3), None, None, 0, wrong(WriteIndices, 3, 2)),
        (&onnx, Some(2), Some(2), None, 0, wrong(UpdateLengths, 2, 0)),
        (&onnx, Some(2), None, Some(1), 0, wrong(Argument::Lengths, 1, 2)),
        (&onnx, Some(2), None, None, 1, wrong(LayerId, 1, 0)),
        (&padded, None, None, None, 0, wrong(TensorRtWriteIndices, 0, 1)),
        (&packed, Some(2), Some(3), None, 0, Ok(2)),
        (&packed, Some(4), Some(5), None, 0, Err(too_many)),
        (&packed, Some(2), None, None, 0, wrong(UpdateLengths, 0, 3)),
        (&packed, Some(2), Some(2), None, 0, wrong(UpdateLengths, 2, 3)), // lengths that are not cumulative
        (&packed, Some(2), Some(4), None, 0, wrong(TensorRtWriteIndices, 2, 3)),
        (&ends, Some(3), Some(3), None, 1, Ok(3)),
        (&ends, Some(2), Some(2), None, 1, wrong(TokenOffset, 2, 3)),
        (&ends, Some(3), Some(2), None, 1, wrong(SeqLen, 2, 3)),
        (&ends, Some(3), None, None, 1, wrong(SeqLen, 0, 3)),
        (&ends, Some(3), Some(3), None, 0, wrong(LayerId, 0, 1)),
    ] {
        let lists = ListCounts { positions, row_counts, lengths, layers };
        assert_eq!(write.device_interface().check_counts(lists), expected, "{lists:?}");
    }
}

const EDGES: [i64; 12] = [i64::MIN, -7, -6, -1, 0, 1, 2, 3, 4, 5, 6, i64::MAX];

/// Checks that the device interface returns the plan's error for a value, and no error if the plan returns
/// none.
fn agree(plan: Result<(), Error>, refused: Option<Error>, value: i64) {
    assert_eq!(plan.err(), refused, "{value}");
}

#[test]
fn starts_and_lengths_are_refused_as_plans_refuse_them() {
    let ring = TensorScatter::new().mode(Mode::Circular).negative_index(NegativeIndex::Reject);
    for operator in [TensorScatter::new(), ring] {
        let write = operator.prepare(ElementType::Int8, &[2, 5, 1], &[2, 3, 1]).unwrap();
        for value in EDGES {
            let refuse = |refused| write.device_interface().error_for(refused);
            let start = ListValue::Position { sample: 1, value, rows: 3, length: 2 };
            agree(write.plan_with_lengths(&[0, value], &[0, 2]).map(drop), refuse(start), value);
            let length = ListValue::Length { sample: 1, value, rows: 3 };
            agree(write.plan_with_lengths(&[0, 0], &[0, value]).map(drop), refuse(length), value);
        }
    }
}

#[test]
fn cumulative_lengths_are_refused_as_plans_refuse_them() {
    let write = KvCacheUpdate::new();
    let write = write.prepare_packed(ElementType::Float32, &[3, 1, 4, 1], &[6, 1, 1]).unwrap();
    for (previous, value) in EDGES.into_iter().flat_map(|value| [(0, value), (3, value), (1, value)]) {
        let (Ok(before), Ok(after)) = (i32::try_from(previous), i32::try_from(value)) else { continue };
        let refused =
            write.device_interface().error_for(ListValue::CumulativeLengths { sample: 1, previous, value });
        let plan = write.plan(PackedCall::new(&[0_i64; 2], &[0, before, after])).map(drop);
        let sum = write.device_interface().error_for(ListValue::Sum { value });
        agree(plan, refused.or(sum), value);
        let first = write.device_interface().error_for(ListValue::CumulativeLengths {
            sample: 0,
            previous: value,
            value,
        });
        if value != 0 {
            agree(write.plan(PackedCall::new(&[0_i64; 1], &[after, after])).map(drop), first, value);
        }
    }
}

#[test]
fn ends_row_counts_and_layers_are_refused_as_plans_refuse_them() {
    let half = ElementType::Float16;
    let packed = KvCacheOperation::new().prepare(half, &[2, 2, 5, 2], &[4, 2]).unwrap();
    let padded = KvCacheOperation::new().prepare(half, &[2, 2, 5, 2], &[2, 2, 1, 2]).unwrap();
    for value in EDGES.into_iter().filter(|&value| i32::try_from(value).is_ok()) {
        let number = i32::try_from(value).unwrap();
        for (write, span) in [(&packed, 2), (&padded, 2)] {
            let refuse = |refused| write.device_interface().error_for(refused);
            let end = ListValue::Position { sample: 1, value, rows: span, length: 1 };
            let lengths = Lengths::from(&[0_i64, 1]);
            agree(
                write.plan_with_lengths(call(&[1], &[5, number], &[2, 2]), lengths).map(drop),
                refuse(end),
                value,
            );
            agree(
                write.plan(call(&[number], &[2, 2], &[2, 2])).map(drop),
                refuse(ListValue::Layer { value }),
                value,
            );
            let spans = refuse(ListValue::RowCount { sample: 1, value });
            let sum = if write.is_packed() { refuse(ListValue::Sum { value: 2 + value }) } else { None };
            agree(write.plan(call(&[1], &[5, 5], &[2, number])).map(drop), spans.or(sum), value);
        }
    }
}
