//! Makes attributes, shapes, masks and lengths of attention from the input, and chooses an instruction set and limits.
//! The crate and the oracle must agree on every element, or both must refuse the call. Executors must not change a bit.

#![no_main]

use arbitrary::{Result, Unstructured};
use half::{bf16, f16};
use kvscatter_attention::Scores;
use kvscatter_oracle::attention::{Array, Attention, Float, Inputs, Mask, Positions};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::cases::attention::AttentionCase;
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/kvscatter-attention/tests/oracle/bounds.rs"]
mod bounds;
#[path = "../../crates/kvscatter-attention/tests/oracle/call.rs"]
#[expect(dead_code, reason = "ranks are compared elsewhere")]
mod call;
#[path = "../../crates/kvscatter-attention/tests/oracle/element.rs"]
mod element;
#[path = "../../crates/kvscatter-attention/tests/oracle/executors.rs"]
mod executors;
#[path = "../../crates/kvscatter-attention/tests/oracle/laid.rs"]
mod laid;
#[path = "../../crates/kvscatter-attention/tests/oracle/scene.rs"]
mod scene;
#[path = "../../crates/kvscatter-attention/tests/oracle/variants.rs"]
mod variants;

use element::Element;
use scene::Ways;
use variants::Variant;

fuzz_target!(|bytes: &[u8]| {
    // `Unstructured` reads zeros after the end of the input, so there is no error worth reporting.
    let _ = run(&mut Unstructured::new(bytes));
});

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let variant = *u.choose(&Variant::for_short())?;
    let case = case(u)?;
    match case.expected() {
        Ok(_) => {
            scene::check(&case, Ways::Two, &[variant]);
            let seed = u.arbitrary()?;
            match case.inputs.element {
                Float::F32 => check_layouts::<f32>(&case, variant, seed),
                Float::F16 => check_layouts::<f16>(&case, variant, seed),
                Float::Bf16 => check_layouts::<bf16>(&case, variant, seed),
            }
        }
        Err(_) => match case.inputs.element {
            Float::F32 => check_refused::<f32>(&case),
            Float::F16 => check_refused::<f16>(&case),
            Float::Bf16 => check_refused::<bf16>(&case),
        },
    }
    Ok(())
}

/// Checks that strides and blocks do not change a bit.
fn check_layouts<T: Element>(case: &AttentionCase, variant: Variant, seed: u64) {
    let is_ring = matches!(case.inputs.positions, Positions::Ring(_));
    let op = call::operator(&case.attention, &case.inputs.positions);
    let (Some(op), Some(operands)) = (op, call::Operands::<T>::new(&case.inputs)) else { return };
    if operands.past.is_some() {
        return;
    }
    let (r, operands) = (&mut Random::new(seed, 0), operands.by_head(&op));
    let Ok(expected) = operands.run_as(variant, &op) else { return };
    assert!(laid::are_same(&operands.run_strided(r, variant, &op), &expected.y), "{case:?}");
    if !is_ring {
        assert!(laid::are_same(&operands.run_in_blocks(r, variant, &op), &expected.y), "{case:?}");
    }
}

/// Checks that the crate refuses what the oracle refuses, unless its types cannot express the call.
fn check_refused<T: Element>(case: &AttentionCase) {
    let (op, scores) = (
        call::operator(&case.attention, &case.inputs.positions),
        Scores::from_mode(case.attention.qk_matmul_output_mode),
    );
    if let (Some(op), Some(_), Some(operands)) = (op, scores, call::Operands::<T>::new(&case.inputs)) {
        assert!(operands.run(&op).is_err(), "{case:?}");
    }
}

