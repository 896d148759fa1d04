//! Operands with strides, and caches of blocks. They must have the bits of dense operands.

use half::{bf16, f16};
use kvscatter::ElementType;
use kvscatter_attention::{
    Attention, AttentionError, Inputs, Operand, Outputs, Scales, Scores, Shapes, Strides, Valid,
};
use kvscatter_oracle::attention::Positions;
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::cases::attention::random;

use crate::call::{AnyMask, Operands, Tensor, operator};
use crate::element::{Element, bits};
use crate::executors::Threads;
use crate::extensions::shapes;
use crate::laid::{Pages, are_same, run};
use crate::variants::Variant;

#[test]
fn strides_and_blocks_do_not_change_the_result() {
    fn check<T: Element>(seed: usize, operands: &Operands<T>, op: &Attention, is_ring: bool) {
        let r = &mut Random::new(71, seed);
        let operands = operands.by_head(op);
        for variant in Variant::for_short() {
            let expected = operands.run_as(variant, op).unwrap().y;
            assert!(are_same(&operands.run_strided(r, variant, op), &expected), "{seed} {variant:?} strides");
            if !is_ring {
                let y = operands.run_in_blocks(r, variant, op);
                assert!(are_same(&y, &expected), "{seed} {variant:?} blocks");
            }
        }
    }
    let mut checked = 0;
    for (seed, case) in random(70, 300).enumerate() {
        let is_ring = matches!(case.inputs.positions, Positions::Ring(_));
        let op = operator(&case.attention, &case.inputs.positions).unwrap();
        if case.inputs.past_key.is_some() {
            continue;
        }
        match seed % 3 {
            0 => check(seed, &Operands::<f32>::new(&case.inputs).unwrap(), &op, is_ring),
            1 => check(seed, &Operands::<f16>::new(&case.inputs).unwrap(), &op, is_ring),
            _ => check(seed, &Operands::<bf16>::new(&case.inputs).unwrap(), &op, is_ring),
        }
        checked += 1;
    }
    assert!(checked > 100, "{checked}");
}

/// Long calls are divided between threads, and blocks end in the middle of chunks.
#[test]
fn long_caches_in_blocks() {
    const SLOTS: usize = 2500;
    for (seed, (queries, heads, size)) in
        [(1, [4, 4], 64), (1, [8, 2], 64), (3, [4, 1], 40), (60, [4, 2], 16)].into_iter().enumerate()
    {
        let r = &mut Random::new(72, seed);
        let [query_heads, kv_heads] = heads;
        let mut operands = Operands::<f16> {
            query: Tensor::random(r, [2, query_heads, queries, size]),
            key: Tensor::random(r, [2, kv_heads, SLOTS, size]),
            value: Tensor::random(r, [2, kv_heads, SLOTS, 24]),
            mask: None,
            past: None,
            lengths: Some(vec![2499, 1100]),
        };
        for has_mask in [false, true] {
            if has_mask {
                let seen = r.many(queries * SLOTS, |r| u8::from(r.below(40) > 0));
                operands.mask = Some(AnyMask::Bool(Tensor { shape: vec![queries, SLOTS], data: seen }));
            }
            for op in [Attention::new().causal(true), Attention::new().causal(true).window(Some(1000), None)]
            {
                for variant in Variant::real() {
                    let expected = bits(&operands.run_as(variant, &op).unwrap().y);
                    assert!(bits(&operands.run_in_blocks(r, variant, &op)) == expected, "{seed} {variant:?}");
                    assert!(bits(&operands.run_strided(r, variant, &op)) == expected, "{seed} {variant:?}");
                }
            }
        }
    }
}

