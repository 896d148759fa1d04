//! A session, what its samples must contain, and random calls of the session.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use kvscatter_oracle::cases::Random;
use kvscatter_session::{Engine, KvSession, Sample, SessionError, SessionOptions};
use tempfile::TempDir;

use super::faults::{FAULTS, Fault, PANIC, Plan};
use super::oracle::{Oracle, before_gap};
use super::texts::{Positions, Text};

/// Returns the number of histories of each model and batch.
pub(crate) fn histories(default: usize) -> usize {
    std::env::var("KVSCATTER_HISTORIES").map_or(default, |count| count.parse().unwrap())
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    histories: usize,
    pub(crate) steps: usize,
    /// The number of steps that failed because of an injected failure.
    pub(crate) injected: usize,
    /// The failed steps by their cause.
    failed: BTreeMap<String, usize>,
    undone: usize,
    /// The number of accepted paths with a gap.
    paths: usize,
    copied: usize,
    /// The number of times that an injected failure has returned samples to their points.
    returned: usize,
    pub(crate) refused: usize,
    pub(crate) loaded: usize,
    /// The number of texts that samples have got.
    pub(crate) texts: usize,
    /// The refused texts, and the refused steps of samples without a text, by the name of the error.
    pub(crate) refused_texts: BTreeMap<String, usize>,
}

impl Counts {
    /// Prints the counts, and checks that everything happened.
    pub(crate) fn check(&self) {
        eprintln!("{self:?}");
        assert!(
            [self.steps, self.undone, self.paths, self.returned, self.copied].iter().all(|count| *count > 0),
            "{self:?}"
        );
        assert!(FAULTS.iter().all(|fault| self.failed.contains_key(&format!("{fault:?}"))), "{self:?}");
    }

    fn refuse_text(&mut self, error: &SessionError) {
        let error = format!("{error:?}");
        let name = error.split_once(' ').map_or(error.as_str(), |(name, _)| name);
        *self.refused_texts.entry(name.to_owned()).or_default() += 1;
    }
}

/// A session and what its samples must contain.
pub(crate) struct World<O: Oracle> {
    session: KvSession,
    /// Another session, into which samples are loaded as well.
    other: Option<KvSession>,
    /// The folder of saved samples.
    folder: TempDir,
    plan: Plan,
    oracle: O,
    live: Vec<Live<O::Past>>,
    /// The tokens that steps feed.
    tokens: Range<i64>,
    /// Tokens with which a run fails in the engine.
    traps: Vec<i64>,
}

#[derive(Clone)]
struct Live<P> {
    sample: Sample,
    past: P,
    /// The positions of its text.
    text: Option<Positions>,
    begun: Option<Begun>,
    /// The largest number of tokens since the sample was last empty.
    furthest: usize,
}

/// A sample at `begin`.
#[derive(Clone, Copy, Debug)]
struct Begun {
    tokens: usize,
    furthest: usize,
    /// The largest number of tokens since then.
    peak: usize,
}

impl<O: Oracle> World<O> {
    /// Opens a session whose engine injects the failures of a plan.
    pub(crate) fn open(
        engine: &dyn Engine,
        model: &Path,
        options: SessionOptions,
        plan: Plan,
        oracle: impl FnOnce(&KvSession) -> O,
    ) -> Self {
        let options = SessionOptions { refuse_nan: true, ..options };
        let mut session = KvSession::open(engine, model, options).unwrap();
        let interrupts = plan.clone();
        session.interrupt_when(move || interrupts.interrupts());
        let oracle = oracle(&session);
        let (live, traps, folder) = (Vec::new(), Vec::new(), tempfile::tempdir().unwrap());
        Self { session, other: None, folder, plan, oracle, live, tokens: 0..1, traps }
    }

    /// Feeds these tokens, and at times one of `traps`, with which a run fails in the engine. Loads saved samples into
    /// another session as well.
    pub(crate) fn with(self, tokens: Range<i64>, traps: &[i64], other: Option<KvSession>) -> Self {
        Self { tokens, traps: traps.to_vec(), other, ..self }
    }

