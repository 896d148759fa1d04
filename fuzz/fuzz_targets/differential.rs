//! Makes an operator, shapes, strides and indices from the input, and chooses an instruction set and limits. The
//! core and the oracle must agree on every byte or on the error.

#![no_main]

use arbitrary::{Result, Unstructured};
use kvscatter::{ElementType, Error};
use kvscatter_oracle::ascend::KvCacheOperation;
use kvscatter_oracle::cases::paged::PagedCase;
use kvscatter_oracle::cases::{Call, Element, Random, View};
use kvscatter_oracle::onnx::TensorScatter;
use kvscatter_oracle::paged::PagedWrite;
use kvscatter_oracle::tensorrt::{KvCacheUpdate, UpdateForm};
use kvscatter_oracle::{NegativeIndex, OutOfRange, size};
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/kvscatter/tests/oracle/call.rs"]
mod call;
#[path = "../../crates/kvscatter/tests/paged/scene.rs"]
#[expect(dead_code, reason = "the element type is the input's choice here")]
mod paged_scene;
#[path = "../../crates/kvscatter/tests/oracle/scene.rs"]
#[expect(dead_code, reason = "the element type is the input's choice here")]
mod scene;
#[path = "../../crates/kvscatter/tests/oracle/variants.rs"]
#[expect(dead_code, reason = "inputs are small here")]
mod variants;
#[path = "../../crates/kvscatter/tests/oracle/view.rs"]
mod view;

use scene::{PAINTED, Scene};
use variants::Variant;
use view::AsLayout;

/// The number of guard elements. It is even, so that a buffer of nibbles begins on a byte.
const GUARD: usize = 2;

fuzz_target!(|bytes: &[u8]| {
    // `Unstructured` reads zeros after the end of the input, so there is no error worth reporting.
    let _ = run(&mut Unstructured::new(bytes));
});

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let (call, cache_shape, update_shape) = match u.int_in_range(0..=4)? {
        4 => return paged(u),
        0 => kv_cache_update(u)?,
        1 => kv_cache_operation(u)?,
        _ => tensor_scatter(u)?,
    };
    let element = u.choose(Element::all())?;
    let variant = *u.choose(&Variant::for_small())?;
    let (cache, sane) = view(u, &cache_shape)?;
    let (update, _) = view(u, &update_shape)?;
    if cache.total().max(size(&cache_shape)) + update.total().max(size(&update_shape)) >= PAINTED {
        return Ok(());
    }
    let outcome = &call
        .check_elements([element, element])
        .and_then(|()| call.run_on_origins(&cache_shape, &update_shape));
    let Some(element) = ElementType::from_name(element.name) else { unreachable!("{element:?}") };
    match call::with_plan(&call, element, cache.layout(), update.layout(), |_| Ok(())) {
        // These errors are about where the tensors lie, which the oracle does not know.
        Err(Error::TooManyLoops { loops }) => assert!(loops > 3),
        Err(Error::CacheOverlapsItself { .. }) => assert!(!sane, "{cache:?}"),
        prepared => {
            assert!(prepared.is_err() || are_apart(cache.places()), "{cache:?}");
            Scene { call: &call, cache, update, outcome }.check_on(element, &[variant], variants::ODD);
        }
    }
    Ok(())
}

/// Makes a write into a paged cache, and compares the core with the oracle.
fn paged(u: &mut Unstructured<'_>) -> Result<()> {
    let rank = u.int_in_range(2..=5)?;
    let mut cache_shape = (0..rank).map(|_| dimension(u)).collect::<Result<Vec<_>>>()?;
    let axis = u.int_in_range(1..=rank - 1)?;
    cache_shape[axis] = u.int_in_range(0..=9)?;
    let slots = cache_shape[0] * cache_shape[axis];
    let slot_mapping = (0..u.int_in_range(0..=12)?)
        .map(|_| if u.ratio(1, 16)? { start(u, slots) } else { u.int_in_range(0..=slots.max(1) as i64 - 1) })
        .collect::<Result<Vec<_>>>()?;
    let mut update_shape = cache_shape.clone();
    update_shape.remove(axis);
    update_shape[0] = count(u, slot_mapping.len())?;
    spoil(u, &mut update_shape)?;
    spoil(u, &mut cache_shape)?;
    let attribute = if u.ratio(1, 16)? { start(u, rank)? } else { axis as i64 };
    let operator = PagedWrite { axis: attribute, skip_negative: u.arbitrary()? };
    let case = &PagedCase { operator, cache_shape, update_shape, slot_mapping };
    let element = u.choose(Element::all())?;
    let variant = *u.choose(&Variant::for_small())?;
    let (cache, sane) = view(u, &case.cache_shape)?;
    let (update, _) = view(u, &case.update_shape)?;
    let Some(element) = ElementType::from_name(element.name) else { unreachable!("{element:?}") };
    let scene = paged_scene::Scene { case, cache, update, outcome: &case.run_on_origins() };
    match scene.prepare(element) {
        // These errors are about where the tensors lie, which the oracle does not know.
        Err(Error::TooManyLoops { loops }) => assert!(loops > 3),
        Err(Error::CacheOverlapsItself { .. }) => assert!(!sane, "{scene:?}"),
        _ => scene.check(element, &[variant], variants::ODD),
    }
    Ok(())
}

