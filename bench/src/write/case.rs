//! The description of one write.

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Layout, Mode};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// One write, as `cases.toml` describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    pub(crate) name: String,
    /// The shape of the cache, typically `[batch, heads, capacity, head size]`.
    pub(crate) shape: Vec<usize>,
    /// The sequence dimension. Negative values count from the end.
    #[serde(default = "default_axis")]
    pub(crate) axis: i64,
    /// The number of rows written for each sample.
    pub(crate) rows: usize,
    #[serde(rename = "type", default = "default_element", deserialize_with = "element")]
    pub(crate) element: ElementType,
    #[serde(default, deserialize_with = "mode")]
    pub(crate) mode: Mode,
    #[serde(default)]
    pub(crate) starts: Starts,
    #[serde(default)]
    pub(crate) form: Form,
    #[serde(default)]
    pub(crate) temperature: Temperature,
    /// The number of layers of a cold case. Each has a key and a value cache. A hot case has a single cache.
    #[serde(default = "one")]
    pub(crate) layers: usize,
    #[serde(default)]
    pub(crate) pages: Pages,
    #[serde(default)]
    pub(crate) update: UpdateLayout,
    /// The number of threads that share one write.
    #[serde(default = "one")]
    pub(crate) threads: usize,
}

/// A form of the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Form {
    /// The update is written into the cache.
    #[default]
    InPlace,
    /// The past cache and the update are written into a present cache.
    Functional,
}

/// How warm the memory is before a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Temperature {
    /// The same call is repeated.
    #[default]
    Hot,
    /// The layers are written in turn, at new positions in every step, as a decoder writes them.
    Unflushed,
    /// As `unflushed`, but the last-level cache is swept before each pair.
    Flushed,
    /// As `flushed`, but after the sweep the subject writes the previous layer once more, untimed. Rows and page tables
    /// are then cold, and the subject's code and tables are as warm as in a decoder that has just written a layer.
    FlushedRows,
}

/// The size of the pages of the buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Pages {
    #[serde(rename = "4k")]
    Small,
    #[default]
    #[serde(rename = "2m")]
    Huge,
}

/// The layout of the update in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum UpdateLayout {
    /// The cache's order of dimensions.
    #[default]
    Dense,
    /// `[batch, rows, heads, head size]`, as projections leave it, for a cache of `[batch, heads, capacity, head
    /// size]`.
    Bshd,
}

/// The first slots that a write fills: a rule, or one slot for each sample.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Starts {
    Rule(StartRule),
    List(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StartRule {
    /// Every sample has a different start.
    Ragged,
    /// All samples have the same start.
    Equal,
    /// Every sample wraps around the end of a ring, at a different row.
    Wrap,
}

impl Default for Starts {
    fn default() -> Self {
        Self::Rule(StartRule::Ragged)
    }
}

/// The cache as four nested loops, outermost first. Sizes are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dims {
    pub(crate) batch: usize,
    pub(crate) outer: usize,
    pub(crate) capacity: usize,
    pub(crate) inner: usize,
    pub(crate) bits: usize,
}

impl Write {
    pub(crate) fn dims(&self) -> Dims {
        let axis = self.axis();
        let size = |dims: &[usize]| dims.iter().product();
        Dims {
            batch: self.shape[0],
            outer: size(&self.shape[1..axis]),
            capacity: self.shape[axis],
            inner: size(&self.shape[axis + 1..]),
            bits: self.element.bits().unwrap_or(8),
        }
    }

    /// Returns the sequence dimension, counted from 0.
    fn axis(&self) -> usize {
        self.axis.rem_euclid(self.shape.len() as i64) as usize
    }

