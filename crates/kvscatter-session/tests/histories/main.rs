//! Random histories of a session: samples are added, extended, undone, copied and removed, and runs fail at every kind
//! of point. Every logit must be that of the sample's tokens alone.
//!
//! `KVSCATTER_HISTORIES` sets the number of histories of each model.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that panics fails its test")]

#[path = "../exact/mod.rs"]
mod exact;
mod models;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use exact::{Exact, Expected, FAULTS, Plan};
use kvscatter_oracle::cases::Random;
use kvscatter_session::{KvSession, Logits, Sample, SessionError, SessionOptions};
use tempfile::TempDir;

/// The number of histories of each model.
fn histories() -> usize {
    std::env::var("KVSCATTER_HISTORIES").map_or(400, |count| count.parse().unwrap())
}

#[test]
fn every_logit_is_that_of_the_tokens_alone_in_linear_caches() {
    run_all(&models::linear(48), &models::linear(40));
}

#[test]
fn every_logit_is_that_of_the_tokens_alone_in_rings() {
    for (layers, chunk, rewind) in [(1, 3, 2), (2, 1, 0), (2, 4, 1), (2, 2, 3)] {
        run_all(&models::rings(layers, 48, chunk, rewind), &models::rings(layers, 40, 3, 1));
    }
}

#[test]
fn every_logit_is_that_of_the_tokens_alone_with_states() {
    run_all(&models::with_state(), &models::with_state());
}

/// Runs histories of a model. Samples are saved and loaded again, also into a session of another batch, whose model has
/// other capacities.
fn run_all(model: &models::Made, other: &models::Made) {
    let mut counts = Counts::default();
    for batch in [1, 2, 4] {
        let mut world = World::open(&model.path(), &other.path(), batch);
        for history in 0..histories() {
            world.play(&mut Random::new(batch as u64, history), &mut counts);
        }
    }
    eprintln!("{counts:?}");
    assert!(
        counts.steps > 0 && counts.failed > 0 && counts.undone > 0 && counts.copied > 0 && counts.loaded > 0,
        "{counts:?}"
    );
}

#[derive(Debug, Default)]
struct Counts {
    steps: usize,
    failed: usize,
    undone: usize,
    copied: usize,
    refused: usize,
    loaded: usize,
}

/// A session and what its samples must contain.
struct World {
    session: KvSession,
    other: KvSession,
    plan: Plan,
    live: Vec<Live>,
    folder: TempDir,
}

#[derive(Clone)]
struct Live {
    sample: Sample,
    expected: Expected,
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

impl World {
    fn open(model: &Path, other: &Path, batch: usize) -> Self {
        let plan = Plan::default();
        let options = SessionOptions { batch: Some(batch), refuse_nan: true, ..SessionOptions::default() };
        let mut session = KvSession::open(&Exact(plan.clone()), model, options).unwrap();
        let interrupts = plan.clone();
        session.interrupt_when(move || interrupts.interrupts());
        let options = SessionOptions { batch: Some(3), ..SessionOptions::default() };
        let other = KvSession::open(&Exact(Plan::default()), other, options).unwrap();
        Self { session, other, plan, live: Vec::new(), folder: tempfile::tempdir().unwrap() }
    }

    /// Runs one random history. The session keeps the rows of earlier histories.
    fn play(&mut self, r: &mut Random, counts: &mut Counts) {
        for live in self.live.drain(..) {
            self.session.remove(live.sample).unwrap();
        }
        for _ in 0..r.between(4, 24) {
            match r.below(16) {
                0 | 1 => self.add(),
                2 => self.remove(r),
                3 => self.truncate(r, counts),
                4 | 5 => self.begin(r),
                6 => self.end(r, counts),
                7 => self.accept(r, counts),
                8 => self.fork(r, counts),
                9 => self.reorder(r, counts),
                10 if r.below(8) == 0 => self.save(r, counts),
                _ => self.step(r, counts),
            }
            self.check();
        }
        self.plan.clear();
        let all: Vec<_> = self.live.iter().map(|live| live.sample).collect();
        let room: Vec<_> = all.iter().filter(|sample| self.room(**sample) > 0).copied().collect();
        if !room.is_empty() {
            let fed: Vec<_> = room.iter().map(|sample| (*sample, vec![r.below(200) as i64])).collect();
            self.feed(&fed, None).unwrap();
        }
    }