    /// Runs random histories. The variable `KVSCATTER_SEED` chooses others.
    pub(crate) fn run(&mut self, seed: u64, histories: usize, counts: &mut Counts) {
        let more = std::env::var("KVSCATTER_SEED").map_or(0, |seed| seed.parse::<u64>().unwrap());
        let seed = seed + (more << 8);
        for history in 0..histories {
            let one = || self.run_one(&mut Random::new(seed, history), counts);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(one)) {
                eprintln!("history {history} of seed {seed} failed");
                resume_unwind(panic);
            }
        }
    }

    /// Runs one random history. The session keeps the rows of earlier histories.
    fn run_one(&mut self, r: &mut Random, counts: &mut Counts) {
        for live in self.live.drain(..) {
            self.session.remove(live.sample).unwrap();
        }
        counts.histories += 1;
        for _ in 0..r.between(1, self.session.batch()) {
            self.add(r, counts);
        }
        self.step(r, counts);
        for _ in 0..r.between(4, 20) {
            match r.below(20) {
                0 | 1 => self.add(r, counts),
                2 => self.remove(r),
                3 => self.truncate(r, counts),
                4 | 5 => self.begin(r),
                6 | 7 => self.end(r, counts),
                8 | 9 => self.accept(r, counts),
                10 => self.fork(r, counts),
                11 => self.reorder(r, counts),
                12 if r.below(8) == 0 => self.save(r, counts),
                13 if !self.session.interface().encoder.is_empty() => {
                    if let Some(at) = self.pick(r) {
                        self.attend(at, r, counts);
                    }
                }
                _ => self.step(r, counts),
            }
            self.check();
        }
        self.plan.clear();
        let ready = self.live.iter().filter(|live| self.room(live.sample) > 0 && self.has_text(live));
        let ready: Vec<_> = ready.map(|live| live.sample).collect();
        if !ready.is_empty() {
            let fed: Vec<_> = ready.iter().map(|sample| (*sample, vec![self.token(r)])).collect();
            self.feed(&fed, None).unwrap();
        }
    }

    fn token(&self, r: &mut Random) -> i64 {
        self.tokens.start + r.below((self.tokens.end - self.tokens.start) as usize) as i64
    }

    fn room(&self, sample: Sample) -> usize {
        self.session.capacity() - self.session.cached_tokens(sample).unwrap()
    }

    fn check(&self) {
        for live in &self.live {
            assert_eq!(self.session.tokens(live.sample).unwrap(), self.oracle.tokens(&live.past));
            assert_eq!(self.session.begun(live.sample).unwrap(), live.begun.map(|begun| begun.tokens));
        }
        assert_eq!(self.session.samples().count(), self.live.len());
    }

    fn pick(&mut self, r: &mut Random) -> Option<usize> {
        (!self.live.is_empty()).then(|| r.below(self.live.len()))
    }

    /// Picks a sample that has a point of `begin`, if there is one, and at times any sample.
    fn pick_begun(&mut self, r: &mut Random) -> Option<usize> {
        let begun = self.live.iter().position(|live| live.begun.is_some());
        if r.below(8) == 0 { self.pick(r) } else { begun.or_else(|| self.pick(r)) }
    }

    /// Returns `true` unless a sample needs a text before its first token.
    fn has_text(&self, live: &Live<O::Past>) -> bool {
        live.text.is_some() || self.session.interface().encoder.is_empty()
    }

    /// Adds a sample, and gives it a text in most cases.
    fn add(&mut self, r: &mut Random, counts: &mut Counts) {
        match self.session.add() {
            Ok(sample) => {
                let (past, at) = (O::Past::default(), self.live.len());
                self.live.push(Live { sample, past, text: None, begun: None, furthest: 0 });
                while !self.has_text(&self.live[at]) && r.below(8) > 0 {
                    self.attend(at, r, counts);
                }
            }
            Err(error) => assert!(matches!(error, SessionError::BatchFull { .. }), "{error}"),
        }
    }

    /// Gives a sample what an encoder has computed for a text, and at times what it cannot take.
    fn attend(&mut self, at: usize, r: &mut Random, counts: &mut Counts) {
        let Some(mut text) = Text::random(r, self.session.interface()) else { return };
        let is_spoiled = r.below(4) == 0;
        if is_spoiled {
            text.spoil(r);
        }
        let others = self.live.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, live)| live);
        let fits = are_beside(others, &text.positions);
        let live = &mut self.live[at];
        let cached = self.oracle.tokens(&live.past).len();
        let refused = match self.session.set_encoder_outputs(live.sample, &text.given()) {
            Ok(()) => {
                assert!(live.begun.is_none() && cached == 0 && !is_spoiled && fits);
                self.oracle.attend(&mut live.past, self.session.interface(), &text.outputs);
                live.text = Some(text.positions);
                counts.texts += 1;
                return;
            }
            Err(error) => error,
        };
        match refused {
            SessionError::Begun { .. } => assert!(live.begun.is_some()),
            SessionError::EncoderChanged { tokens, .. } => assert!(tokens > 0 && tokens == cached),
            SessionError::EncoderLength { .. } => assert!(!fits),
            SessionError::EncoderOutput { .. }
            | SessionError::EncoderOutputMissing { .. }
            | SessionError::EncoderShape { .. } => assert!(is_spoiled),
            error => panic!("{error}"),
        }
        counts.refuse_text(&refused);
    }

    fn remove(&mut self, r: &mut Random) {
        let Some(at) = self.pick(r) else { return };
        let live = self.live.swap_remove(at);
        self.session.remove(live.sample).unwrap();
    }

    fn truncate(&mut self, r: &mut Random, counts: &mut Counts) {
        let Some(at) = self.pick(r) else { return };
        let rewind = self.session.interface().rings().map(|ring| ring.rewind).min();
        let has_states = !self.session.interface().states.is_empty();
        let live = &mut self.live[at];
        let cached = self.oracle.tokens(&live.past).len();
        let to =
            if r.below(3) == 0 { r.below(cached + 1) } else { r.between(cached.saturating_sub(3), cached) };
        match self.session.truncate(live.sample, to) {
            Ok(()) => {
                self.oracle.truncate(&mut live.past, to);
                if to == 0 {
                    live.furthest = 0;
                }
            }
            Err(SessionError::TruncateBegun { begun, .. }) => assert!(to < begun && live.begun.is_some()),
            Err(SessionError::TruncateState { .. }) => assert!(has_states && to > 0 && to < cached),
            Err(SessionError::TruncateRing { .. }) => {
                counts.refused += 1;
                assert!(live.begun.is_some() || to + rewind.unwrap() < live.furthest);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn begin(&mut self, r: &mut Random) {
        let Some(at) = self.pick(r) else { return };
        let live = &mut self.live[at];
        match self.session.begin(live.sample) {
            Ok(()) => {
                let (tokens, furthest) = (self.oracle.tokens(&live.past).len(), live.furthest);
                live.begun = Some(Begun { tokens, furthest, peak: tokens });
            }
            Err(error) => assert!(live.begun.is_some() && matches!(error, SessionError::Begun { .. })),
        }
    }

    fn end(&mut self, r: &mut Random, counts: &mut Counts) {
        let Some(at) = self.pick_begun(r) else { return };
        let live = &mut self.live[at];
        let commits = r.below(3) == 0;
        let ended =
            if commits { self.session.commit(live.sample) } else { self.session.rollback(live.sample) };
        match (ended, live.begun.take()) {
            (Ok(()), Some(begun)) if !commits => {
                self.oracle.truncate(&mut live.past, begun.tokens);
                live.furthest = begun.furthest;
                counts.undone += 1;
            }
            (Ok(()), Some(_)) => {}
            (Err(SessionError::NotBegun { .. }), None) => {}
            (ended, begun) => panic!("{ended:?} {begun:?}"),
        }
    }

    /// Keeps the first tokens of some samples, or a path of one sample.
    fn accept(&mut self, r: &mut Random, counts: &mut Counts) {
        if self.live.iter().all(|live| live.begun.is_none()) {
            self.begin(r);
            self.step(r, counts);
        }
        let Some(at) = self.pick_begun(r) else { return };
        let is_path = r.below(2) == 0;
        let mut chosen = vec![at];
        if !is_path {
            let others =
                (0..self.live.len()).filter(|other| *other != at && self.live[*other].begun.is_some());
            chosen.extend(others.filter(|_| r.below(2) == 0));
        }
        let mut lists = Vec::new();
        for &at in &chosen {
            let fed = self.fed(at);
            let is_beyond = r.below(16) == 0;
            let count = if is_beyond { fed + 1 } else { r.below(fed + 1) };
            let mut rows: Vec<usize> = (0..count).collect();
            if is_path {
                rows = (0..fed).filter(|_| r.below(3) > 0).collect();
                if r.below(8) == 0 {
                    let index = r.below(rows.len() + 1);
                    rows.insert(index, r.below(fed + 2));
                }
            }
            lists.push(rows);
        }
        // The runs of kept tokens fail, too.
        if r.below(3) == 0 {
            self.plan.set(r.below(2), r.pick(&FAULTS));
        }
        self.oracle.start();
        let accept = || match lists.as_slice() {
            [rows] if is_path => self.session.accept_rows(self.live[at].sample, rows),
            [rows] if r.below(2) == 0 => self.session.accept(self.live[at].sample, rows.len()),
            _ => {
                let samples = chosen.iter().map(|at| self.live[*at].sample);
                let tokens: Vec<_> = samples.zip(lists.iter().map(Vec::len)).collect();
                self.session.accept_all(&tokens)
            }
        };
        let ran = catch_unwind(AssertUnwindSafe(accept));
        let is_injected = self.plan.clear();
        match ran {
            Ok(Ok(())) => self.accepted(&chosen, &lists, counts),
            Ok(Err(SessionError::NotBegun { .. })) => assert!(self.live[at].begun.is_none()),
            Ok(Err(SessionError::AcceptBeyond { accepted, fed, .. })) => {
                let is_beyond = |(at, rows): (&usize, &Vec<usize>)| rows.len() > self.fed(*at);
                assert!(accepted == fed + 1 && chosen.iter().zip(&lists).any(is_beyond));
            }
            Ok(Err(SessionError::PathOrder { index, .. })) => assert!(lists[0][index] <= lists[0][index - 1]),
            Ok(Err(SessionError::PathBeyond { row, .. })) => assert!(row >= self.fed(at)),
            Ok(Err(
                SessionError::Run { .. }
                | SessionError::LogitsShape { .. }
                | SessionError::NanLogits { .. }
                | SessionError::Interrupted,
            )) if is_injected => self.returned(&chosen, counts),
            Err(panic) if is_injected && panic.downcast_ref() == Some(&PANIC) => {
                self.returned(&chosen, counts)
            }
            Ok(Err(error)) => panic!("{error}"),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Returns the number of tokens that were fed to a sample since `begin`.
    fn fed(&self, at: usize) -> usize {
        let live = &self.live[at];
        live.begun.map_or(0, |begun| self.oracle.tokens(&live.past).len() - begun.tokens)
    }

    /// Records that samples have kept the tokens at these rows.
    fn accepted(&mut self, chosen: &[usize], lists: &[Vec<usize>], counts: &mut Counts) {
        let least = self.session.interface().rings().map(|ring| ring.capacity - ring.chunk).min();
        for (&at, rows) in chosen.iter().zip(lists) {
            let fed = self.fed(at);
            let live = &mut self.live[at];
            let Begun { tokens: begun, furthest, peak } = live.begun.take().unwrap();
            self.oracle.accept(&mut live.past, self.session.interface(), live.sample, begun, rows);
            // The rows of a longer draft than a ring has slots are not copied.
            if least.is_none_or(|least| peak - begun <= least) {
                live.furthest = furthest.max(begun + rows.len());
            }
            counts.undone += usize::from(rows.len() < fed);
            counts.paths += usize::from(before_gap(rows) < rows.len());
        }
    }

    /// Records that samples are at their points, because a run of the kept tokens has failed.
    fn returned(&mut self, chosen: &[usize], counts: &mut Counts) {
        for &at in chosen {
            let live = &mut self.live[at];
            self.oracle.truncate(&mut live.past, live.begun.unwrap().tokens);
        }
        counts.returned += 1;
    }

    fn fork(&mut self, r: &mut Random, counts: &mut Counts) {
        let Some(at) = self.pick(r) else { return };
        let copies = r.below(3);
        let of = self.live[at].clone();
        match self.session.fork(of.sample, copies) {
            Ok(samples) => {
                assert_eq!(samples.len(), copies);
                counts.copied += copies;
                self.live.extend(samples.into_iter().map(|sample| Live {
                    sample,
                    begun: None,
                    ..of.clone()
                }));
            }
            Err(SessionError::NoRoom { needed, free, .. }) => assert!(needed == copies && free < copies),
            Err(error) => panic!("{error}"),
        }
    }

    fn reorder(&mut self, r: &mut Random, counts: &mut Counts) {
        if self.live.is_empty() {
            return;
        }
        let some = r.between(1, self.live.len());
        let parents: Vec<usize> = (0..r.below(some + 2)).map(|_| r.below(some)).collect();
        let samples: Vec<_> = self.live[..some].iter().map(|live| live.sample).collect();
        match self.session.reorder(&samples, &parents) {
            Ok(children) => {
                let others = self.live.split_off(some);
                let before = std::mem::replace(&mut self.live, others);
                for (sample, parent) in children.into_iter().zip(parents) {
                    let of = &before[parent];
                    let begun = of.begun.filter(|_| of.sample == sample);
                    counts.copied += usize::from(of.sample != sample);
                    self.live.push(Live { sample, begun, ..of.clone() });
                }
            }
            Err(error) => assert!(matches!(error, SessionError::NoRoom { .. }), "{error}"),
        }
    }

    /// Saves a sample, and loads it into this session and into the other one.
    fn save(&mut self, r: &mut Random, counts: &mut Counts) {
        let Some(at) = self.pick(r) else { return };
        let path = self.folder.path().join("sample");
        let of = self.live[at].clone();
        self.session.save(of.sample, &path).unwrap();
        let furthest = self.oracle.tokens(&of.past).len();
        let text = of.text.as_ref().map(|text| text.loaded(self.session.interface()));
        let fits = text.as_ref().is_none_or(|text| are_beside(self.live.iter(), text));
        match self.session.load(&path) {
            Ok(sample) => {
                assert!(fits);
                self.live.push(Live { sample, text: text.clone(), begun: None, furthest, ..of.clone() });
                counts.loaded += 1;
            }
            Err(SessionError::EncoderLength { .. }) => assert!(!fits),
            Err(error) => assert!(matches!(error, SessionError::BatchFull { .. }), "{error}"),
        }
        let next = self.token(r);
        let Some(other) = &mut self.other else { return };
        let (placed, mut beside) = (other.add().unwrap(), O::Past::default());
        let of_placed = Text::random(r, other.interface());
        if let Some(text) = &of_placed {
            other.set_encoder_outputs(placed, &text.given()).unwrap();
            self.oracle.attend(&mut beside, other.interface(), &text.outputs);
        }
        let texts = text.as_ref().zip(of_placed);
        let fits = texts.is_none_or(|(text, placed)| text.fit_beside(&placed.positions));
        let is_ready =
            furthest < other.capacity() && (text.is_some() || other.interface().encoder.is_empty());
        match other.load(&path) {
            Ok(sample) if is_ready => {
                assert!(fits);
                let fed: [(Sample, &[i64]); 2] = [(sample, &[next]), (placed, &[1, 2])];
                let logits = other.step(&fed).unwrap();
                for ((sample, tokens), mut past) in fed.into_iter().zip([of.past, beside]) {
                    self.oracle.extend(&mut past, other.interface(), sample, tokens);
                    let last = self.oracle.tokens(&past).len() - 1;
                    assert!(self.oracle.scores(&past, last, logits.last(sample).unwrap()));
                }
                other.remove(sample).unwrap();
                counts.loaded += 1;
            }
            Ok(sample) => other.remove(sample).unwrap(),
            Err(SessionError::EncoderLength { .. }) => assert!(!fits),
            Err(error) => {
                assert!(matches!(error, SessionError::SavedTooLong { .. }), "{error}");
                assert!(furthest > other.capacity());
            }
        }
        other.remove(placed).unwrap();
    }

    fn step(&mut self, r: &mut Random, counts: &mut Counts) {
        let mut fed: Vec<(Sample, Vec<i64>)> = Vec::new();
        for live in &self.live {
            // Few steps fail because a sample has no text.
            if !self.has_text(live) && r.below(8) > 0 {
                continue;
            }
            let most = self.room(live.sample).min(if r.below(4) == 0 { 12 } else { 3 });
            let count = r.below(most + 1);
            if count > 0 {
                fed.push((live.sample, (0..count).map(|_| self.token(r)).collect()));
            }
        }
        if fed.is_empty() {
            return;
        }
        let lacks_text = |live: &Live<O::Past>| {
            !self.has_text(live) && fed.iter().any(|(sample, _)| *sample == live.sample)
        };
        if self.live.iter().any(lacks_text) {
            let refused = self.feed(&fed, None).unwrap_err();
            assert!(matches!(refused, SessionError::EncoderMissing { .. }), "{refused}");
            counts.refuse_text(&refused);
            return;
        }
        let (mut causes, mut is_nan) = (Vec::new(), false);
        if r.below(3) == 0 {
            // All kinds take turns, so that few histories have them all.
            let fault = FAULTS[counts.injected % FAULTS.len()];
            self.plan.set(r.below(4), fault);
            is_nan = fault == Fault::Nan;
            causes.push(format!("{fault:?}"));
        }
        let is_trapped = !self.traps.is_empty() && r.below(8) == 0;
        if is_trapped {
            let (trap, of) = (r.pick(&self.traps), r.below(fed.len()));
            let at = r.below(fed[of].1.len());
            fed[of].1[at] = trap;
            causes.push(format!("trap {trap}"));
        }
        let chunk = (r.below(3) == 0).then(|| r.between(1, 5));
        let ran = catch_unwind(AssertUnwindSafe(|| self.feed(&fed, chunk)));
        let is_injected = self.plan.clear() && causes.len() > usize::from(is_trapped);
        match ran {
            Ok(Ok(())) => {
                // NaN after one of several tokens does not come again if the step is repeated.
                let is_repeatable = chunk.is_none() && fed.iter().any(|(_, tokens)| tokens.len() > 1);
                assert!((!is_injected || (is_nan && is_repeatable)) && !is_trapped);
                counts.steps += 1;
                return;
            }
            Ok(Err(error)) => assert!(
                matches!(
                    error,
                    SessionError::Run { .. }
                        | SessionError::LogitsShape { .. }
                        | SessionError::NanLogits { .. }
                        | SessionError::Interrupted
                ),
                "{error}"
            ),
            Err(panic) if panic.downcast_ref() == Some(&PANIC) => {}
            Err(panic) => resume_unwind(panic),
        }
        assert!(is_injected || is_trapped);
        counts.injected += usize::from(is_injected);
        let cause = if is_injected { causes.swap_remove(0) } else { causes.pop().unwrap() };
        *counts.failed.entry(cause).or_default() += 1;
    }

    /// Feeds tokens, and compares all logits.
    fn feed(&mut self, fed: &[(Sample, Vec<i64>)], chunk: Option<usize>) -> Result<(), SessionError> {
        self.oracle.start();
        let given: Vec<_> = fed.iter().map(|(sample, tokens)| (*sample, tokens.as_slice())).collect();
        let logits = match chunk {
            Some(chunk) => self.session.prefill(&given, chunk)?,
            None => self.session.step(&given)?,
        };
        assert_eq!(self.session.bytes_copied(), 0);
        let is_fed = |live: &Live<O::Past>| fed.iter().any(|(sample, _)| *sample == live.sample);
        assert!(self.live.iter().all(|live| is_fed(live) == logits.last(live.sample).is_some()));
        for (sample, tokens) in fed {
            assert_eq!(logits.after(*sample, tokens.len()), None);
            let live = self.live.iter_mut().find(|live| live.sample == *sample).unwrap();
            self.oracle.extend(&mut live.past, self.session.interface(), *sample, tokens);
            let peak = self.oracle.tokens(&live.past).len();
            live.furthest = live.furthest.max(peak);
            live.begun = live.begun.map(|begun| Begun { peak: begun.peak.max(peak), ..begun });
            let before = peak - tokens.len();
            for index in if chunk.is_some() { tokens.len() - 1 } else { 0 }..tokens.len() {
                let logits = logits.after(*sample, index).unwrap();
                let is_right = self.oracle.scores(&live.past, before + index, logits);
                assert!(is_right, "token {index} of {} after {before}", tokens.len());
            }
        }
        Ok(())
    }
}

/// Returns `true` if a text can be in a batch with those of other samples.
fn are_beside<'l, P: 'l>(mut others: impl Iterator<Item = &'l Live<P>>, text: &Positions) -> bool {
    others.all(|live| live.text.as_ref().is_none_or(|other| other.fit_beside(text)))
}
