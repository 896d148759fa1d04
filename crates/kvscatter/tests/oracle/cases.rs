//! Tests the adversarial cases that run on every backend and surface.

use kvscatter::{ElementType, Error};
use kvscatter_oracle::cases::{Case, Expected, Random, Values, View, cases, tensor_scatter};

use crate::call::{error, is_reachable, plan, prepare, with_plan};
use crate::scene::Scene;
use crate::variants::Variant;
use crate::view::AsLayout;

/// Checks a case with its buffers as raw bytes or strings, for all 24 types, with every variant.
fn check(case: &Case) {
    if case.expected.as_ref().is_err_and(|refusal| !is_reachable(refusal)) {
        return;
    }
    let element = ElementType::from_name(case.elements[0].name).unwrap();
    let (cache, update) = (case.cache_shape.as_slice().into(), case.update_shape.as_slice().into());
    let prepared = prepare(&case.call, element, cache, update);
    let expected = case
        .expected
        .clone()
        .map_err(|refusal| error(&refusal, &case.call, &case.cache_shape, &case.update_shape, element));
    let run = |variant: Variant| {
        let prepared = variant.apply(prepared.as_ref().map_err(Clone::clone)?);
        let plan = plan(&prepared, &case.call)?;
        let (mut in_place, mut present) = (case.cache.clone(), case.cache.clone());
        let skipped = match (&mut in_place, &mut present, &case.cache, &case.update) {
            (Values::Bytes(in_place), Values::Bytes(present), Values::Bytes(past), Values::Bytes(update)) => {
                present.fill(0xEE);
                let _ = plan.write_present_bytes(past, update, present)?;
                plan.write_bytes(in_place, update)?.skipped
            }
            (
                Values::Strings(in_place),
                Values::Strings(present),
                Values::Strings(past),
                Values::Strings(update),
            ) => {
                present.fill("not written".to_owned());
                let _ = plan.write_present_cloned(past, update, present)?;
                plan.write_cloned(in_place, update)?.skipped
            }
            _ => unreachable!("{}", case.name),
        };
        assert_eq!(in_place, present, "{variant:?}, {case:?}");
        Ok(Expected { present: in_place, skipped })
    };
    for variant in Variant::for_small() {
        assert_eq!(run(variant), expected, "{variant:?}, {case:?}");
    }
}

#[test]
fn as_stored() {
    cases(0, 20_000).for_each(|case| check(&case));
    tensor_scatter(1, 20_000).for_each(|case| check(&case));
}

#[test]
fn at_other_places_in_memory() {
    let mut random = Random::new(0x5CA7, 1);
    for case in cases(2, 20_000) {
        let element = ElementType::from_name(case.elements[0].name).unwrap();
        let Case { call, cache_shape, update_shape, .. } = &case;
        if call.check_elements(case.elements).is_err() {
            continue;
        }
        if cache_shape.is_empty() || update_shape.is_empty() {
            continue;
        }
        let outcome = &call.run_on_origins(cache_shape, update_shape);
        let cache = View::strided(cache_shape, 2, &mut random);
        let update = View::broadcast(update_shape, 2, &mut random);
        // The core rejects layouts with more than three strided loops after the sequence.
        let checked = with_plan(call, element, cache.layout(), update.layout(), |_| Ok(()));
        if let Err(Error::TooManyLoops { loops }) = checked {
            assert!(loops > 3 && cache_shape.len() > 4, "{case:?}");
        } else {
            Scene { call, cache, update, outcome }.check(element);
        }
    }
}
