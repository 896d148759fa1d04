//! Keys, values, scores or weights are multiplied.

use super::super::site::{Factor, Mask};
use super::super::walk::{NextOrNone, Reading, State, Walk};

/// The smallest factor by which masked scores may be multiplied. With this factor, a hidden score is still
/// far below every visible one.
const MIN_MASK_FACTOR: f64 = 1.0 / 32.0;

/// A factor after a mask must be at most 1, so that hidden scores stay finite. It must not be too small, and at
/// most one may differ from 1, so that hidden scores stay hidden.
pub(super) fn scaled<'m>(walk: &mut Walk<'_, 'm>, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
    let divides = reading.node.is("Div");
    let Some(slot) = reading.slot_of_only().filter(|&slot| slot == 0 || (slot == 1 && !divides)) else {
        return Ok(None);
    };
    let value = reading.other(slot);
    let Some(state) = reading.state(slot) else { return Ok(None) };
    if walk.spans_slots(value)? {
        return Ok(None);
    }
    let Some(mut scaled) = state.times(Factor { value, divides }) else { return Ok(None) };
    if let State::Scores(scores) = &mut scaled
        && !scores.masks.is_empty()
    {
        let factor = |by: f64| if divides { by.recip() } else { by };
        let by = walk.fold.value(value)?.as_floats().unwrap_or(&[f64::NAN]);
        let is_one = by.iter().all(|&by| factor(by) == 1.0);
        let is_allowed = by.iter().all(|&by| (MIN_MASK_FACTOR..=1.0).contains(&factor(by)))
            && (is_one || scores.masks.iter().all(|mask| !mask.is_scaled));
        if !is_allowed {
            return walk.decline("masked scores may be multiplied once, by a factor from 1/32 to 1");
        }
        scores.masks.iter_mut().for_each(|mask: &mut Mask<'m>| mask.is_scaled |= !is_one);
    }
    walk.moved(reading.node, scaled)
}
