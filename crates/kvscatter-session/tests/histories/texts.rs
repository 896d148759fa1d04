//! Texts at batch indices that had a text before.

use kvscatter_oracle::cases::Random;
use kvscatter_session::{KvSession, SessionOptions};

use super::exact::Exact;
use super::models;
use super::random::faults::Plan;
use super::random::texts::Text;

/// For a longer text, the session makes longer tensors and moves only the texts of samples to them. The batch index of
/// a removed copy has no text any more. Random histories rarely copy the sample to this index again.
#[test]
fn a_text_is_copied_again_to_an_index_that_had_it_before_a_longer_text() {
    let options = SessionOptions { batch: Some(3), ..SessionOptions::default() };
    let model = models::with_encoder(40, true);
    let mut session = KvSession::open(&Exact(Plan::default()), model.path(), options).unwrap();
    let [short, longer] =
        [3, 5].map(|length| Text::of_length(&mut Random::new(42, length), session.interface(), length, true));
    let [sample, other] = [session.add().unwrap(), session.add().unwrap()];
    session.set_encoder_outputs(sample, &short.given()).unwrap();
    let copy = session.fork(sample, 1).unwrap()[0];
    session.remove(copy).unwrap();
    session.set_encoder_outputs(other, &longer.given()).unwrap();
    let again = session.fork(sample, 1).unwrap()[0];
    assert_eq!(again.batch_index(), copy.batch_index());
    let logits = session.step(&[(sample, &[1]), (again, &[1])]).unwrap();
    assert_eq!(logits.last(again), logits.last(sample));
}
