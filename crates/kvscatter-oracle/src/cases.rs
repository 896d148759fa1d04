//! The cases that every backend and surface is tested on. They are adversarial and deterministic. All
//! elements are painted differently, so that swapped blocks cannot cancel out.
//!
//! - [`cases`] generates cases of all three operators, and [`stretched`] one with more rows and slots.
//! - [`tensor_scatter`] generates the cases that an ONNX model can express.
//! - [`exhaustive`] generates every `TensorScatter` of a small domain, in index space.
//! - [`attention`] generates cases of ONNX `Attention`, and [`paged`] those of paged caches.

pub mod attention;
mod call;
mod draft;
mod element;
mod exhaustive;
mod kv_cache_operation;
mod kv_cache_update;
pub mod paged;
mod placed;
mod random;
mod tensor_scatter;
mod values;
mod view;

pub use call::Call;
pub use element::Element;
pub use exhaustive::{SmallCase, exhaustive, exhaustive_extensions};
pub use placed::{After, Placed};
pub use random::Random;
pub use values::{Origin, Values};
pub use view::View;

use self::draft::{Draft, Theme};
use crate::{Outcome, Refusal, size};

/// One call of one operator on painted data, with the expected result.
#[derive(Clone, Debug)]
pub struct Case {
    /// A name that is unique within the generator and describes what is adversarial. It consists of letters,
    /// digits and `_`.
    pub name: String,
    /// The operator with all its attributes, and every input except the two tensors.
    pub call: Call,
    /// The element types of the cache and of the update. They differ only in cases that test differing types.
    pub elements: [&'static Element; 2],
    /// The shape of the cache.
    pub cache_shape: Vec<usize>,
    /// The shape of the update.
    pub update_shape: Vec<usize>,
    /// The cache before the call, in its storage format.
    pub cache: Values,
    /// The update, in its storage format.
    pub update: Values,
    /// The cache after the call, or the reason why the call leaves it unchanged.
    pub expected: Result<Expected, Refusal>,
}

/// The result of a call that does not break a rule, in its storage format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The cache after the write.
    pub present: Values,
    /// The number of samples left unchanged.
    pub skipped: usize,
}

/// Returns `count` cases of all three operators, including kvscatter extensions. Case `n` depends only on
/// `seed` and `n`.
pub fn cases(seed: u64, count: usize) -> impl Iterator<Item = Case> {
    let operators = [
        ("tensor_scatter", tensor_scatter::THEMES),
        ("tensor_scatter", tensor_scatter::EXTENDED_THEMES),
        ("kv_cache_update", kv_cache_update::THEMES),
        ("kv_cache_operation", kv_cache_operation::THEMES),
    ];
    generate(&operators, seed, count)
}

/// Returns `count` cases of ONNX `TensorScatter` without kvscatter extensions.
pub fn tensor_scatter(seed: u64, count: usize) -> impl Iterator<Item = Case> {
    generate(&[("tensor_scatter", tensor_scatter::THEMES)], seed, count)
}

/// Returns a case of any operator that breaks no rule, with up to 20 rows and 40 slots more than in
/// [`cases`].
#[must_use]
pub fn stretched(seed: u64) -> Case {
    let all = [tensor_scatter::THEMES, tensor_scatter::EXTENDED_THEMES, kv_cache_update::THEMES];
    let all = all.into_iter().chain([kv_cache_operation::THEMES]).flatten();
    let themes: Vec<_> = all.filter(|(theme, _)| !theme.starts_with("refused_")).collect();
    let r = &mut Random::new(seed, 0);
    let ((theme, make_up), element) = (r.pick(&themes), &Element::all()[r.below(Element::all().len())]);
    make_up(r, element).stretched(r).finish(format!("{seed}_stretched_{theme}"))
}

