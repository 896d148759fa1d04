//! Prompt lookup: drafts that are copied from the text of a sample, and the number of drafted tokens that pay.
//!
//! A step that verifies drafts has more rows, and perhaps more runs, than one that feeds single tokens. The choice
//! compares the tokens that both are expected to give with what both [cost](crate::model_runs::costs). It depends on
//! the tokens alone, so that the same call always takes the same steps.
//!
//! A step without drafts also shows whether a draft would have been right. So no step has to draft only to find out
//! whether drafts pay again.

/// The shortest and the longest repetition that count, in tokens.
const REPETITION: [usize; 2] = [2, 8];
/// The number of later outcomes after which an outcome counts only about a third.
const MEMORY: f64 = 16.0;
/// A step with drafts must be expected to be better by this factor, because its cost is an estimate.
const MARGIN: f64 = 1.1;

/// The text of a sample, and how often a token that followed a repetition was the one that followed the earlier
/// occurrence.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    text: Vec<i64>,
    /// For repetitions of 2 or 3 tokens, of 4 to 7, and of at least 8.
    chances: [Chance; 3],
}

/// The tokens that followed an earlier occurrence of the last tokens of a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draft {
    pub(crate) tokens: Vec<i64>,
    /// The number of repeated tokens before the draft.
    repeated: usize,
    /// The number of tokens that are expected to be right if a step feeds the first `n` of them, by `n` from 0 on.
    gains: Vec<f64>,
}

impl Draft {
    /// Returns the draft up to the first of these tokens. The model would choose nothing after it.
    pub(crate) fn before(mut self, ends: &[i64]) -> Self {
        if let Some(end) = self.tokens.iter().position(|token| ends.contains(token)) {
            self.tokens.truncate(end);
            self.gains.truncate(end.saturating_add(1));
        }
        self
    }

    /// Returns the chance that one of the first `length` tokens is wrong, and how many tokens before it are then
    /// expected to be right. Returns `None` if there are fewer tokens, or none.
    fn rejection(&self, length: usize) -> Option<(f64, usize)> {
        let [before, gain] = [length.checked_sub(1)?, length].map(|length| self.gains.get(length));
        let all = gain? - before?;
        let wrong = 1.0 - all;
        let right = (gain? - length as f64 * all) / wrong;
        // At most as many as are drafted. Without a wrong token, the number is not used.
        Some((wrong, (0..length).take_while(|count| (*count as f64) < right).count()))
    }
}

/// Counts of outcomes, of which older ones count less.
#[derive(Clone, Copy, Debug, Default)]
struct Chance {
    right: f64,
    wrong: f64,
}

impl Lookup {
    pub(crate) fn new(text: Vec<i64>) -> Self {
        Self { text, chances: Default::default() }
    }

    /// Returns a draft of up to `most` tokens, which may be empty.
    pub(crate) fn draft(&self, most: usize) -> Draft {
        let Some((repeated, from)) = self.repetition() else { return Draft::default() };
        let mut draft = Draft { repeated, ..Draft::default() };
        let (mut gain, mut chance) = (0.0, 1.0);
        draft.gains.push(gain);
        for index in 0..most {
            // A repetition that reaches the end of the text goes on with the draft.
            let next = self.text.iter().skip(from).chain(&draft.tokens).nth(index).copied();
            draft.tokens.extend(next);
            chance *= self.chance(repeated.saturating_add(index)).value();
            gain += chance;
            draft.gains.push(gain);
        }
        draft
    }

    /// Adds the tokens that the model chose after the draft or in its place, and counts whether the draft was right.
    pub(crate) fn extend(&mut self, draft: &Draft, chosen: &[i64]) {
        self.text.extend(chosen);
        for (index, (drafted, chosen)) in draft.tokens.iter().zip(chosen).enumerate() {
            let is_right = drafted == chosen;
            let class = Self::class(draft.repeated.saturating_add(index));
            if let Some(chance) = self.chances.get_mut(class) {
                chance.count(is_right);
            }
            if !is_right {
                break;
            }
        }
    }

