//! A case in memory, on pages of a known size.

use std::hint::black_box;
use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut};

use super::case::{Form, Pages, Temperature, Write};
use crate::host;
use crate::measure::{self, Turn};

/// The painted buffers of a case, and the positions of the current step.
///
/// A hot case has one cache. A cold case has a key and a value cache in every layer, and one update for each of the two
/// kinds. All layers use the same updates, because the updates of a decoder are warm when they are written.
pub(crate) struct Scene {
    case: Write,
    caches: Vec<Region>,
    updates: Vec<Region>,
    present: Option<Region>,
    sweep: Option<Region>,
    pub(super) step: usize,
    /// The first slot of every sample in this step.
    pub(super) starts: Vec<i64>,
    /// The layer that is written, and the one before it.
    pub(super) layers: [usize; 2],
}

/// The buffers of one call: those of the only cache, or of a layer's keys and values.
pub(super) struct Call<'a> {
    pub(super) starts: &'a [i64],
    pub(super) keys: Buffers<'a>,
    pub(super) values: Option<Buffers<'a>>,
}

/// The buffers of one write, as bytes.
pub(super) struct Buffers<'a> {
    /// The cache. In functional form this is the past, which the call must not change.
    pub(super) cache: &'a mut [u8],
    /// The new rows, in the layout of the case.
    pub(super) update: &'a [u8],
    /// The new cache in functional form. Empty otherwise.
    pub(super) present: &'a mut [u8],
}

impl<'a> Call<'a> {
    /// Calls `one` with the buffers of every write: once for a single cache, or for the keys and then the values.
    #[inline(always)]
    pub(super) fn each<E>(
        &mut self,
        mut one: impl FnMut(&mut Buffers<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        one(&mut self.keys)?;
        match &mut self.values {
            Some(values) => one(values),
            None => Ok(()),
        }
    }
}

/// The most bytes that are swept. A larger last-level CPU cache is swept only in part.
const MOST_SWEPT: usize = 512 << 20;

impl Scene {
    /// Paints the buffers.
    pub(super) fn new(case: &Write) -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if case.threads > cores {
            return Err(format!("threads = {}: this machine has {cores} cores", case.threads));
        }
        let is_flushed = matches!(case.temperature, Temperature::Flushed | Temperature::FlushedRows);
        let swept = if is_flushed {
            let bytes = host::last_level_cache().ok_or("the size of the last-level cache is unknown")?;
            Some(bytes.min(MOST_SWEPT))
        } else {
            None
        };
        let caches = case.layers * case.caches_per_call();
        let presents = usize::from(case.form == Form::Functional);
        let painted = Region::size(case.cache_bytes()) * (caches + presents)
            + Region::size(case.update_bytes()) * case.caches_per_call();
        // While a subject is checked, the expected result is in memory as well.
        let expected = Region::size(case.cache_bytes()) + Region::size(case.update_bytes());
        let needed = (painted + expected + swept.map_or(0, Region::size)) as u64 >> 20;
        let available =
            host::kib("/proc/meminfo", "MemAvailable:").ok_or("/proc/meminfo has no MemAvailable")? >> 10;
        if needed > available {
            return Err(format!("needs {needed} MiB of memory, {available} MiB are available"));
        }
        let some =
            |count, len| (0..count).map(|_| Region::new(len, case.pages)).collect::<Result<Vec<_>, _>>();
        let mut scene = Self {
            case: case.clone(),
            caches: some(caches, case.cache_bytes())?,
            updates: some(case.caches_per_call(), case.update_bytes())?,
            present: some(presents, case.cache_bytes())?.pop(),
            sweep: swept.map(|bytes| Region::new(bytes, Pages::Huge)).transpose()?,
            step: 0,
            starts: case.starts_at(0),
            layers: [0, 0],
        };
        if case.pages == Pages::Huge {
            let given = host::kib("/proc/self/smaps_rollup", "AnonHugePages:").unwrap_or_default() << 10;
            if given < (painted / 10 * 9) as u64 {
                let [given, painted] = [given, painted as u64].map(|bytes| bytes >> 20);
                return Err(format!(
                    "pages 2m: the system gave {given} of {painted} MiB, see /sys/kernel/mm/transparent_hugepage"
                ));
            }
        }
        for (index, region) in scene.caches.iter_mut().enumerate() {
            paint(region, index as u64);
        }
        scene.repaint();
        Ok(scene)
    }

    pub(crate) fn case(&self) -> &Write {
        &self.case
    }

    /// Moves all samples to the positions of a step.
    pub(super) fn go_to(&mut self, step: usize) {
        if self.step != step {
            self.step = step;
            self.starts = self.case.starts_at(step);
        }
    }

    pub(super) fn call(&mut self, layer: usize) -> Call<'_> {
        let pair = self.case.caches_per_call();
        let mut present = self.present.as_deref_mut();
        let updates = self.updates.iter();
        let mut buffers = self.caches[layer * pair..]
            .iter_mut()
            .zip(updates)
            .map(|(cache, update)| Buffers { cache, update, present: present.take().unwrap_or_default() });
        #[expect(clippy::expect_used, reason = "a case has at least one layer, and layers are in range")]
        let keys = buffers.next().expect("a layer of the case");
        Call { starts: &self.starts, keys, values: buffers.next() }
    }

    /// Paints the buffers of the first layer again.
    pub(super) fn repaint(&mut self) {
        for side in 0..self.case.caches_per_call() {
            paint(&mut self.caches[side], side as u64);
            paint(&mut self.updates[side], UPDATES + side as u64);
        }
        if let Some(present) = &mut self.present {
            present.fill(0);
        }
    }

    /// Returns new copies of the painted cache and update, of keys or values.
    pub(super) fn painted(&self, side: usize) -> [Vec<u8>; 2] {
        let side = side as u64;
        [(self.case.cache_bytes(), side), (self.case.update_bytes(), UPDATES + side)].map(|(len, seed)| {
            let mut buffer = vec![0; len];
            paint(&mut buffer, seed);
            buffer
        })
    }

    /// Empties the CPU's caches if the case is flushed.
    pub(super) fn sweep(&self) {
        self.sweep.iter().for_each(|sweep| _ = black_box(checksum(sweep)));
    }

    /// Reads the updates, which a decoder has just computed.
    pub(super) fn touch_updates(&self) {
        self.updates.iter().for_each(|update| _ = black_box(checksum(update)));
    }
}