/// Codes have a scale for each row of a block.
#[test]
fn codes_in_blocks() {
    for seed in 0..60 {
        let r = &mut Random::new(73, seed);
        let (queries, slots, size) = (r.pick(&[1, 1, 3, 40]), r.pick(&[40, 130]), r.pick(&[16, 64, 40]));
        let (query, cache) = ([2, 4, queries, size], [2, 2, slots, size]);
        let q = r.many(query.iter().product(), |r| r.between(0, 200) as f32 / 100.0 - 1.0);
        let codes = [0, 1].map(|_| r.many(cache.iter().product(), |r| r.between(0, 254) as u8 as i8));
        let scales = [0, 1].map(|_| r.many(4 * slots, |r| r.between(1, 2000) as f32 / 100_000.0));
        let lengths = [slots as i64, (slots / 2).max(queries) as i64];
        let op = Attention::new().causal(true).cache_element(ElementType::Int8);
        let used = lengths.map(|length| 0..length as usize);
        let pages = Pages::random(r, slots, &used);
        let [of_key, of_value] = [0, 1].map(|of| pages.blocks([2, 2, slots, 1], &scales[of], f32::NAN));
        let [key, value] = [0, 1].map(|of| pages.blocks(cache, &codes[of], 77));
        let valid = Valid::Lengths(&lengths);
        for variant in Variant::all() {
            let dense = variant.apply(op.prepare(&shapes(&query, &cache)).unwrap());
            let [k, v] = &scales;
            let inputs = Inputs {
                valid,
                scales: Some(Scales::Rows { key: k, value: v }),
                ..Inputs::new(&q, &codes[0], &codes[1])
            };
            let expected = run(&dense, &inputs, None).unwrap();
            let blocks = [pages.count, 2, pages.size, size];
            let paged = op.blocks(pages.per_sample).prepare(&shapes(&query, &blocks)).unwrap();
            let inputs = Inputs {
                valid,
                block_table: Some(&pages.table),
                scales: Some(Scales::Rows { key: &of_key, value: &of_value }),
                ..Inputs::new(&q, &key, &value)
            };
            let y = run(&variant.apply(paged), &inputs, Some(&Threads(2))).unwrap();
            assert!(bits(&y) == bits(&expected), "{seed} {variant:?}");
        }
    }
}

/// Every table of up to three blocks, with every length: each entry that a query sees must be a block.
#[test]
fn every_small_block_table() {
    const COUNT: usize = 3;
    let (mut ran, mut refused) = (0, 0);
    for (batch, per_sample, size, window) in
        [(1, 3, 2, None), (1, 3, 1, Some(1)), (2, 2, 1, None), (2, 2, 2, Some(0)), (1, 2, 3, None)]
    {
        let (query, cache) = ([batch, 2, 1, 2], [COUNT, 1, size, 2]);
        let op = Attention::new().causal(true).window(window, None);
        let prepared = op.blocks(per_sample).prepare(&shapes(&query, &cache)).unwrap();
        let dense_shape = [batch, 1, per_sample * size, 2];
        let dense = op.prepare(&shapes(&query, &dense_shape)).unwrap();
        let q: Vec<_> = (0..batch * 4).map(|n| n as f32 / 4.0).collect();
        let key: Vec<_> = (0..COUNT * size * 2).map(|n| (n * 7 % 5) as f32).collect();
        let value: Vec<_> = (0..COUNT * size * 2).map(|n| n as f32).collect();
        let entries = batch * per_sample;
        let slots = per_sample * size;
        for number in 0..5_usize.pow(entries as u32) * (slots + 1).pow(batch as u32) {
            let (mut rest, mut table, mut lengths) = (number, Vec::new(), Vec::new());
            for _ in 0..entries {
                table.push((rest % 5) as i32 - 1);
                rest /= 5;
            }
            for _ in 0..batch {
                lengths.push((rest % (slots + 1)) as i64);
                rest /= slots + 1;
            }
            let valid = Valid::Lengths(&lengths);
            let inputs = Inputs { valid, block_table: Some(&table), ..Inputs::new(&q, &key, &value) };
            let result = run(&prepared, &inputs, None);
            let first_bad = (0..batch).find_map(|sample| {
                let end = lengths[sample] as usize;
                let start = window.map_or(0, |window| end.saturating_sub(window + 1));
                let seen = start / size..if start < end { end.div_ceil(size) } else { start / size };
                let mut entries = seen.map(|index| (sample, index, table[sample * per_sample + index]));
                entries.find(|(_, _, block)| !(0..COUNT as i32).contains(block))
            });
            if let Some((sample, index, value)) = first_bad {
                let max = COUNT as i64 - 1;
                assert_eq!(result, Err(AttentionError::BlockOutOfRange { sample, index, value, max }));
                refused += 1;
                continue;
            }
            // The slots that no query sees contain NaN.
            let gather = |blocks: &[f32]| -> Vec<f32> {
                let slots = (0..batch).flat_map(|sample| (0..slots).map(move |slot| (sample, slot)));
                let row = |(sample, slot): (usize, usize)| {
                    let block = usize::try_from(table[sample * per_sample + slot / size]).unwrap_or(COUNT);
                    let first = (block * size + slot % size) * 2;
                    [0, 1].map(|at| blocks.get(first + at).copied().unwrap_or(f32::NAN))
                };
                slots.flat_map(row).collect()
            };
            let (key, value) = (gather(&key), gather(&value));
            let expected = run(&dense, &Inputs { valid, ..Inputs::new(&q, &key, &value) }, None).unwrap();
            assert_eq!(bits(&result.unwrap()), bits(&expected), "{table:?} {lengths:?}");
            ran += 1;
        }
    }
    assert!(ran > 2000 && refused > 2000, "{ran} {refused}");
}

