//! Cases of ONNX `Attention`, and of attention over rings.
//!
//! - [`random`] generates cases of every kind that break no rule.
//! - [`refused`] generates calls that must be refused.
//! - [`exhaustive`] generates every call of a small domain.
//!
//! ```
//! use kvscatter_oracle::cases::attention;
//!
//! for case in attention::random(1, 10) {
//!     let (q, mask) = (&case.inputs.q, &case.inputs.mask);
//!     println!("{}: {:?} {:?}, {:?}", case.name, case.inputs.element, q.shape, mask.as_ref().map(|m| m.shape()));
//!     assert!(case.expected().is_ok());
//! }
//! ```

mod case;
mod draft;
mod exhaustive;
mod mask;
mod refused;
mod themes;

pub use self::case::AttentionCase;
pub use self::draft::{paint, paint_for_row};
pub use self::exhaustive::exhaustive;
use super::Random;
use crate::attention::Float;

/// Returns `count` cases that break no rule. Case `n` depends only on `seed` and `n`. All pairs of a theme and
/// an element type occur before a pair occurs again.
pub fn random(seed: u64, count: usize) -> impl Iterator<Item = AttentionCase> {
    (0..count).map(move |n| random_case(seed, n))
}

fn random_case(seed: u64, n: usize) -> AttentionCase {
    let (theme, make_up) = themes::THEMES[n % themes::THEMES.len()];
    let element = Float::ALL[(n + n / themes::THEMES.len()) % Float::ALL.len()];
    let r = &mut Random::new(seed, n);
    let draft = make_up(r, element);
    draft.finish(r, format!("{n:05}_attention_{theme}"))
}

/// Returns `count` calls that break one rule each. Case `n` depends only on `seed` and `n`.
pub fn refused(seed: u64, count: usize) -> impl Iterator<Item = AttentionCase> {
    (0..count).map(move |n| {
        let (theme, break_it) = refused::THEMES[n % refused::THEMES.len()];
        let r = &mut Random::new(seed, n);
        let element = r.pick(&Float::ALL);
        let mut case = refused::plain(r, element).finish(r, format!("{n:05}_attention_refused_{theme}"));
        break_it(r, &mut case);
        case
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::super::tests::variant_name;
    use super::{AttentionCase, exhaustive, random, refused, themes};
    use crate::attention::{Float, Inputs, Mask, Positions};

    /// A number of cases that pairs every theme with every type.
    const ROUNDS: usize = themes::THEMES.len() * 3;

    #[test]
    fn the_same_seed_gives_the_same_cases_however_many_are_asked_for() {
        // NaN differs from itself, so the text is compared.
        let describe = |case: AttentionCase| format!("{case:?}");
        let few: Vec<_> = random(7, 40).map(describe).collect();
        let many: Vec<_> = random(7, 60).take(40).map(describe).collect();
        assert_eq!(few, many);
        assert_ne!(few, random(8, 40).map(describe).collect::<Vec<_>>());
    }

    #[test]
    fn random_cases_break_no_rule_and_what_is_painted_has_no_influence() {
        let mut painted = 0;
        for case in random(1, 2 * ROUNDS) {
            let outputs = case.expected().unwrap();
            assert!(outputs.y.data.iter().all(|y| y.is_finite()), "{}", case.name);
            let Inputs { element, q, k, v, .. } = &case.inputs;
            let values = [q, k, v].into_iter().flat_map(|input| &input.data);
            assert!(values.clone().all(|&value| value.is_nan() || element.round(value) == value));
            painted += usize::from(values.clone().any(|value| !value.is_finite()));
        }
        assert!(painted > ROUNDS);
    }

    #[test]
    fn the_tolerance_follows_the_values_and_the_type() {
        let case = random(1, 1).next().unwrap();
        let tolerance = |element, value| {
            let mut case = case.clone();
            (case.inputs.element, case.inputs.past_value) = (element, None);
            case.inputs.v.data.fill(value);
            case.tolerance(1.0)
        };
        assert_eq!(tolerance(Float::F32, -3.0), 6e-6);
        assert_eq!(tolerance(Float::F16, 0.0), 2f64.powi(-10));
        assert_eq!(tolerance(Float::F32, f64::NAN), 0.0);
    }

    #[test]
    fn every_rule_is_broken() {
        let broken: BTreeSet<_> =
            refused(2, 1000).map(|case| variant_name(&case.expected().expect_err(&case.name))).collect();
        let rules = "Dimension Groups Heads HeadsMissing Length LengthCount MaskDimension MaskRank Mode PastAlone \
            PastRank PastWithLengths Ranks Scale SoftmaxPrecision Window";
        assert_eq!(Vec::from_iter(broken).join(" "), rules);
    }

    #[test]
    fn masks_have_every_rank_and_repeat_every_dimension() {
        let masks: Vec<_> = random(3, 10 * ROUNDS).filter_map(|case| case.inputs.mask).collect();
        let is_bool = |mask: &Mask| matches!(mask, Mask::Bool(_));
        let shapes: HashSet<_> = masks
            .iter()
            .map(|mask| {
                let shape = mask.shape();
                (is_bool(mask), shape[..shape.len() - 1].iter().map(|&size| size == 1).collect::<Vec<_>>())
            })
            .collect();
        // 1 + 2 + 4 + 8 ways to repeat the dimensions before the last, for two kinds of masks.
        assert_eq!(shapes.len(), 30);
        for element in Float::ALL {
            let lowest = |mask: &Mask| matches!(mask, Mask::Float(m) if m.data.contains(&element.lowest()));
            assert!(masks.iter().any(lowest), "{element:?}");
        }
    }

    #[test]
    fn names_are_unique_and_operator_sets_are_the_first_that_can_express_a_case() {
        let cases: Vec<_> = random(4, ROUNDS).collect();
        let names: HashSet<_> = cases.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), ROUNDS);
        assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')));
        let sets: HashSet<_> = cases.iter().map(AttentionCase::operator_set).collect();
        assert_eq!(sets, [None, Some(23), Some(24), Some(25)].into());
        let rings = cases.iter().filter(|case| matches!(case.inputs.positions, Positions::Ring(_)));
        assert!(rings.count() >= 12);
    }

    #[test]
    fn the_small_domain_breaks_no_rule() {
        let mut count = 0;
        for case in exhaustive() {
            count += 1;
            assert!(case.expected().is_ok(), "{case:?}");
        }
        // The masks of 0 to 3 slots are 2, 3, 5 and 9. A past of 0 to 2 rows is in front of them.
        let masks = |slots: u32| 1 + 2usize.pow(slots);
        let calls = |batch, most: usize| -> usize {
            let past = |keys| [0, 0, 1, 2].map(|past| masks(keys + past)).iter().sum::<usize>();
            let lengths = |keys: u32| (keys as usize + 1).pow(batch) + (most + 1).pow(batch);
            (0..=3).map(|keys| past(keys) + lengths(keys) * masks(keys)).sum()
        };
        assert_eq!(count, (calls(1, 7) + calls(2, 4)) * 3 * 32);
    }
}