    pub(crate) fn update_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape[self.axis()] = self.rows;
        shape
    }

    /// Returns the reason why the case makes no sense.
    pub(crate) fn check(&self) -> Result<(), String> {
        TensorScatter::new()
            .axis(self.axis)
            .resolve_axis(self.shape.len())
            .map_err(|error| error.to_string())?;
        self.prepare(self.mode)?;
        let Dims { batch, capacity, bits, .. } = self.dims();
        let is_bshd = self.update == UpdateLayout::Bshd;
        let last = if self.mode == Mode::Circular { capacity - 1 } else { capacity - self.rows };
        let wraps = self.mode == Mode::Circular && self.rows > 1;
        match &self.starts {
            _ if self.rows == 0 => Err("rows = 0: must be at least 1".to_owned()),
            _ if is_bshd && (self.shape.len() != 4 || self.axis() != 2 || bits < 8) => {
                Err("update bshd: the cache must have rank 4, axis 2 and whole bytes".to_owned())
            }
            _ if self.is_cold() && self.form == Form::Functional => {
                Err("form functional: must be in-place in a cold case".to_owned())
            }
            _ if self.layers == 0 || !self.is_cold() && self.layers > 1 => {
                Err(format!("layers = {}: must be 1 in a hot case, and at least 1", self.layers))
            }
            Starts::Rule(StartRule::Wrap) if !wraps => {
                Err("starts wrap: the mode must be circular, and there must be at least 2 rows".to_owned())
            }
            Starts::List(starts) if starts.len() != batch || starts.iter().any(|&start| start > last) => {
                Err(format!("starts: must be {batch} slots from 0 to {last}"))
            }
            _ => Ok(()),
        }
    }

    /// Prepares the write as a host program does once for each shape.
    pub(crate) fn prepare(&self, mode: Mode) -> Result<kvscatter::Prepared, String> {
        let Dims { outer, inner, .. } = self.dims();
        let update = self.update_shape();
        let strides = [self.rows * outer * inner, inner, outer * inner, 1].map(|stride| stride as isize);
        let update = match self.update {
            UpdateLayout::Dense => Layout::dense(&update),
            UpdateLayout::Bshd => Layout::strided(&update, &strides),
        };
        let scatter = TensorScatter::new().axis(self.axis).mode(mode);
        scatter.prepare(self.element, &self.shape[..], update).map_err(|error| error.to_string())
    }

    pub(crate) fn cache_bytes(&self) -> usize {
        (self.shape.iter().product::<usize>() * self.dims().bits).div_ceil(8)
    }

    pub(crate) fn update_bytes(&self) -> usize {
        (self.update_shape().iter().product::<usize>() * self.dims().bits).div_ceil(8)
    }

    /// Returns the number of bytes that one call moves.
    pub(crate) fn moved_bytes(&self) -> usize {
        match self.form {
            Form::InPlace => self.update_bytes() * self.caches_per_call(),
            Form::Functional => self.cache_bytes(),
        }
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.temperature != Temperature::Hot
    }

    /// Returns 2 in cold cases, where a call writes keys and values.
    pub(crate) fn caches_per_call(&self) -> usize {
        1 + usize::from(self.is_cold())
    }

    /// Returns the first slot of every sample in a step. All samples advance by one slot in each step.
    pub(crate) fn starts_at(&self, step: usize) -> Vec<i64> {
        let Dims { batch, capacity, .. } = self.dims();
        let linear = capacity - self.rows + 1;
        let first = |sample: usize| match &self.starts {
            Starts::Rule(StartRule::Ragged) => (sample * 977 + 13) % linear,
            Starts::Rule(StartRule::Equal) => 13 % linear,
            Starts::Rule(StartRule::Wrap) => capacity - 1 - (sample * 977 + 13) % (self.rows - 1),
            Starts::List(starts) => starts[sample],
        };
        let starts = if self.mode == Mode::Circular { capacity } else { linear };
        (0..batch).map(|sample| ((first(sample) + step) % starts) as i64).collect()
    }
}

fn default_axis() -> i64 {
    TensorScatter::DEFAULT_AXIS
}

fn default_element() -> ElementType {
    ElementType::Float16
}

fn one() -> usize {
    1
}

fn element<'de, D: Deserializer<'de>>(from: D) -> Result<ElementType, D::Error> {
    let name = String::deserialize(from)?;
    name.parse()
        .map_err(|_| D::Error::custom(format!("type '{name}': must be an element type, such as float16")))
}

fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
    let name = String::deserialize(from)?;
    name.parse().map_err(|_| D::Error::custom(format!("mode '{name}': must be linear or circular")))
}

#[cfg(test)]
mod tests {
    use super::{Dims, Write};

    fn case(text: &str) -> Write {
        toml::from_str(&format!("name = 'a'\n{text}")).unwrap()
    }

    #[test]
    fn sizes_and_starts_of_a_case() {
        let cold = case(
            "shape = [3, 2, 16, 8]\nrows = 4\ntype = 'bf16'\nmode = 'circular'\nstarts = [13, 0, 15]
            temperature = 'unflushed'\nlayers = 2\nupdate = 'bshd'",
        );
        assert_eq!(cold.dims(), Dims { batch: 3, outer: 2, capacity: 16, inner: 8, bits: 16 });
        assert_eq!(cold.update_shape(), [3, 2, 4, 8]);
        assert_eq!((cold.cache_bytes(), cold.update_bytes(), cold.moved_bytes()), (1536, 384, 768));
        assert_eq!([cold.starts_at(0), cold.starts_at(2)], [[13, 0, 15], [15, 2, 1]]);
        let hot = case("shape = [2, 8, 4096, 128]\nrows = 1");
        assert_eq!([hot.starts_at(0), hot.starts_at(4095)], [[13, 990], [12, 989]]);
        assert_eq!(hot.moved_bytes(), 4096);
    }

    #[test]
    fn every_start_is_in_range() {
        for (starts, mode) in
            [("ragged", "linear"), ("equal", "linear"), ("ragged", "circular"), ("wrap", "circular")]
        {
            for rows in [2, 3, 7, 64] {
                let case = case(&format!(
                    "shape = [99, 64, 1]\naxis = 1\nrows = {rows}\nmode = '{mode}'\nstarts = '{starts}'"
                ));
                case.check().unwrap();
                for step in [0, 1, 63, 64, 1_000_003] {
                    for start in case.starts_at(step) {
                        let end = start as usize + rows;
                        assert!((0..64).contains(&start), "{starts} {mode} {rows}: {start}");
                        assert!(mode == "circular" || end <= 64, "{starts} {rows}: {start}");
                        assert!(starts != "wrap" || step != 0 || end > 64, "{rows}: {start}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_invalid_case_is_refused() {
        for (text, expected) in [
            ("rows = 9", "9 rows"),
            ("rows = 0", "rows = 0"),
            ("rows = 1\naxis = 0", "axis = 0"),
            ("rows = 1\nstarts = [1]", "must be 2 slots from 0 to 7"),
            ("rows = 1\nstarts = [0, 8]", "must be 2 slots from 0 to 7"),
            ("rows = 2\nstarts = 'wrap'", "starts wrap"),
            ("rows = 1\nlayers = 2", "layers = 2"),
            ("rows = 1\ntemperature = 'flushed'\nform = 'functional'", "form functional"),
            ("rows = 1\nupdate = 'bshd'\ntype = 'int4'", "update bshd"),
        ] {
            let error = case(&format!("shape = [2, 3, 8, 4]\n{text}")).check().expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