/// Generates cases of operators with their themes. All pairs of a theme and an element type occur before a
/// pair occurs again.
fn generate(
    operators: &[(&'static str, &'static [Theme])],
    seed: u64,
    count: usize,
) -> impl Iterator<Item = Case> + use<> {
    let all = |&(operator, themes): &(_, &'static [Theme])| themes.iter().map(move |theme| (operator, theme));
    let themes: Vec<_> = operators.iter().flat_map(all).collect();
    (0..count).map(move |n| {
        let (operator, (theme, make_up)) = themes[n % themes.len()];
        let element = &Element::all()[(n + n / themes.len()) % Element::all().len()];
        make_up(&mut Random::new(seed, n), element).finish(format!("{n:05}_{operator}_{theme}"))
    })
}

impl Draft {
    fn finish(self, name: String) -> Case {
        let Self { call, elements, cache_shape, update_shape } = self;
        let (cache_len, update_len) = (size(&cache_shape), size(&update_shape));
        let cache = Values::painted(elements[0], 0, cache_len);
        let update = Values::painted(elements[1], cache_len, update_len);
        Case::new(name, call, elements, [cache_shape, update_shape], [cache, update])
    }
}

impl Case {
    /// Runs the oracle on a call. Types, shapes and values are those of the cache and of the update.
    pub(crate) fn new(
        name: String,
        call: Call,
        elements: [&'static Element; 2],
        [cache_shape, update_shape]: [Vec<usize>; 2],
        [cache, update]: [Values; 2],
    ) -> Self {
        let expected = call
            .check_elements(elements)
            .and_then(|()| call.run_on_origins(&cache_shape, &update_shape))
            .map(|Outcome { present, skipped }| Expected {
                present: Values::gathered(elements[0], &present, &cache, &update),
                skipped,
            });
        Self { name, call, elements, cache_shape, update_shape, cache, update, expected }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};
    use std::fmt::Debug;

    use super::{Case, Element, cases, stretched, tensor_scatter};

    /// A number of cases that pairs every theme with every type.
    const ROUNDS: usize = 24 * 80;

    /// Returns the name of a rule without the numbers.
    pub(crate) fn variant_name(rule: &impl Debug) -> String {
        format!("{rule:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_cases_however_many_are_asked_for() {
        let describe = |case: Case| format!("{case:?}");
        let few: Vec<_> = cases(7, 100).map(describe).collect();
        let many: Vec<_> = cases(7, 200).take(100).map(describe).collect();
        let other: Vec<_> = cases(8, 100).map(describe).collect();
        assert_eq!(few, many);
        assert_ne!(few, other);
    }

    #[test]
    fn a_theme_of_refusals_is_refused_and_the_others_are_not() {
        for case in cases(1, ROUNDS).chain(tensor_scatter(2, ROUNDS)) {
            let refused = case.name.contains("_refused_");
            assert_eq!(case.expected.is_err(), refused, "{case:?}");
        }
        for case in (0..2_000).map(stretched) {
            assert!(case.expected.is_ok(), "{case:?}");
        }
    }

    #[test]
    fn every_type_is_written_and_every_rule_is_broken() {
        let mut written = HashSet::new();
        let mut broken = BTreeSet::new();
        for case in cases(3, ROUNDS) {
            match &case.expected {
                Ok(expected) if expected.present != case.cache => {
                    written.insert(case.elements[0].name);
                }
                Ok(_) => {}
                Err(refusal) => {
                    broken.insert(variant_name(refusal));
                }
            }
        }
        assert_eq!(written.len(), Element::all().len());
        let rules = "Axis CacheRank Dimension IndexCount LayerId Length Mode NegativeStart OutOfRange SeqLen \
            SeqLenTotal TypesDiffer UnsupportedType UpdateBatch UpdateLengthsDecrease UpdateLengthsFirst \
            UpdateLengthsMissing UpdateLengthsTooLong UpdateLengthsTotal UpdateLengthsUnexpected UpdateRank \
            UpdateTooLong";
        assert_eq!(Vec::from_iter(broken).join(" "), rules);
    }

    #[test]
    fn names_are_unique_and_fit_a_file_name() {
        let names: HashSet<_> = cases(4, ROUNDS).map(|case| case.name).collect();
        assert_eq!(names.len(), ROUNDS);
        assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')));
    }
}
