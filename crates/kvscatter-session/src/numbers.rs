//! Scores as numbers, and the best of them.

use half::{bf16, f16};
use kvscatter::ElementType;

/// Logits as numbers; `None` for a type that has none.
#[must_use]
pub fn to_f32(element: ElementType, bytes: &[u8]) -> Option<Vec<f32>> {
    Some(match element {
        ElementType::Float32 => bytes.as_chunks().0.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect(),
        ElementType::Float16 => {
            bytes.as_chunks().0.iter().map(|&chunk| f16::from_le_bytes(chunk).to_f32()).collect()
        }
        ElementType::BFloat16 => {
            bytes.as_chunks().0.iter().map(|&chunk| bf16::from_le_bytes(chunk).to_f32()).collect()
        }
        #[expect(clippy::cast_possible_truncation, reason = "compared at the precision of the others")]
        ElementType::Float64 => {
            bytes.as_chunks().0.iter().map(|&chunk| f64::from_le_bytes(chunk) as f32).collect()
        }
        _ => return None,
    })
}

/// The entry with the highest score, the first of equal ones; 0 if none is a number.
#[must_use]
pub fn most_likely(scores: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (entry, &score) in scores.iter().enumerate() {
        if score > best.1 {
            best = (entry, score);
        }
    }
    best.0
}