    /// Returns how many of the last tokens occurred before, and where the text after that occurrence begins. This is
    /// the last one of the longest.
    fn repetition(&self) -> Option<(usize, usize)> {
        let [shortest, longest] = REPETITION;
        let mut best = None;
        for from in (shortest..self.text.len()).rev() {
            let before = self.text.get(..from).unwrap_or_default().iter().rev();
            let repeated =
                before.zip(self.text.iter().rev()).take(longest).take_while(|(a, b)| a == b).count();
            if repeated >= shortest && best.is_none_or(|(most, _)| repeated > most) {
                best = Some((repeated, from));
                if repeated == longest {
                    break;
                }
            }
        }
        best
    }

    fn class(repeated: usize) -> usize {
        match repeated {
            ..4 => 0,
            4..8 => 1,
            8.. => 2,
        }
    }

    fn chance(&self, repeated: usize) -> Chance {
        self.chances.get(Self::class(repeated)).copied().unwrap_or_default()
    }
}

impl Chance {
    fn count(&mut self, is_right: bool) {
        for (count, is_counted) in [(&mut self.right, is_right), (&mut self.wrong, !is_right)] {
            *count = *count * (1.0 - 1.0 / MEMORY) + f64::from(is_counted);
        }
    }

    /// Returns the chance that a token is right. It is 0 before the first outcome.
    fn value(self) -> f64 {
        self.right / (self.right + self.wrong + 1.0)
    }
}

/// Returns how many tokens of each sample's draft a step verifies, so that it gives most tokens for its cost. `costs`
/// returns the costs of a step by the numbers of drafted tokens, one for each way in which an engine may compute. The
/// step must be better in all of them.
pub(crate) fn paying(drafts: &[Option<Draft>], mut costs: impl FnMut(&[usize]) -> Vec<f64>) -> Vec<usize> {
    let mut best = vec![0; drafts.len()];
    let longest = drafts.iter().flatten().map(|draft| draft.tokens.len()).max().unwrap_or_default();
    if longest == 0 {
        return best;
    }
    let plain = costs(&best);
    let samples = drafts.iter().flatten().count() as f64;
    let mut most = MARGIN;
    let mut length = longest;
    while length > 0 {
        let mut order: Vec<_> = drafts
            .iter()
            .enumerate()
            .filter_map(|(index, draft)| {
                let draft = draft.as_ref()?;
                let length = length.min(draft.tokens.len());
                draft.gains.get(length).filter(|gain| **gain > 0.0).map(|gain| (index, length, *gain))
            })
            .collect();
        order.sort_by(|(_, _, a), (_, _, b)| b.total_cmp(a));
        let (mut lengths, mut tokens, mut rows) = (vec![0; drafts.len()], samples, 0.0);
        for (index, length, gain) in order {
            if let Some(of) = lengths.get_mut(index) {
                *of = length;
            }
            tokens += gain;
            rows += length as f64;
            let value = |costs: &[f64]| {
                let ratios = costs.iter().zip(&plain).map(|(cost, plain)| tokens / samples * plain / cost);
                ratios.fold(f64::INFINITY, f64::min)
            };
            // A drafted token hardly ever costs less than its row.
            let least: Vec<_> = plain.iter().map(|plain| plain + rows).collect();
            if value(&least) <= most {
                continue;
            }
            let value = value(&costs(&lengths));
            if value > most {
                most = value;
                best.clone_from(&lengths);
            }
        }
        length /= 2;
    }
    best
}

