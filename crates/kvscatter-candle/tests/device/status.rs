//! Positions that do not fit.

use candle_core::{DType, Device, Tensor};
use kvscatter_candle::cuda::{CudaWriter, DeviceWriteAt};
use kvscatter_candle::{CandleError, TensorScatter, WriteAt, Writer};
use kvscatter_cuda::CudaError;
use kvscatter_oracle::cases::Random;

use crate::driver::{Step, bad_start, caches, device, list, own_stream, row, slots, writer};

/// The numbers of a write into caches of two samples and four slots.
#[derive(Debug)]
struct Write {
    rows: usize,
    starts: [i64; 2],
    lengths: Option<[i64; 2]>,
}

impl Write {
    fn random(random: &mut Random) -> Self {
        let (rows, is_bad) = (random.between(1, 2), random.below(3) == 0);
        let starts = [(); 2].map(|()| match random.below(2) {
            0 if is_bad => random.pick(&[-1, 3, 4, 9, i64::MAX]),
            _ => random.below(5 - rows) as i64,
        });
        // The error of a write of one row assumes that the sample has a row to write.
        let least = usize::from(is_bad && rows == 1);
        let lengths = [(); 2].map(|()| match random.below(4) {
            0 if is_bad => random.pick(&[-1, 3, i64::MIN]),
            _ => random.between(least, rows) as i64,
        });
        Self { rows, starts, lengths: (random.below(2) == 0).then_some(lengths) }
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

    /// Returns the samples that do not fit, with their bad values.
    fn all_bad(&self) -> Vec<(usize, i64)> {
        (0..2).filter_map(|sample| Some((sample, self.bad(sample)?))).collect()
    }

    /// Returns whether a bad value has the same error in both writes. A length of several rows is in the error. The
    /// length of a bad sample of one row is taken to be 1.
    fn is_like(&self, other: &Self) -> bool {
        self.rows == other.rows && (self.rows == 1 || (self.lengths.is_none() && other.lengths.is_none()))
    }

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

    /// Returns the slots of each sample after a write.
    fn write(&self, present: &mut [f32], skips_all: bool) {
        let is_bad = [0, 1].map(|sample| self.bad(sample).is_some());
        let is_skipped = |sample: usize| is_bad[sample] || (skips_all && is_bad.contains(&true));
        for sample in (0..2).filter(|&sample| !is_skipped(sample)) {
            let first = 4 * sample + self.starts[sample] as usize;
            present[first..first + self.length(sample) as usize].fill(self.rows as f32);
        }
    }
}

/// Returns an update whose elements are its number of rows.
fn update(rows: usize, device: &Device) -> Tensor {
    Tensor::from_vec(vec![rows as f32; 4 * rows], (2, 1, rows, 2), device).unwrap()
}

/// Compares a result of `check` with the writes that the status counts: with the CPU's error if all of them are alike,
/// and otherwise with what the status contains. Returns 0 for no error, and otherwise which one was compared.
fn assert_checked(log: &[Write], checked: Result<(), CandleError>) -> usize {
    let bad: Vec<_> = log.iter().flat_map(Write::all_bad).collect();
    let Some(first) = log.iter().find(|write| !write.all_bad().is_empty()) else {
        checked.unwrap();
        return 0;
    };
    if log.windows(2).all(|pair| pair[0].is_like(&pair[1])) {
        let Err(CandleError::Write(error)) = checked else { panic!("{checked:?}") };
        let expected = first.on_the_cpu().unwrap_err();
        assert_eq!(CandleError::from(error).to_string(), expected.to_string());
        return 1;
    }
    match checked {
        Err(CandleError::Cuda(CudaError::BadIndices { bad_samples, first })) => {
            assert_eq!(
                (bad_samples, first.sample, first.value),
                (bad.len() as u32, Some(bad[0].0), bad[0].1)
            );
        }
        other => panic!("{other:?}"),
    }
    2
}

/// Writes, checks and refused writes in any order.
#[test]
fn a_status_reports_the_first_sample_that_does_not_fit() {
    let (mut random, mut found) = (Random::new(21, 0), [0; 3]);
    let devices = [device(), own_stream()];
    for round in 0..300 {
        let device = &devices[round % 2];
        let caches = caches(device);
        let (mut writer, mut log, mut expected) = (writer(&caches), Vec::new(), vec![0.; 8]);
        // Writes of the same updates use what was prepared for the first one.
        let (mut skips_all, updates) = (false, [1, 2].map(|rows| update(rows, device)));
        for _ in 0..9 {
            match random.below(8) {
                0 => {
                    writer.clear().unwrap();
                    log.clear();
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
                    let kind = assert_checked(&log, writer.check());
                    found[kind] += 1;
                    if kind == 0 {
                        log.clear();
                    }
                }
                _ => {
                    let write = Write::random(&mut random);
                    write.launch(&mut writer, &updates);
                    write.write(&mut expected, skips_all);
                    log.push(write);
                }
            }
        }
        assert_checked(&log, writer.check());
        assert_eq!(caches.each_ref().map(slots), [&expected[..]; 2], "round {round}");
    }
    assert!(found.iter().all(|&count| count > 20), "{found:?}");
}

#[test]
fn caches_of_different_sizes_are_told_apart() {
    let device = device();
    let Step { caches: [large, small], update, positions, .. } = Step::new([&device, &device], 1., [0, 3]);
    let mut writer = writer(&[large.clone(), small.narrow(2, 0, 3).unwrap()]);
    // The row fits into the large cache.
    writer.write(&[&update, &update], &positions).unwrap();
    assert_eq!(slots(&large), [1., 0., 0., 0., 0., 0., 0., 1.]);
    assert_eq!(bad_start(writer.check()), (1, 3, 1, 3));
}

/// The kernels lack loops for the second update, which is found only when a launch is prepared.
#[test]
fn found_errors_outlive_a_write_that_cannot_be_launched() {
    let device = device();
    let cache = Tensor::zeros(&[2_usize, 2, 2, 2, 2, 2, 4, 2], DType::F32, &device).unwrap();
    let update = cache.narrow(6, 0, 1).unwrap().copy().unwrap();
    let mut writer = writer(&[cache]);
    writer.write(&[&update], &list(&device, &[4, 1])).unwrap();
    let turned = update.permute([0, 5, 4, 3, 2, 1, 6, 7]).unwrap();
    writer.write(&[&turned], &list(&device, &[0, 0])).unwrap_err();
    assert_eq!(bad_start(writer.check()), (0, 4, 1, 4));
}
