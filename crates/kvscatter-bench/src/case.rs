//! The description of one write.

mod dims;
mod names;
mod starts;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Mode};
use serde::{Deserialize, Serialize};

use crate::BenchError;
pub use dims::CacheDims;
pub use starts::{StartRule, Starts};

/// The parameters of a case, before [`Case::new`] checks them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The name of the case in tables. Empty for a case from a command line.
    #[serde(default)]
    pub name: String,
    /// The shape of the cache, typically `[batch, heads, capacity, head size]`.
    pub shape: Vec<usize>,
    /// The sequence dimension. Negative values count from the end.
    #[serde(default = "default_axis")]
    pub axis: i64,
    /// The number of rows written for each sample.
    pub rows: usize,
    /// The element type, by its name in ONNX, NumPy or safetensors.
    #[serde(rename = "type", with = "names::element", default = "default_element")]
    pub element: ElementType,
    /// Whether the cache is a ring.
    #[serde(with = "names::mode", default)]
    pub mode: Mode,
    /// The first slots that are written.
    #[serde(default)]
    pub starts: Starts,
    /// Whether the write is in place, or copies past and update into a new cache.
    #[serde(default)]
    pub form: Form,
    /// How warm the memory is before a call.
    #[serde(default)]
    pub temperature: Temperature,
    /// The number of layers. Each has a key and a value cache. A hot case has a single cache.
    #[serde(default = "one")]
    pub layers: usize,
    /// The size of the pages of the buffers.
    #[serde(default)]
    pub pages: Pages,
    /// The layout of the update in memory.
    #[serde(default)]
    pub update: UpdateLayout,
    /// The number of threads that share one write.
    #[serde(default = "one")]
    pub threads: usize,
}

/// A form of the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// The update is written into the cache.
    #[default]
    InPlace,
    /// The past cache and the update are written into a present cache.
    Functional,
}

/// How warm the memory is before a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Temperature {
    /// The same call is repeated.
    #[default]
    Hot,
    /// The layers are written in turn, at new positions in every step, as a decoder writes them.
    Unflushed,
    /// As `unflushed`, but the last-level cache is swept before each pair.
    Flushed,
    /// As `flushed`, but after the sweep the engine writes the previous layer once more, untimed. Rows and
    /// page tables are then cold, and the engine's code and tables are as warm as in a decoder that has just
    /// written the previous layer.
    FlushedRows,
}

impl Temperature {
    /// Returns `true` if a call writes the keys and the values of one of many layers.
    #[must_use]
    pub fn is_cold(self) -> bool {
        self != Self::Hot
    }

    /// Returns `true` if the last-level CPU cache is swept before each pair.
    #[must_use]
    pub fn is_flushed(self) -> bool {
        matches!(self, Self::Flushed | Self::FlushedRows)
    }
}

/// The size of the pages of the buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pages {
    /// 4 KiB. Transparent huge pages are disabled.
    #[serde(rename = "4k")]
    Small,
    /// 2 MiB. Transparent huge pages are requested, and a scene checks that the system provided them.
    #[default]
    #[serde(rename = "2m")]
    Huge,
}

/// The layout of the update in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateLayout {
    /// The dimensions are in the cache's order.
    #[default]
    Dense,
    /// `[batch, rows, heads, head size]`, as a projection leaves it, for a cache of
    /// `[batch, heads, capacity, head size]`.
    Bshd,
}

/// Parameters that have been checked. A case satisfies the following conditions.
///
/// 1. `TensorScatter` accepts the shape, the axis, the rows and the element type. No dimension is 0, and
///    elements have a width.
/// 2. There is a start for every sample, and the rows fit from each start.
/// 3. A hot case has one layer. A cold case has at least one and is in place.
/// 4. A `bshd` update has a cache of rank 4 and axis 2, with elements of whole bytes.
/// 5. There are at least as many cores as threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parameters", into = "Parameters")]
pub struct Case {
    parameters: Parameters,
    dims: CacheDims,
}

