//! Cases of ONNX `Attention` with special values, or with masks that are too long to be read.

use super::attend::Attend;
use super::case::CorpusCase;
use crate::attention::Array;

pub(super) fn cases() -> Vec<CorpusCase> {
    let (boolean, scores) = ("attention-boolean-mask", "attention-scores");
    vec![
        first_slots([511, 512, 513]).case(
            boolean,
            "512-slots",
            "No lengths: the mask shows the first 511, 512 and 513 slots.",
        ),
        first_slots([1023, 1024, 1025]).case(
            boolean,
            "1024-slots",
            "No lengths: the mask shows the first 1023, 1024 and 1025 slots.",
        ),
        Attend::read("computed sizes=[1,1,4] size=2 lengths=[4]")
            .with(|inputs| inputs.k.data.iter_mut().for_each(|key| *key *= 400.0))
            .case(
                scores,
                "large-scores",
                "The exponentials of the scores overflow, unless the largest score is subtracted first.",
            ),
        Attend::read("seen sizes=[1,1,4] lengths=[2]")
            .with(|inputs| inputs.k.data.fill(-2_f64.powi(126)))
            .case(
                scores,
                "lowest-scores",
                "The visible scores are close to the lowest number, and still above every hidden slot.",
            ),
        Attend::read("seen sizes=[2,1,4] lengths=[1,2]")
            .with(|inputs| {
                inputs.past_key = Some(Array::new(vec![0.0; 4], &[2, 1, 1, 2]));
                inputs.past_value = Some(Array::new(vec![0.0; 2], &[2, 1, 1, 1]));
            })
            .case(
                "attention-refused-lengths",
                "refused-with-past",
                "There is a past, and there are lengths.",
            ),
    ]
}

/// A call of three samples whose mask shows the first slots, up to the largest number of them.
fn first_slots(shown: [usize; 3]) -> Attend {
    let slots = shown.into_iter().fold(0, usize::max);
    let rows = shown.map(|shown| "x".repeat(shown) + &"-".repeat(slots - shown)).join("/");
    Attend::read(&format!("counted sizes=[3,1,{slots}] size=1 mask=[3,1,1,{slots}]:{rows}"))
}
