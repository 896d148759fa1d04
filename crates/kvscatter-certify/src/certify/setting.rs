//! The sizes that a model is certified with. They come from the options, from defaults and from the memory
//! limit.

use std::collections::BTreeSet;

use kvscatter_session::{self as session, Interface, Purpose};

use crate::drive::rings::TURNS;
use crate::drive::scenarios::ScenarioSetting;
use crate::drive::texts;
use crate::{CertifyError, CertifyOptions};

/// The default prompts, one for each sample of the default batch. The shortest is neither the first nor the
/// last, so that the order of the samples matters.
const PROMPTS: [usize; 3] = [7, 3, 5];

/// The longest of the default prompts.
const PROMPT: usize = PROMPTS[0];

/// The default number of decode steps.
const STEPS: usize = 16;

/// The default size of the largest chunk, in tokens.
const CHUNK: usize = 4;

/// The approximate number of steps that fill a cache to its end.
const FILLING_STEPS: usize = 32;

/// The number of copies of the caches that a scenario needs: two in place, with zeros and with canaries, one from
/// before the step, and one out of place.
const COPIES: usize = 4;

/// The number of copies of the states that a scenario needs: two in place and one out of place, each before and after a
/// step.
const STATE_COPIES: usize = 6;

/// The bytes for each slot of each sample besides the caches: its element of a mask, and the record of its
/// canary. A ring has no mask.
const BESIDE_A_SLOT: usize = 16;

/// Returns the sizes that the scenarios run with: the given options if the model allows them, and defaults
/// that fit the model.
pub(super) fn setting(
    options: &CertifyOptions,
    interface: &Interface,
    of_original: Option<&Interface>,
    sees_positions: bool,
) -> Result<ScenarioSetting, CertifyError> {
    let batch = match (options.prompts.as_ref().map(Vec::len), options.batch) {
        (Some(prompts), Some(batch)) if prompts != batch => {
            return Err(CertifyError::PromptCount { prompts, batch });
        }
        (asked, also) => interface.batch_or(asked.or(also))?.unwrap_or(PROMPTS.len()),
    };
    let capacity = interface.capacity_or(options.capacity)?.ok_or(session::SessionError::CapacityOpen)?;
    let capacity = working_capacity(options, interface, of_original, capacity)?;
    if batch == 0 || capacity < 2 {
        return Err(CertifyError::TooSmall { batch, capacity });
    }
    let memory = check_caches(options, interface, batch, capacity)?;
    let prompts = options.prompts.clone().unwrap_or_else(|| {
        let usual = PROMPTS.iter().cycle().take(batch);
        usual.map(|&prompt| prompt.min(capacity / 2)).collect()
    });
    let longest = prompts.iter().max().copied().unwrap_or_default();
    let steps = options.steps.unwrap_or_else(|| STEPS.min(capacity.saturating_sub(longest)));
    if prompts.contains(&0) || longest.checked_add(steps).is_none_or(|slots| slots > capacity) {
        return Err(CertifyError::PromptTooLong { longest, steps, capacity });
    }
    let rings: Vec<_> = interface.rings().collect::<BTreeSet<_>>().into_iter().collect();
    let most_rows = interface.most_rows();
    let chunk = options.chunk.unwrap_or(CHUNK).max(1).min(most_rows);
    let has_linear = interface.has_linear();
    // A ring's mask shows padding by the positions.
    let shows_padding = interface.takes(Purpose::Mask) || (sees_positions && !has_linear);
    let setting = ScenarioSetting {
        steps,
        capacity,
        chunk,
        filler: capacity.div_ceil(FILLING_STEPS).max(chunk).min(most_rows),
        rings,
        has_linear,
        is_batch_fixed: interface.batch.is_some(),
        can_pad_left: shows_padding && interface.takes(Purpose::Positions) && interface.states.is_empty(),
        is_decode_only: interface.is_decode_only,
        writer: interface.writer(),
        refuses_padding: interface.refuses_padding,
        has_states: !interface.states.is_empty(),
        prompts,
    };
    check_logits(memory, interface, &setting)?;
    Ok(setting)
}