/// Returns a view of a tensor of this shape, and whether its positions are known to be disjoint.
fn view(u: &mut Unstructured<'_>, shape: &[usize]) -> Result<(View, bool)> {
    let form = if shape.is_empty() { 0 } else { u.int_in_range(0..=4)? };
    let random = &mut Random::new(u.arbitrary::<u16>()?.into(), 0);
    Ok(match form {
        0 | 1 => (View::dense(shape, GUARD), true),
        2 => (View::strided(shape, GUARD, random), true),
        3 => (View::broadcast(shape, GUARD, random), false),
        _ => {
            let strides = shape.iter().map(|_| u.int_in_range(-40..=40)).collect::<Result<_>>()?;
            (View::of_strides(shape, strides, GUARD, random), false)
        }
    })
}

fn are_apart(mut places: Vec<usize>) -> bool {
    places.sort_unstable();
    places.windows(2).all(|pair| pair[0] != pair[1])
}

fn dimension(u: &mut Unstructured<'_>) -> Result<usize> {
    u.int_in_range(0..=5)
}

/// Returns a start that is usually near a cache of this many slots.
fn start(u: &mut Unstructured<'_>, capacity: usize) -> Result<i64> {
    let capacity = capacity as i64;
    match u.int_in_range(0..=7)? {
        0 => u.arbitrary(),
        1 => Ok(*u.choose(&[i64::MIN, -1, capacity - 1, capacity, capacity + 1, i64::MAX])?),
        2 | 3 => u.int_in_range(-2 * capacity - 1..=2 * capacity + 1),
        _ => u.int_in_range(0..=capacity),
    }
}

/// Returns a number of list values, usually `batch`.
fn count(u: &mut Unstructured<'_>, batch: usize) -> Result<usize> {
    Ok(if u.ratio(1, 16)? { dimension(u)? } else { batch })
}

fn starts(u: &mut Unstructured<'_>, batch: usize, capacity: usize) -> Result<Vec<i64>> {
    (0..count(u, batch)?).map(|_| start(u, capacity)).collect()
}

fn lengths(u: &mut Unstructured<'_>, batch: usize, rows: usize) -> Result<Option<Vec<i64>>> {
    if u.ratio(1, 2)? {
        return Ok(None);
    }
    let length = |u: &mut Unstructured<'_>| {
        if u.ratio(1, 32)? { u.arbitrary() } else { u.int_in_range(0..=rows as i64) }
    };
    (0..count(u, batch)?).map(|_| length(u)).collect::<Result<_>>().map(Some)
}

fn out_of_range(u: &mut Unstructured<'_>) -> Result<OutOfRange> {
    Ok(if u.arbitrary()? { OutOfRange::SkipSample } else { OutOfRange::Error })
}

/// Occasionally adds a dimension, removes one, or changes its size.
fn spoil(u: &mut Unstructured<'_>, shape: &mut Vec<usize>) -> Result<()> {
    match u.int_in_range(0..=31)? {
        0 => shape.push(dimension(u)?),
        1 => drop(shape.pop()),
        2 if !shape.is_empty() => {
            let spoiled = u.choose_index(shape.len())?;
            shape[spoiled] = dimension(u)?;
        }
        _ => {}
    }
    Ok(())
}