    fn room(&self, sample: Sample) -> usize {
        self.session.capacity() - self.session.cached_tokens(sample).unwrap()
    }

    fn check(&self) {
        for live in &self.live {
            assert_eq!(self.session.tokens(live.sample).unwrap(), live.expected.tokens);
            assert_eq!(self.session.begun(live.sample).unwrap(), live.begun.map(|begun| begun.tokens));
        }
        assert_eq!(self.session.samples().count(), self.live.len());
    }

    fn pick(&mut self, r: &mut Random) -> Option<usize> {
        (!self.live.is_empty()).then(|| r.below(self.live.len()))
    }

    fn add(&mut self) {
        match self.session.add() {
            Ok(sample) => {
                let (expected, begun) = (Expected::default(), None);
                self.live.push(Live { sample, expected, begun, furthest: 0 });
            }
            Err(error) => assert!(matches!(error, SessionError::BatchFull { .. }), "{error}"),
        }
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
        let cached = live.expected.tokens.len();
        let to =
            if r.below(3) == 0 { r.below(cached + 1) } else { r.between(cached.saturating_sub(3), cached) };
        match self.session.truncate(live.sample, to) {
            Ok(()) => {
                live.expected.truncate(to);
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
                let (tokens, furthest) = (live.expected.tokens.len(), live.furthest);
                live.begun = Some(Begun { tokens, furthest, peak: tokens });
            }
            Err(error) => assert!(live.begun.is_some() && matches!(error, SessionError::Begun { .. })),
        }
    }

    fn end(&mut self, r: &mut Random, counts: &mut Counts) {
        let Some(at) = self.pick(r) else { return };
        let live = &mut self.live[at];
        let commits = r.below(3) == 0;
        let ended =
            if commits { self.session.commit(live.sample) } else { self.session.rollback(live.sample) };
        match (ended, live.begun.take()) {
            (Ok(()), Some(begun)) if !commits => {
                live.expected.truncate(begun.tokens);
                live.furthest = begun.furthest;
                counts.undone += 1;
            }
            (Ok(()), Some(_)) => {}
            (Err(SessionError::NotBegun { .. }), None) => {}
            (ended, begun) => panic!("{ended:?} {begun:?}"),
        }
    }