/// Adds to the costs of a step the expected cost of running tokens of rejected drafts again. `again` returns the costs
/// of a step that feeds tokens to the sample with this index alone.
pub(crate) fn add_again(
    costs: &mut [f64],
    drafts: &[Option<Draft>],
    lengths: &[usize],
    mut again: impl FnMut(usize, usize) -> Vec<f64>,
) {
    for (index, (draft, length)) in drafts.iter().zip(lengths).enumerate() {
        let Some((wrong, right)) = draft.as_ref().and_then(|draft| draft.rejection(*length)) else {
            continue;
        };
        // The token before the draft runs again as well.
        let again = again(index, right.saturating_add(1));
        costs.iter_mut().zip(again).for_each(|(cost, again)| *cost += wrong * again);
    }
}

#[cfg(test)]
mod tests {
    use kvscatter_oracle::cases::Random;

    use super::{Draft, Lookup, add_again, paying};

    /// The cost of a step with a run for each sample that has a draft, and one for the others.
    fn costs(lengths: &[usize]) -> Vec<f64> {
        let rows = lengths.iter().map(|length| length + 1).sum::<usize>() as f64;
        let runs = lengths.iter().filter(|length| **length > 0).count() + usize::from(lengths.contains(&0));
        vec![rows + 5.0 * runs as f64]
    }

    /// Generates a text after its first token. Returns the number of drafted and of accepted tokens of each step.
    fn generate(text: &[i64], most: usize) -> Vec<(usize, usize)> {
        generate_with(text, most, false)
    }

    /// With `runs_again`, the tokens of rejected drafts run again.
    fn generate_with(text: &[i64], most: usize, runs_again: bool) -> Vec<(usize, usize)> {
        let (mut lookup, mut done, mut steps) = (Lookup::new(text[..1].to_vec()), 1, Vec::new());
        while done < text.len() {
            let drafts = [Some(lookup.draft(most.min(text.len() - done - 1)))];
            let drafted = paying(&drafts, |lengths| {
                let mut all = costs(lengths);
                if runs_again {
                    add_again(&mut all, &drafts, lengths, |_, tokens| costs(&[tokens - 1]));
                }
                all
            })[0];
            let draft = drafts[0].as_ref().unwrap();
            let right = draft.tokens[..drafted].iter().zip(&text[done..]);
            let accepted = right.take_while(|(drafted, right)| drafted == right).count();
            lookup.extend(draft, &text[done..=done + accepted]);
            done += accepted + 1;
            steps.push((drafted, accepted));
        }
        steps
    }