fn tensor_scatter(u: &mut Unstructured<'_>) -> Result<(Call, Vec<usize>, Vec<usize>)> {
    let rank = u.int_in_range(2..=5)?;
    let mut cache_shape = (0..rank).map(|_| dimension(u)).collect::<Result<Vec<_>>>()?;
    let axis = u.int_in_range(1..=rank - 1)?;
    let capacity = u.int_in_range(0..=9)?;
    cache_shape[axis] = capacity;
    let mut update_shape = cache_shape.clone();
    let rows = u.int_in_range(0..=capacity)?;
    update_shape[axis] = rows;
    let attribute = match u.int_in_range(0..=15)? {
        0 => start(u, rank)?,
        n if n % 2 == 0 => axis as i64,
        _ => axis as i64 - rank as i64,
    };
    let operator = TensorScatter {
        axis: attribute,
        mode: if u.arbitrary()? { "circular" } else { "linear" }.to_owned(),
        out_of_range: out_of_range(u)?,
        negative_index: if u.arbitrary()? { NegativeIndex::Reject } else { NegativeIndex::Modulo },
    };
    let batch = cache_shape[0];
    let write_indices = if u.ratio(1, 16)? { None } else { Some(starts(u, batch, capacity)?) };
    let lengths = lengths(u, batch, rows)?;
    spoil(u, &mut update_shape)?;
    spoil(u, &mut cache_shape)?;
    Ok((Call::TensorScatter { operator, write_indices, lengths }, cache_shape, update_shape))
}

fn kv_cache_update(u: &mut Unstructured<'_>) -> Result<(Call, Vec<usize>, Vec<usize>)> {
    let [mut batch, heads, size] = [dimension(u)?, dimension(u)?, dimension(u)?];
    let capacity = u.int_in_range(0..=9)?;
    let mut cache_shape = vec![batch, heads, capacity, size];
    if u.ratio(1, 4)? {
        batch = dimension(u)?;
    }
    let out_of_range = out_of_range(u)?;
    let write_indices = starts(u, batch, capacity)?;
    let (update_form, mut update_shape, update_lengths, lengths) = if u.arbitrary()? {
        let mut totals = vec![0_i32];
        for _ in 0..count(u, batch)? {
            let rows = if u.ratio(1, 32)? { u.arbitrary()? } else { u.int_in_range(0..=capacity as i32)? };
            totals.push(totals[totals.len() - 1].wrapping_add(rows));
        }
        if u.ratio(1, 32)? {
            totals.remove(0);
        }
        let tokens = totals.last().copied().filter(|tokens| (0..100).contains(tokens)).unwrap_or(3);
        let update_shape = vec![tokens as usize, heads, size];
        (UpdateForm::Packed, update_shape, Some(totals), lengths(u, batch, 1)?)
    } else {
        let rows = u.int_in_range(0..=capacity)?;
        (UpdateForm::Padded, vec![batch, heads, rows, size], None, lengths(u, batch, rows)?)
    };
    spoil(u, &mut update_shape)?;
    spoil(u, &mut cache_shape)?;
    let operator = KvCacheUpdate { update_form, out_of_range };
    Ok((Call::KvCacheUpdate { operator, write_indices, update_lengths, lengths }, cache_shape, update_shape))
}

fn kv_cache_operation(u: &mut Unstructured<'_>) -> Result<(Call, Vec<usize>, Vec<usize>)> {
    let [layers, batch, heads, size] = [dimension(u)?, dimension(u)?, dimension(u)?, dimension(u)?];
    let capacity = u.int_in_range(0..=9)?;
    let mut past = vec![layers, batch, capacity, heads * size];
    let four_dimensions: bool = u.arbitrary()?;
    let rows = u.int_in_range(0..=capacity as i32)?;
    let seq_len = |u: &mut Unstructured<'_>| match u.int_in_range(0..=31)? {
        0 => u.arbitrary(),
        _ if four_dimensions => Ok(rows),
        _ => u.int_in_range(0..=capacity as i32),
    };
    let seq_len: Vec<_> = (0..count(u, batch)?).map(|_| seq_len(u)).collect::<Result<_>>()?;
    let tokens = seq_len.iter().map(|&rows| i64::from(rows)).sum::<i64>().clamp(0, 100) as usize;
    let mut new_kv =
        if four_dimensions { vec![batch, rows as usize, heads, size] } else { vec![tokens, heads * size] };
    let token_offset = |u: &mut Unstructured<'_>| {
        if u.ratio(1, 16)? { u.arbitrary() } else { u.int_in_range(0..=capacity as i32 + 1) }
    };
    let token_offset = (0..count(u, batch)?).map(|_| token_offset(u)).collect::<Result<_>>()?;
    let layer_id = match u.int_in_range(0..=31)? {
        0 => vec![],
        1 => vec![0, 0],
        2 => vec![u.arbitrary()?],
        _ => vec![u.int_in_range(0..=layers as i32)?],
    };
    let operator = KvCacheOperation { out_of_range: out_of_range(u)? };
    let lengths = lengths(u, batch, 1)?;
    spoil(u, &mut new_kv)?;
    spoil(u, &mut past)?;
    Ok((Call::KvCacheOperation { operator, layer_id, token_offset, seq_len, lengths }, past, new_kv))
}