    fn accept(&mut self, r: &mut Random, counts: &mut Counts) {
        let Some(at) = self.pick(r) else { return };
        let least = self.session.interface().rings().map(|ring| ring.capacity - ring.chunk).min();
        let has_states = !self.session.interface().states.is_empty();
        let live = &mut self.live[at];
        let Some(Begun { tokens: begun, furthest, peak }) = live.begun else {
            assert!(matches!(self.session.accept(live.sample, 0), Err(SessionError::NotBegun { .. })));
            return;
        };
        let fed = live.expected.tokens.len() - begun;
        let tokens = r.below(fed + 2);
        match self.session.accept(live.sample, tokens) {
            Ok(()) => {
                live.expected.truncate(begun + tokens);
                // The rows of a longer draft than a ring has slots are not copied.
                if least.is_none_or(|least| peak - begun <= least) {
                    live.furthest = furthest.max(begun + tokens);
                }
                live.begun = None;
                counts.undone += usize::from(tokens < fed);
            }
            Err(SessionError::AcceptBeyond { .. }) => assert_eq!(tokens, fed + 1),
            Err(SessionError::TruncateState { .. }) => assert!(has_states && tokens > 0 && tokens < fed),
            Err(SessionError::TruncateRing { .. }) => {
                counts.refused += 1;
                assert!(peak - begun > least.unwrap() && tokens > 0 && tokens < fed);
            }
            Err(error) => panic!("{error}"),
        }
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

    /// Saves a sample, and loads it into this session and into another one.
    fn save(&mut self, r: &mut Random, counts: &mut Counts) {
        let Some(at) = self.pick(r) else { return };
        let path = self.folder.path().join("sample");
        let of = self.live[at].clone();
        self.session.save(of.sample, &path).unwrap();
        let furthest = of.expected.tokens.len();
        match self.session.load(&path) {
            Ok(sample) => {
                self.live.push(Live { sample, begun: None, furthest, ..of.clone() });
                counts.loaded += 1;
            }
            Err(error) => assert!(matches!(error, SessionError::BatchFull { .. }), "{error}"),
        }
        let placed = self.other.add().unwrap();
        match self.other.load(&path) {
            Ok(sample) if furthest < self.other.capacity() => {
                let mut expected = of.expected;
                let next = r.below(200) as i64;
                let logits = self.other.step(&[(sample, &[next]), (placed, &[1, 2])]).unwrap();
                expected.extend(self.other.interface(), &[next]);
                assert!(expected.scores(furthest, logits.last(sample).unwrap()));
                self.other.remove(sample).unwrap();
                counts.loaded += 1;
            }
            Ok(sample) => self.other.remove(sample).unwrap(),
            Err(error) => {
                assert!(matches!(error, SessionError::SavedTooLong { .. }), "{error}");
                assert!(furthest > self.other.capacity());
            }
        }
        self.other.remove(placed).unwrap();
    }

    fn step(&mut self, r: &mut Random, counts: &mut Counts) {
        let mut fed: Vec<(Sample, Vec<i64>)> = Vec::new();
        for live in &self.live {
            let most = self.room(live.sample).min(if r.below(4) == 0 { 12 } else { 3 });
            let count = r.below(most + 1);
            if count > 0 {
                fed.push((live.sample, (0..count).map(|_| r.below(200) as i64).collect()));
            }
        }
        if fed.is_empty() {
            return;
        }
        if r.below(3) == 0 {
            self.plan.set(r.below(4), r.pick(&FAULTS));
        }
        let chunk = (r.below(3) == 0).then(|| r.between(1, 5));
        let ran = catch_unwind(AssertUnwindSafe(|| self.feed(&fed, chunk)));
        let is_unused = !self.plan.clear();
        match ran {
            Ok(Ok(())) => counts.steps += 1,
            Ok(Err(error)) => {
                assert!(!is_unused);
                assert!(
                    matches!(
                        error,
                        SessionError::Run { .. }
                            | SessionError::LogitsShape { .. }
                            | SessionError::NanLogits { .. }
                            | SessionError::Interrupted
                    ),
                    "{error}"
                );
                counts.failed += 1;
            }
            Err(panic) => {
                assert_eq!(panic.downcast_ref(), Some(&"an injected panic"));
                counts.failed += 1;
            }
        }
    }

    /// Feeds tokens, and compares all logits.
    fn feed(&mut self, fed: &[(Sample, Vec<i64>)], chunk: Option<usize>) -> Result<(), SessionError> {
        let given: Vec<_> = fed.iter().map(|(sample, tokens)| (*sample, tokens.as_slice())).collect();
        let logits = match chunk {
            Some(chunk) => self.session.prefill(&given, chunk)?,
            None => self.session.step(&given)?,
        };
        for (sample, tokens) in fed {
            let live = self.live.iter_mut().find(|live| live.sample == *sample).unwrap();
            live.expected.extend(self.session.interface(), tokens);
            let peak = live.expected.tokens.len();
            live.furthest = live.furthest.max(peak);
            live.begun = live.begun.map(|begun| Begun { peak: begun.peak.max(peak), ..begun });
            compare(live, &logits, tokens.len(), chunk.is_some());
        }
        Ok(())
    }
}

fn compare(live: &Live, logits: &Logits, fed: usize, only_last: bool) {
    let before = live.expected.tokens.len() - fed;
    for index in if only_last { fed - 1 } else { 0 }..fed {
        let logits = logits.after(live.sample, index).unwrap();
        assert!(live.expected.scores(before + index, logits), "token {index} of {fed} after {before}");
    }
}
