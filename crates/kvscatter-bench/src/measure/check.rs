//! Checks that an engine's result is correct.

use super::sampler::Lane;
use crate::case::Form;
use crate::expected::Reference;
use crate::report::Outcome;
use crate::scene::{KeysOrValues, Scene};

/// Runs an engine on freshly painted buffers and compares whole buffers. A cold case is checked in a later
/// step as well, because its positions move.
pub(super) fn check(scene: &mut Scene, lane: &mut Lane<'_>, reference: Reference) -> Result<(), Outcome> {
    let steps: &[usize] = if scene.case().parameters().temperature.is_cold() { &[0, 5] } else { &[0] };
    for &step in steps {
        scene.go_to(step);
        scene.repaint();
        lane.run.aim(scene.starts());
        let mut call = scene.call(0);
        let ran = lane.run.run(&mut call).and_then(|()| lane.run.publish(&mut call));
        ran.map_err(|cause| Outcome::Failed(cause.to_string()))?;
        compare(scene, lane, reference)
            .map_err(|difference| Outcome::Wrong(format!("step {step}: {difference}")))?;
    }
    scene.go_to(0);
    lane.run.aim(scene.starts());
    Ok(())
}

/// Compares whole buffers of the first layer.
fn compare(scene: &mut Scene, lane: &Lane<'_>, reference: Reference) -> Result<(), String> {
    let (case, starts) = (scene.case().clone(), scene.starts().to_vec());
    for side in KeysOrValues::of(&case) {
        let [cache, update] = scene.painted(side);
        let call = scene.call(0);
        let Some(tensor) = (match side {
            KeysOrValues::Keys => Some(call.keys),
            KeysOrValues::Values => call.values,
        }) else {
            continue;
        };
        same(tensor.update, &update).map_err(|difference| format!("update of {side}: {difference}"))?;
        match case.parameters().form {
            Form::InPlace => {
                let after = reference.after(&case, lane.task, &starts, cache, &update);
                same(tensor.cache, &after).map_err(|difference| format!("cache of {side}: {difference}"))?;
            }
            Form::Functional => {
                same(tensor.cache, &cache).map_err(|difference| format!("past: {difference}"))?;
                let after = reference.after(&case, lane.task, &starts, cache, &update);
                same(tensor.present, &after).map_err(|difference| format!("present: {difference}"))?;
            }
        }
    }
    Ok(())
}

fn same(is: &[u8], must: &[u8]) -> Result<(), String> {
    if is == must {
        return Ok(());
    }
    let wrong = || (0..is.len().min(must.len())).filter(|&byte| is[byte] != must[byte]);
    Err(match wrong().next() {
        None => format!("{} bytes, must be {}", is.len(), must.len()),
        Some(first) => format!(
            "byte {first} of {} is {:#04x}, must be {:#04x}; {} bytes differ",
            is.len(),
            is[first],
            must[first],
            wrong().count()
        ),
    })
}
