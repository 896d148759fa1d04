//! Positions that do not fit.

use candle_core::{DType, Device, Tensor};
use kvscatter_candle::cuda::{CudaWriter, DeviceWriteAt};
use kvscatter_candle::{CandleError, TensorScatter, WriteAt, Writer};
use kvscatter_cuda::CudaError;
use kvscatter_oracle::cases::Random;

use crate::driver::{caches, device, list, own_stream, row, slots, writer};

/// The numbers of a write into caches of two samples and four slots.
#[derive(Clone, Debug)]
struct Write {
    rows: usize,
    starts: [i64; 2],
    lengths: Option<[i64; 2]>,
}

impl Write {
    fn random(random: &mut Random) -> Self {
        let (rows, is_bad) = (random.between(1, 2), random.below(3) == 0);
        let start = |random: &mut Random| match random.below(2) {
            0 if is_bad => random.pick(&[-1, 3, 4, 9, i64::MAX]),
            _ => random.below(5 - rows) as i64,
        };
        let starts = [(); 2].map(|()| start(random));
        // The error of a write of one row assumes that the sample has a row to write.
        let least = usize::from(is_bad && rows == 1);
        let length = |random: &mut Random| match random.below(4) {
            0 if is_bad => random.pick(&[-1, 3, i64::MIN]),
            _ => random.between(least, rows) as i64,
        };
        let lengths = (random.below(2) == 0).then(|| [(); 2].map(|()| length(random)));
        Self { rows, starts, lengths }
    }

    fn length(&self, sample: usize) -> i64 {
        self.lengths.map_or(self.rows as i64, |lengths| lengths[sample])
    }

    /// Returns the bad value of a sample. A length is checked before its start.
    fn bad(&self, sample: usize) -> Option<i64> {
        let (start, length) = (self.starts[sample], self.length(sample));
        if !(0..=self.rows as i64).contains(&length) {
            return Some(length);
        }
        (!(0..=4 - length).contains(&start)).then_some(start)
    }

    /// Returns whether the length of a sample is in its error. The length of a bad sample of one row is 1.
    fn needs_lengths(&self) -> bool {
        self.rows > 1 && self.lengths.is_some()
    }

    /// Returns the CPU's result.
    fn on_the_cpu(&self) -> Result<(), CandleError> {
        let [cache, _] = caches(&Device::Cpu);
        let at = WriteAt::new(&self.starts);
        let at = self.lengths.as_ref().map_or(at.clone(), |lengths| at.lengths(lengths));
        let mut writer = Writer::new(TensorScatter::new(), &cache).unwrap();
        writer.write(&update(self.rows, &Device::Cpu), at).map(drop)
    }

    fn launch(&self, writer: &mut CudaWriter, updates: &[Tensor; 2]) {
        let update = &updates[self.rows - 1];
        let starts = list(update.device(), &self.starts);
        let lengths = self.lengths.map(|lengths| list(update.device(), &lengths));
        let at = DeviceWriteAt::new(&starts);
        let at = lengths.as_ref().map_or(at, |lengths| at.lengths(lengths));
        writer.write(&[update, update], at).unwrap();
    }
}

/// Returns an update whose elements are its number of rows.
fn update(rows: usize, device: &Device) -> Tensor {
    Tensor::from_vec(vec![rows as f32; 4 * rows], (2, 1, rows, 2), device).unwrap()
}

/// The writes whose bad samples a status counts.
#[derive(Default)]
struct Log {
    first: Option<Write>,
    /// Whether all of these writes give a bad value the same error.
    is_alike: bool,
    last: Option<Write>,
    bad_samples: u32,
}

impl Log {
    fn add(&mut self, write: &Write) {
        let needs_lengths = |write: &Write| write.needs_lengths();
        self.is_alike = match &self.last {
            None => true,
            Some(last) => {
                self.is_alike && last.rows == write.rows && !needs_lengths(last) && !needs_lengths(write)
            }
        };
        let bad = (0..2).filter(|&sample| write.bad(sample).is_some()).count() as u32;
        if bad > 0 && self.first.is_none() {
            self.first = Some(write.clone());
        }
        self.bad_samples += bad;
        self.last = Some(write.clone());
    }