/// A tensor without elements may have any strides.
#[test]
fn rows_without_elements() {
    let (query, key, value) = ([2, 4, 3, 0], [2, 2, 5, 0], [2, 2, 5, 8]);
    let dense = Shapes { value: &value, ..shapes(&query, &key) };
    let places = Some([15, 5, 1]);
    let strides = Strides { query: places, key: places, ..Strides::default() };
    let prepared = Attention::new().prepare_strided(&dense, &strides).unwrap();
    let value = [0.5_f32; 160];
    let mut output = [0.0_f32; 192];
    let mut scratch = prepared.scratch(1);
    let inputs = Inputs::new(&[], &[], &value);
    prepared.run(&inputs, &mut Outputs::new(&mut output), &mut scratch, None).unwrap();
    assert_eq!(output, [0.5; 192]);
}

#[test]
fn layouts_that_are_refused() {
    let (query, cache) = ([2, 4, 3, 8], [5, 2, 4, 8]);
    let shapes_of = shapes(&query, &cache);
    let op = Attention::new();
    let error =
        |op: Attention, shapes: &Shapes<'_>, strides: Strides| op.prepare_strided(shapes, &strides).err();
    let none = Strides::default();
    let paged = op.blocks(3);
    assert_eq!(error(paged, &shapes_of, none), None);
    let scores = paged.scores(Scores::Weights);
    assert_eq!(error(scores, &shapes_of, none), Some(AttentionError::Blocks { operand: Operand::Scores }));
    let past = Shapes { past: Some([&cache, &cache]), ..shapes_of };
    assert_eq!(error(paged, &past, none), Some(AttentionError::Blocks { operand: Operand::PastKey }));
    let ring = AttentionError::Ring { operand: Operand::BlockTable };
    assert_eq!(error(paged.ring(), &shapes_of, none), Some(ring));
    let empty = shapes(&query, &[5, 2, 0, 8]);
    assert_eq!(error(paged, &empty, none), Some(AttentionError::EmptyBlocks));
    let large = AttentionError::TooLarge { operand: Operand::BlockTable };
    assert_eq!(error(op.blocks(usize::MAX), &shapes_of, none), Some(large));

    let cache = [2, 2, 4, 8];
    let dense = shapes(&query, &cache);
    for stride in [usize::MAX, isize::MAX as usize, isize::MAX as usize / 4] {
        let key = Strides { key: Some([stride, 32, 8]), ..none };
        assert_eq!(error(op, &dense, key), Some(AttentionError::TooLarge { operand: Operand::Key }));
    }
    for strides in [[0, 24, 8], [96, 24, 7], [95, 24, 8], [96, 0, 8], [8, 16, 4]] {
        let output = Strides { output: Some(strides), ..none };
        let overlap = AttentionError::Overlap { operand: Operand::Output, strides };
        assert_eq!(error(op, &dense, output), Some(overlap));
    }
    // A cache may share rows, and a buffer may end after its last row.
    let strides = Strides { key: Some([0, 0, 9]), ..none };
    let prepared = op.prepare_strided(&dense, &strides).unwrap();
    let (q, key, value) = ([0.5_f32; 192], [0.5_f32; 35], [0.5_f32; 128]);
    assert!(run(&prepared, &Inputs::new(&q, &key, &value), None).is_ok());
    let short = AttentionError::TooShort { operand: Operand::Key, got: 34, needed: 35 };
    assert_eq!(run(&prepared, &Inputs::new(&q, &key[1..], &value), None), Err(short));

    let prepared = paged.prepare(&shapes_of).unwrap();
    let (cache, table) = ([0.5_f32; 320], [0; 6]);
    let inputs = Inputs::new(&q, &cache, &cache);
    let absent = AttentionError::Presence { operand: Operand::BlockTable, is_expected: true };
    assert_eq!(run(&prepared, &inputs, None), Err(absent));
    let short = AttentionError::Length { operand: Operand::BlockTable, got: 5, expected: 6 };
    assert_eq!(run(&prepared, &Inputs { block_table: Some(&table[1..]), ..inputs }, None), Err(short));
    assert!(run(&prepared, &Inputs { block_table: Some(&table), ..inputs }, None).is_ok());
    // A present would need the rows of each sample in order.
    let slots = prepared.present_shapes()[0].iter().product();
    let (mut y, mut present) = ([-7.0_f32; 192], [vec![-7.0_f32; slots], vec![-7.0; slots]]);
    let [present_key, present_value] = &mut present;
    let mut outputs = Outputs::new(&mut y).present(present_key, present_value);
    let inputs = Inputs { block_table: Some(&table), ..inputs };
    let refused = prepared.run(&inputs, &mut outputs, &mut prepared.scratch(1), None);
    assert_eq!(refused, Err(AttentionError::Blocks { operand: Operand::PresentKey }));
    assert!(y.iter().chain(present.iter().flatten()).all(|number| *number == -7.0));
    let given = AttentionError::Presence { operand: Operand::BlockTable, is_expected: false };
    let cache = [0.5_f32; 128];
    let inputs = Inputs { block_table: Some(&table), ..Inputs::new(&q, &cache, &cache) };
    assert_eq!(run(&op.prepare(&dense).unwrap(), &inputs, None), Err(given));
}