impl Case {
    /// Creates a case after checking its parameters.
    ///
    /// # Errors
    /// Returns [`BenchError::Case`] for the first condition that is not satisfied.
    pub fn new(parameters: Parameters) -> Result<Self, BenchError> {
        let Parameters { ref shape, rows, element, .. } = parameters;
        let refuse = |reason: String| Err(BenchError::Case { name: parameters.name.clone(), reason });
        let axis = match TensorScatter::new().axis(parameters.axis).resolve_axis(shape.len()) {
            Ok(axis) => axis,
            Err(error) => return refuse(error.to_string()), // Condition 1, to the end of `dims`
        };
        let Some(bits) = element.bits() else {
            return refuse(format!("type {element}: elements without a width cannot be timed"));
        };
        if shape.contains(&0) {
            return refuse(format!("shape {shape:?} has a dimension of 0, must be at least 1"));
        }
        if element.storage_len(shape).is_none() {
            return refuse(format!("shape {shape:?} of {element} takes more than the address space"));
        }
        let size = |dims: &[usize]| dims.iter().product();
        let (before, after) = (&shape[1..axis], &shape[axis + 1..]);
        let dims = CacheDims {
            batch: shape[0],
            outer: size(before),
            capacity: shape[axis],
            inner: size(after),
            bits,
        };
        if rows == 0 || rows > dims.capacity {
            return refuse(format!("rows = {rows}: must be 1 to {}, the cache's capacity", dims.capacity));
        }
        if let Err(reason) = parameters.starts.check(&dims, rows, parameters.mode) {
            return refuse(reason); // Condition 2
        }
        if parameters.layers == 0 {
            return refuse("layers = 0: must be at least 1".to_owned());
        }
        let is_cold = parameters.temperature.is_cold();
        if !is_cold && parameters.layers > 1 {
            return refuse(format!("layers = {}: must be 1 in a hot case", parameters.layers)); // Condition 3
        }
        if is_cold && parameters.form == Form::Functional {
            return refuse("form functional: must be in-place in a cold case".to_owned());
        }
        if parameters.update == UpdateLayout::Bshd && (shape.len() != 4 || axis != 2 || bits < 8) {
            let rank = shape.len();
            return refuse(format!(
                "update bshd: rank {rank}, axis {axis}, {bits}-bit elements, must be rank 4, axis 2, whole bytes"
            )); // Condition 4
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if parameters.threads == 0 || parameters.threads > cores {
            let threads = parameters.threads;
            return refuse(format!("threads = {threads}: must be 1 to {cores}, the cores of this machine")); // Condition 5
        }
        Ok(Self { parameters, dims })
    }

    /// Returns the parameters that the case was created from.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns the sizes of the cache as nested loops.
    #[must_use]
    pub fn dims(&self) -> CacheDims {
        self.dims
    }

    /// Returns the sequence dimension, counted from the front.
    #[must_use]
    pub fn axis(&self) -> usize {
        // Condition 1: the axis is in range.
        self.parameters.axis.rem_euclid(self.parameters.shape.len() as i64) as usize
    }

    /// Returns the shape of the update, in the cache's order of dimensions.
    #[must_use]
    pub fn update_shape(&self) -> Vec<usize> {
        let mut shape = self.parameters.shape.clone();
        shape[self.axis()] = self.parameters.rows;
        shape
    }

    /// Returns the strides of the update in elements, in the cache's order of dimensions. Returns `None` if
    /// the update is dense.
    #[must_use]
    pub fn update_strides(&self) -> Option<[isize; 4]> {
        let CacheDims { outer, inner, .. } = self.dims;
        let [row, head, element] = [outer * inner, inner, 1].map(|stride| stride as isize);
        match self.parameters.update {
            UpdateLayout::Dense => None,
            UpdateLayout::Bshd => Some([self.parameters.rows as isize * row, head, row, element]),
        }
    }

    /// Returns the number of bytes of one cache.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        let CacheDims { batch, outer, capacity, inner, bits } = self.dims;
        (batch * outer * capacity * inner * bits).div_ceil(8)
    }

    /// Returns the number of bytes of one update.
    #[must_use]
    pub fn update_bytes(&self) -> usize {
        let CacheDims { batch, outer, inner, bits, .. } = self.dims;
        (batch * outer * self.parameters.rows * inner * bits).div_ceil(8)
    }

    /// Returns the number of bytes that one call moves. These are the bytes of the update or, in functional
    /// form, those of the whole cache. A cold case moves two updates.
    #[must_use]
    pub fn moved_bytes(&self) -> usize {
        match self.parameters.form {
            Form::InPlace => self.update_bytes() * self.caches_per_call(),
            Form::Functional => self.cache_bytes(),
        }
    }

    /// Returns 2 if a call writes the keys and the values of a layer, and 1 if it writes one cache.
    #[must_use]
    pub fn caches_per_call(&self) -> usize {
        1 + usize::from(self.parameters.temperature.is_cold())
    }

    /// Returns the first slot of every sample in a step. Positions advance by one slot in each step.
    #[must_use]
    pub fn starts_at(&self, step: usize) -> Vec<i64> {
        let Parameters { ref starts, rows, mode, .. } = self.parameters;
        let first = (0..self.dims.batch).map(|sample| starts.of(sample, &self.dims, rows));
        let start_count = match mode {
            Mode::Circular => self.dims.capacity,
            _ => self.dims.capacity - rows + 1,
        };
        first.map(|start| ((start + step) % start_count) as i64).collect()
    }
}

impl TryFrom<Parameters> for Case {
    type Error = BenchError;

    fn try_from(parameters: Parameters) -> Result<Self, BenchError> {
        Self::new(parameters)
    }
}

impl From<Case> for Parameters {
    fn from(case: Case) -> Self {
        case.parameters
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