    #[test]
    fn a_draft_is_what_followed_the_last_of_the_longest_repetitions() {
        let draft = |text: &[i64], most| Lookup::new(text.to_vec()).draft(most).tokens;
        assert_eq!(draft(&[1, 2, 3, 4, 1, 2], 2), [3, 4]);
        assert_eq!(draft(&[1, 2, 7, 1, 2, 8, 9, 1, 2], 2), [8, 9]);
        assert_eq!(draft(&[0, 1, 2, 7, 3, 1, 2, 8, 0, 1, 2], 1), [7]);
        // What reaches the end of the text goes on as it began.
        assert_eq!(draft(&[5, 5, 5], 4), [5; 4]);
        assert_eq!(draft(&[1, 2, 3, 1, 2], 5), [3, 1, 2, 3, 1]);
        for (text, most) in [(&[1, 2, 3][..], 4), (&[1], 4), (&[], 4), (&[5, 5], 4), (&[1, 2, 1, 2], 0)] {
            assert!(draft(text, most).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn drafts_stop_when_they_are_wrong_and_start_again_when_the_text_repeats() {
        let phrase: Vec<i64> = (0..200).map(|index| index % 10).collect();
        // A pair of tokens comes again and again, and another token follows each time.
        let wrong = (0..600).map(|index| if index % 3 == 2 { 1000 + index } else { 20 + index % 3 });
        let text: Vec<i64> = phrase.iter().copied().chain(wrong).chain(phrase.clone()).collect();
        let steps = generate(&text, 4);
        let (mut done, mut drafted, mut saved) = (1, [0; 3], [0; 3]);
        for (tried, accepted) in &steps {
            let part = if done < 200 { 0 } else { usize::from(done >= 800) + 1 };
            drafted[part] += tried;
            saved[part] += accepted;
            done += accepted + 1;
        }
        assert!(saved[0] > 120 && saved[2] > 120, "{saved:?}");
        assert!(drafted[1] - saved[1] < 30, "{drafted:?}");
        assert!(steps.iter().all(|(tried, _)| *tried <= 4));
        assert_eq!(generate(&text, 4), steps);
        assert_eq!(generate(&text, 0), vec![(0, 0); text.len() - 1]);
    }

    /// Random texts repeat themselves more or less often.
    #[test]
    fn no_text_costs_noticeably_more_with_drafts() {
        for seed in 0..60 {
            let r = &mut Random::new(41, seed);
            let (tokens, period, changed) = (r.between(2, 50), r.between(2, 40), r.between(2, 20));
            let mut text: Vec<i64> = Vec::new();
            for index in 0..600 {
                let is_new = index < period || r.below(changed) == 0;
                text.push(if is_new { r.below(tokens) as i64 } else { text[index - period] });
            }
            let plain = costs(&[0])[0] * (text.len() - 1) as f64;
            for runs_again in [false, true] {
                let again = |(drafted, accepted): &(usize, usize)| match runs_again && accepted < drafted {
                    true => costs(&[*accepted])[0],
                    false => 0.0,
                };
                let steps = generate_with(&text, 6, runs_again);
                let cost: f64 = steps.iter().map(|step| costs(&[step.0])[0] + again(step)).sum();
                let ratio = cost / plain;
                assert!(ratio < 1.02, "{seed}: {tokens} {period} {changed} {runs_again}: {ratio}");
            }
        }
    }

    #[test]
    fn a_rejected_draft_is_expected_to_be_right_up_to_some_token() {
        let draft = Draft { tokens: vec![1; 2], repeated: 2, gains: vec![0.0, 0.5, 0.75] };
        assert_eq!(draft.rejection(1), Some((0.5, 0)));
        // Of three rejections of two tokens, one has a right token, so a third is expected.
        assert_eq!(draft.rejection(2), Some((0.75, 1)));
        assert_eq!(
            (draft.rejection(0), draft.rejection(3), Draft::default().rejection(0)),
            (None, None, None)
        );
        let right = Draft { gains: vec![0.0, 1.0, 2.0], ..draft };
        assert_eq!(right.rejection(2), Some((0.0, 0)));
    }

    #[test]
    fn a_step_drafts_for_the_samples_whose_drafts_pay() {
        let draft = |right: f64, length: usize| {
            let gains = (0..=length).map(|length| (1..=length).map(|n| right.powi(n as i32)).sum()).collect();
            Some(Draft { tokens: vec![1; length], repeated: 2, gains })
        };
        for (drafts, expected) in [
            (vec![draft(0.9, 6)], [6].as_slice()),
            (vec![draft(0.1, 6)], &[0]),
            (vec![draft(0.0, 6)], &[0]),
            (vec![draft(0.5, 6)], &[1]),
            (vec![draft(0.7, 6)], &[3]),
            (vec![None, Some(Draft::default()), None], &[0, 0, 0]),
            // A separate run for one of four samples costs more than its draft gains.
            (vec![draft(0.9, 6), draft(0.0, 6), Some(Draft::default()), draft(0.0, 6)], &[0, 0, 0, 0]),
            (vec![draft(0.9, 12), None, None, Some(Draft::default())], &[12, 0, 0, 0]),
            (vec![draft(1.0, 20), draft(1.0, 20), draft(0.0, 20)], &[20, 20, 0]),
        ] {
            assert_eq!(paying(&drafts, costs), expected, "{drafts:?}");
        }
        // The step must be better in every way of computing.
        let both = |lengths: &[usize]| vec![costs(lengths)[0], (lengths[0] + 1) as f64];
        assert_eq!(paying(&[draft(1.0, 6)], both), [0]);
    }
}