    /// Compares a result of `check`: with the CPU's error if the writes are alike, and otherwise with what the status
    /// contains.
    fn assert_checked(&self, found: Result<(), CandleError>) {
        let Some(first) = &self.first else { return found.unwrap() };
        let (sample, value) = (0..2).find_map(|sample| Some((sample, first.bad(sample)?))).unwrap();
        match found.unwrap_err() {
            CandleError::Write(found) if self.is_alike => {
                let expected = first.on_the_cpu().unwrap_err();
                assert_eq!(CandleError::from(found).to_string(), expected.to_string());
            }
            CandleError::Cuda(CudaError::BadIndices { bad_samples, first }) if !self.is_alike => {
                let found = (bad_samples, first.sample, first.value);
                assert_eq!(found, (self.bad_samples, Some(sample), value));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Writes, checks and refused writes in any order.
#[test]
fn a_status_reports_the_first_sample_that_does_not_fit() {
    let (mut random, mut found) = (Random::new(21, 0), [0; 3]);
    let devices = [device(), own_stream()];
    for round in 0..300 {
        let device = &devices[round % 2];
        let caches = caches(device);
        let (mut writer, mut log, mut expected) = (writer(&caches), Log::default(), vec![0.; 8]);
        // Writes of the same updates use what was prepared for the first one.
        let (mut skips_all, updates) = (false, [1, 2].map(|rows| update(rows, device)));
        for _ in 0..9 {
            match random.below(8) {
                0 => {
                    writer.clear().unwrap();
                    log = Log::default();
                }
                1 => {
                    skips_all = !skips_all;
                    writer = writer.skip_all(skips_all);
                }
                2 => {
                    let (one, wide) = (row(device, 9.), Tensor::zeros((2, 1, 1, 3), DType::F32, device));
                    writer.write(&[&one, &one], &list(device, &[0, 0, 0])).unwrap_err();
                    writer.write(&[&one, &wide.unwrap()], &list(device, &[0, 0])).unwrap_err();
                }
                3 => {
                    log.assert_checked(writer.check());
                    let kind = if log.first.is_none() { 0 } else { 1 + usize::from(log.is_alike) };
                    found[kind] += 1;
                    if log.first.is_none() {
                        log = Log::default();
                    }
                }
                _ => {
                    let write = Write::random(&mut random);
                    write.launch(&mut writer, &updates);
                    log.add(&write);
                    let is_bad = [0, 1].map(|sample| write.bad(sample).is_some());
                    for sample in 0..2 {
                        if is_bad[sample] || (skips_all && is_bad.contains(&true)) {
                            continue;
                        }
                        let first = 4 * sample + write.starts[sample] as usize;
                        let length = write.length(sample) as usize;
                        expected[first..first + length].fill(write.rows as f32);
                    }
                }
            }
        }
        log.assert_checked(writer.check());
        for cache in &caches {
            assert_eq!(slots(cache), expected, "round {round}");
        }
    }
    assert!(found.iter().all(|&count| count > 20), "{found:?}");
}

#[test]
fn caches_of_different_sizes_are_told_apart() {
    let device = device();
    let [large, _] = caches(&device);
    let [small, _] = caches(&device).map(|cache| cache.narrow(2, 0, 3).unwrap());
    let mut writer = writer(&[large.clone(), small]);
    let update = row(&device, 1.);
    // The row fits into the large cache.
    writer.write(&[&update, &update], &list(&device, &[0, 3])).unwrap();
    assert_eq!(slots(&large), [1., 0., 0., 0., 0., 0., 0., 1.]);
    match writer.check().unwrap_err() {
        CandleError::Write(kvscatter::Error::StartOutOfRange { index: 1, value: 3, capacity: 3, .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// The kernels lack loops for the second update, which is found only when a launch is prepared.
#[test]
fn found_errors_outlive_a_write_that_cannot_be_launched() {
    let device = device();
    let shape = [2_usize, 2, 2, 2, 2, 2, 4, 2];
    let cache = Tensor::zeros(&shape, DType::F32, &device).unwrap();
    let update = cache.narrow(6, 0, 1).unwrap().copy().unwrap();
    let mut writer = writer(&[cache]);
    writer.write(&[&update], &list(&device, &[4, 1])).unwrap();
    let turned = update.permute([0, 5, 4, 3, 2, 1, 6, 7]).unwrap();
    writer.write(&[&turned], &list(&device, &[0, 0])).unwrap_err();
    match writer.check().unwrap_err() {
        CandleError::Write(kvscatter::Error::StartOutOfRange { index: 0, value: 4, rows: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
}