#[test]
fn rows_without_elements_have_any_strides() {
    let (query, key, value) = ([2, 2, 3, 0], [2, 1, 8, 0], [2, 1, 8, 4]);
    let shapes = Shapes {
        element: ElementType::Float32,
        query: &query,
        key: &key,
        value: &value,
        mask: None,
        past: None,
    };
    let strides = Strides { query: Some([8, 4, 1]), key: Some([8, 8, 1]), ..Strides::default() };
    let prepared = Attention::new().prepare_strided(&shapes, &strides).unwrap();
    let (values, mut output) = ([1.0_f32; 64], [0.0_f32; 48]);
    let inputs = Inputs::new(&[], &[], &values);
    prepared.run(&inputs, &mut Outputs::new(&mut output), &mut prepared.scratch(1), None).unwrap();
    assert_eq!(output, [1.0; 48]);
}

/// A dimension of one element may have any stride, as arrays of other libraries do.
#[test]
fn dimensions_of_one_element_have_any_strides() {
    let (query, cache) = ([1, 1, 2, 4], [1, 1, 1, 4]);
    let all = Some([usize::MAX; 3]);
    let strides = Strides { key: all, value: all, ..Strides::default() };
    let (q, rows) = ([1.0_f32; 8], [0.5_f32; 4]);
    for (op, table) in [(Attention::new(), None), (Attention::new().blocks(1), Some(&[0][..]))] {
        let prepared = op.prepare_strided(&shapes(&query, &cache), &strides).unwrap();
        for variant in Variant::for_short() {
            let inputs = Inputs { block_table: table, ..Inputs::new(&q, &rows, &rows) };
            assert_eq!(run(&variant.apply(prepared.clone()), &inputs, None), Ok(vec![0.5; 8]), "{variant:?}");
        }
    }
}

/// Heads that are neighbours are read together, but a scratch does not grow with any number of them.
#[test]
fn many_heads() {
    let heads = 520;
    let (query, cache) = ([1, heads, 1, 1], [1, heads, 3, 1]);
    let r = &mut Random::new(72, 0);
    let [q, key, value] =
        [1, 3, 3].map(|rows| (0..heads * rows).map(|_| r.below(9) as f32 / 4.0).collect::<Vec<_>>());
    let op = Attention::new();
    let expected = run(&op.prepare(&shapes(&query, &cache)).unwrap(), &Inputs::new(&q, &key, &value), None);
    let by_token =
        |of: &[f32]| -> Vec<f32> { (0..3).flat_map(|row| of.iter().skip(row).step_by(3).copied()).collect() };
    let [key, value] = [key, value].map(|of| by_token(&of));
    let strides = Some([0, 1, heads]);
    let strides = Strides { key: strides, value: strides, ..Strides::default() };
    let prepared = op.prepare_strided(&shapes(&query, &cache), &strides).unwrap();
    assert_eq!(run(&prepared, &Inputs::new(&q, &key, &value), None), expected);
    // The heads of this cache share their bytes. Memory for the scores of all of them would be 70 TB.
    let heads = usize::MAX >> 30;
    let (query, cache) = ([1, heads, 1, 1], [1, heads, 3, 1]);
    let strides = Some([0, 0, 1]);
    let strides = Strides { query: strides, key: strides, value: strides, ..Strides::default() };
    drop(op.prepare_strided(&shapes(&query, &cache), &strides).unwrap().scratch(2));
}