fn case(u: &mut Unstructured<'_>) -> Result<AttentionCase> {
    let element = *u.choose(&Float::ALL)?;
    let dimension = |u: &mut Unstructured<'_>, most| u.int_in_range(0..=most);
    let (batch, kv_heads, group) = (dimension(u, 3)?, dimension(u, 3)?, dimension(u, 4)?);
    let q_heads = kv_heads * group;
    let (queries, keys) = (dimension(u, 5)?, dimension(u, 40)?);
    let (head_size, value_size) = (u.int_in_range(1..=36)?, dimension(u, 36)?);
    let flat = q_heads > 0 && u.arbitrary()?;
    let past = if u.ratio(1, 4)? { Some(dimension(u, 20)?) } else { None };
    let total = keys + past.unwrap_or(0);
    let positions = match u.int_in_range(0..=5)? {
        0 | 1 => Positions::Full,
        2 | 3 => Positions::Lengths(tokens(u, batch, keys as i64, keys as i64)?),
        _ => Positions::Ring(tokens(u, batch, 4 * keys as i64 + 4, i64::MAX)?),
    };
    let bound = |u: &mut Unstructured<'_>| {
        if u.ratio(1, 16)? { u.arbitrary() } else { u.int_in_range(-1..=total as i64 + 1) }
    };
    let windows = if u.arbitrary()? { [-1, -1] } else { [bound(u)?, bound(u)?] };
    let attention = Attention {
        is_causal: u.arbitrary()?,
        scale: *u.choose(&[None, Some(0.0), Some(0.25), Some(1.0)])?,
        softcap: *u.choose(&[0.0, 0.0, -1.0, 0.5, 20.0])?,
        q_num_heads: flat.then_some(q_heads as i64),
        kv_num_heads: flat.then_some(kv_heads as i64),
        qk_matmul_output_mode: u.int_in_range(0..=3)?,
        softmax_precision: None,
        left_window_size: windows[0],
        right_window_size: windows[1],
    };
    let spoiled = |u: &mut Unstructured<'_>, mut shape: Vec<usize>| {
        spoil(u, &mut shape)?;
        Ok(shape)
    };
    let shape = |u: &mut Unstructured<'_>, heads, rows, size| {
        spoiled(u, if flat { vec![batch, rows, heads * size] } else { vec![batch, heads, rows, size] })
    };
    let (q, k, v) = (
        shape(u, q_heads, queries, head_size)?,
        shape(u, kv_heads, keys, head_size)?,
        shape(u, kv_heads, keys, value_size)?,
    );
    let mask = if u.arbitrary()? { None } else { Some(mask(u, element, [batch, q_heads, queries, total])?) };
    let past = |u: &mut Unstructured<'_>, size| match past {
        Some(past) => spoiled(u, vec![batch, kv_heads, past, size]).map(Some),
        None => Ok(None),
    };
    let (past_key, past_value) = (past(u, head_size)?, past(u, value_size)?);
    let mut paint = Paint { element, state: u.arbitrary()? };
    let inputs = Inputs {
        element,
        q: paint.array(&q),
        k: paint.array(&k),
        v: paint.array(&v),
        mask,
        past_key: past_key.map(|shape| paint.array(&shape)),
        past_value: past_value.map(|shape| paint.array(&shape)),
        positions,
    };
    Ok(AttentionCase { name: "fuzz".to_owned(), attention, inputs, painted: false })
}

/// Returns one number for each sample, usually in the range `0..=usual`.
fn tokens(u: &mut Unstructured<'_>, batch: usize, usual: i64, most: i64) -> Result<Vec<i64>> {
    let count = if u.ratio(1, 16)? { u.int_in_range(0..=4)? } else { batch };
    let number = |u: &mut Unstructured<'_>| match u.int_in_range(0..=31)? {
        0 => u.arbitrary(),
        1 => Ok(*u.choose(&[-1, most, most.saturating_add(1), i64::MIN])?),
        _ => u.int_in_range(0..=usual),
    };
    (0..count).map(|_| number(u)).collect()
}

/// Occasionally changes the size of a dimension, or the number of dimensions.
fn spoil(u: &mut Unstructured<'_>, shape: &mut Vec<usize>) -> Result<()> {
    match u.int_in_range(0..=63)? {
        0 => shape.push(1),
        1 => drop(shape.pop()),
        2 | 3 if !shape.is_empty() => {
            let spoiled = u.choose_index(shape.len())?;
            shape[spoiled] = u.int_in_range(0..=5)?;
        }
        _ => {}
    }
    Ok(())
}

/// Returns a mask that usually fits scores of this shape.
fn mask(u: &mut Unstructured<'_>, element: Float, full: [usize; 4]) -> Result<Mask> {
    let mut shape = full.to_vec();
    for dimension in &mut shape[..3] {
        if u.arbitrary()? {
            *dimension = 1;
        }
    }
    if u.ratio(1, 3)? {
        shape[3] = u.int_in_range(0..=full[3])?;
    }
    shape.drain(..u.int_in_range(0..=3)?);
    spoil(u, &mut shape)?;
    let count: usize = shape.iter().product();
    Ok(if u.arbitrary()? {
        let data = (0..count).map(|_| u.arbitrary()).collect::<Result<_>>()?;
        Mask::Bool(Array::new(data, &shape))
    } else {
        let options = [0.0, 0.0, -1.5, 2.0, f64::NEG_INFINITY, element.lowest()];
        let data = (0..count).map(|_| u.choose(&options).copied()).collect::<Result<_>>()?;
        Mask::Float(Array::new(data, &shape))
    })
}

/// A generator of numbers between -1 and 1, because values would need most of an input.
struct Paint {
    element: Float,
    state: u32,
}

impl Paint {
    fn array(&mut self, shape: &[usize]) -> Array<f64> {
        let count: usize = shape.iter().product();
        let data = (0..count).map(|_| self.number()).collect();
        Array::new(data, shape)
    }

    fn number(&mut self) -> f64 {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.element.round(f64::from(self.state >> 8) / f64::from(1 << 23) - 1.0)
    }
}