impl measure::Scene for Scene {
    /// Each seat of a cold case has separate layers, so that only its subject has warmed their memory.
    fn is_cold(&self, seats: usize) -> Result<bool, String> {
        let each = if self.case.temperature == Temperature::FlushedRows { 2 } else { 1 };
        if self.case.is_cold() && self.case.layers < seats * each {
            return Err(format!("layers = {}: must be at least {}", self.case.layers, seats * each));
        }
        Ok(self.case.is_cold())
    }

    fn turn_to(&mut self, Turn { seat, seats, round }: Turn) {
        let rounds = self.case.layers / seats;
        self.go_to(round / rounds);
        self.layers = [round, round + rounds - 1].map(|round| round % rounds * seats + seat);
    }
}

/// The seed of the first update, which is larger than those of all caches.
const UPDATES: u64 = 1 << 19;

/// Fills a buffer with words that depend on the offset and the seed, so that a block at a wrong offset is always
/// detected.
fn paint(buffer: &mut [u8], seed: u64) {
    let word_at = |index: usize| {
        let word = (index as u64 ^ seed << 44).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (word ^ word >> 32).to_le_bytes()
    };
    let (words, rest) = buffer.as_chunks_mut::<8>();
    words.iter_mut().enumerate().for_each(|(index, word)| *word = word_at(index));
    let last = word_at(words.len());
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Returns a sum of all bytes, read eight at a time.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().fold(0, |sum: u64, &word| sum.wrapping_add(u64::from_le_bytes(word)));
    rest.iter().fold(words, |sum, &byte| sum.wrapping_add(byte.into()))
}

/// The larger of the two page sizes. Every buffer begins at a multiple of it.
const ALIGN: usize = 2 << 20;

/// An owned buffer of zeros. Every page of it has been touched.
struct Region {
    map: MmapMut,
    start: usize,
    len: usize,
}

impl Region {
    fn new(len: usize, pages: Pages) -> Result<Self, String> {
        let system = |error: std::io::Error| format!("memory map: {error}");
        // The mapping consists of whole large pages, with room to begin at a multiple of `ALIGN`.
        let mut map = MmapMut::map_anon(Self::size(len) + ALIGN).map_err(system)?;
        let advice = if pages == Pages::Huge { Advice::HugePage } else { Advice::NoHugePage };
        map.advise(advice).map_err(system)?;
        let start = map.as_ptr().align_offset(ALIGN);
        let end = start + Self::size(len);
        map[start..end].iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        map[start..end].iter_mut().step_by(4096).for_each(|byte| *byte = 0);
        Ok(Self { map, start, len })
    }

    /// Returns the number of bytes that a region of this length takes.
    fn size(len: usize) -> usize {
        len.next_multiple_of(ALIGN)
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[self.start..self.start + self.len]
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGN, Region, Scene, checksum, paint};
    use crate::measure::Scene as _;
    use crate::write::case::{Pages, Write};

    fn case(text: &str) -> Write {
        toml::from_str(&format!("name = 'a'\npages = '4k'\nrows = 1\n{text}")).unwrap()
    }

    #[test]
    fn words_differ_from_place_to_place_and_from_seed_to_seed() {
        let painted = |len, seed| {
            let mut buffer = vec![0; len];
            paint(&mut buffer, seed);
            buffer
        };
        let mut words = [painted(1 << 16, 1), painted(1 << 16, 2)].concat().as_chunks::<8>().0.to_vec();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 1 << 14);
        assert_eq!(painted(13, 5), painted(16, 5)[..13]);
    }

    #[test]
    fn regions_are_aligned_and_zero() {
        for pages in [Pages::Small, Pages::Huge] {
            for len in [0, 1, 4096, ALIGN + 1] {
                let region = Region::new(len, pages).unwrap();
                assert_eq!((region.len(), region.as_ptr().align_offset(ALIGN)), (len, 0));
                assert_eq!(checksum(&region), 0);
            }
        }
    }

    #[test]
    fn a_case_that_this_machine_cannot_measure_is_refused() {
        let error = Scene::new(&case("shape = [1024, 64, 1048576, 128]")).err().unwrap();
        assert!(error.starts_with("needs 33") && error.ends_with(" MiB are available"), "{error}");
        let error = Scene::new(&case("shape = [1, 1, 8, 8]\nthreads = 1000000")).err().unwrap();
        assert!(error.starts_with("threads = 1000000: this machine has "), "{error}");
    }

    #[test]
    fn a_cold_case_has_layers_for_every_seat() {
        for (temperature, layers) in [("unflushed", 4), ("flushed-rows", 8)] {
            let text = format!("shape = [1, 1, 8, 8]\ntemperature = '{temperature}'\nlayers = {layers}");
            let scene = Scene::new(&case(&text)).unwrap();
            assert_eq!(scene.is_cold(4), Ok(true));
            assert!(
                scene.is_cold(5).unwrap_err().starts_with(&format!("layers = {layers}: must be at least "))
            );
        }
    }
}