/// Returns the number of tokens that the scenarios have at most. It is `capacity`, except for a model whose caches are
/// all rings, because that model may take as many tokens as there are positions.
fn working_capacity(
    options: &CertifyOptions,
    interface: &Interface,
    of_original: Option<&Interface>,
    capacity: usize,
) -> Result<usize, CertifyError> {
    // A mask has as many slots as the model takes tokens.
    if interface.has_linear() || interface.takes(Purpose::Mask) {
        return Ok(capacity);
    }
    let largest = interface.rings().map(|ring| ring.capacity).max().unwrap_or_default();
    let prompt = options.prompts.iter().flatten().max().copied().unwrap_or(PROMPT);
    let wanted = prompt.saturating_add(options.steps.unwrap_or(STEPS));
    let wanted = largest.saturating_mul(TURNS + 1).max(wanted).max(largest.saturating_mul(TURNS) + PROMPT);
    // An original with linear caches has room for fewer tokens.
    let of_original = of_original.map(Interface::capacity).transpose()?.flatten().unwrap_or(capacity);
    Ok(wanted.min(of_original).min(capacity))
}

/// Returns the number of slots of an original's caches, for scenarios of `capacity` tokens.
pub(super) fn original_capacity(interface: &Interface, capacity: usize) -> Result<usize, CertifyError> {
    let most = interface.capacity()?.unwrap_or(capacity);
    Ok(if interface.has_linear() || interface.takes(Purpose::Mask) { most } else { capacity })
}

/// The bytes that are needed at once, and their limit.
pub(super) struct MemoryBudget {
    needed: Option<usize>,
    limit: u64,
}

impl MemoryBudget {
    fn add(&mut self, bytes: Option<usize>) {
        self.needed = self.needed.zip(bytes).and_then(|(needed, bytes)| needed.checked_add(bytes));
    }

    fn check(&self) -> Result<(), CertifyError> {
        let needed = self.needed.and_then(|needed| u64::try_from(needed).ok());
        match needed.filter(|needed| *needed <= self.limit) {
            Some(_) => Ok(()),
            None => Err(session::SessionError::MemoryLimit { needed, limit: self.limit }.into()),
        }
    }
}

/// Checks that the caches, states, masks, records of canaries and texts of encoders are within the memory limit. This
/// check comes before any allocation because an untrusted file declares the batch and capacity.
pub(super) fn check_caches(
    options: &CertifyOptions,
    interface: &Interface,
    batch: usize,
    capacity: usize,
) -> Result<MemoryBudget, CertifyError> {
    let mut memory = MemoryBudget { needed: Some(0), limit: options.memory };
    let kinds = interface.rings().map(|ring| ring.capacity).collect::<BTreeSet<_>>();
    for capacity in kinds.into_iter().chain([capacity]) {
        memory.add(batch.checked_mul(capacity).and_then(|slots| slots.checked_mul(BESIDE_A_SLOT)));
    }
    for cache in &interface.caches {
        let bytes = cache.element.storage_len(&cache.shape(batch, capacity));
        memory.add(bytes.and_then(|bytes| bytes.checked_mul(COPIES)));
    }
    for state in &interface.states {
        let bytes = state.element.storage_len(&state.shape(batch));
        memory.add(bytes.and_then(|bytes| bytes.checked_mul(STATE_COPIES)));
    }
    for port in &interface.encoder {
        let bytes = port.element.storage_len(&port.shape(batch, texts::length(interface)));
        memory.add(bytes.and_then(|bytes| bytes.checked_mul(COPIES)));
    }
    memory.check()?;
    Ok(memory)
}

/// Checks that the expected logits of each sequence are within the limit as well.
fn check_logits(
    mut memory: MemoryBudget,
    interface: &Interface,
    setting: &ScenarioSetting,
) -> Result<(), CertifyError> {
    let tokens =
        setting.prompts.iter().try_fold(setting.tail().saturating_add(setting.around()), |tokens, prompt| {
            tokens.checked_add(prompt.checked_add(setting.steps)?)
        });
    let bytes = interface.vocabulary.unwrap_or_default().checked_mul(size_of::<f32>());
    memory.add(tokens.zip(bytes).and_then(|(tokens, bytes)| tokens.checked_mul(bytes)));
    memory.check()
}
