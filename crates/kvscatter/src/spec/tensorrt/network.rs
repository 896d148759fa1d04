//! A network of `KVCacheUpdate` layers, in TensorRT's vocabulary: it accepts what TensorRT's builder accepts
//! and refuses what it refuses, each with an error of its own.
//!
//! DLA does not support the layer, and there is nothing here to ask it to.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::engine::Engine;
use crate::{Argument, ElementType, Error};

/// A network definition: add inputs and layers, mark outputs, [`build`](Self::build).
///
/// ```
/// use kvscatter::spec::tensorrt::{DataType, KvCacheMode, Network};
///
/// let mut network = Network::new();
/// let cache = network.add_input("cache", DataType::Half, &[2, 8, 4096, 128])?;
/// let update = network.add_input("update", DataType::Half, &[2, 8, -1, 128])?;
/// let write_indices = network.add_input("write_indices", DataType::Int32, &[2])?;
/// let layer = network.add_kv_cache_update(cache, update, write_indices, KvCacheMode::Linear)?;
/// network.set_name(layer.output(), "present")?;
/// network.mark_output(layer.output())?;
/// let engine = network.build()?;
/// assert_eq!(engine.aliased_input_tensor("present"), Some("cache"));
/// # Ok::<(), kvscatter::spec::tensorrt::NetworkError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Network {
    /// Which network's ids are valid here; a clone shares them.
    id: usize,
    tensors: Vec<Tensor>,
    pub(super) layers: Vec<LayerDefinition>,
}

/// A tensor of a network (`ITensor`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId {
    network: usize,
    index: usize,
}

/// A layer of a network (`IKVCacheUpdateLayer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvCacheUpdateLayer {
    index: usize,
    output: TensorId,
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

impl KvCacheUpdateLayer {
    /// Its output tensor, `getOutput(0)`.
    #[must_use]
    pub fn output(self) -> TensorId {
        self.output
    }
}

/// TensorRT's tensor types, of which the layer takes a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataType {
    /// `kFLOAT`
    Float,
    /// `kHALF`
    Half,
    /// `kBF16`
    Bf16,
    /// `kINT8`
    Int8,
    /// `kINT32`
    Int32,
    /// `kINT64`
    Int64,
    /// `kUINT8`
    UInt8,
    /// `kBOOL`
    Bool,
    /// `kFP8`, e4m3
    Fp8,
    /// `kE8M0`
    E8M0,
    /// `kINT4`
    Int4,
    /// `kFP4`, e2m1
    Fp4,
}

impl DataType {
    /// The element type it is.
    #[must_use]
    pub const fn element(self) -> ElementType {
        match self {
            Self::Float => ElementType::Float32,
            Self::Half => ElementType::Float16,
            Self::Bf16 => ElementType::BFloat16,
            Self::Int8 => ElementType::Int8,
            Self::Int32 => ElementType::Int32,
            Self::Int64 => ElementType::Int64,
            Self::UInt8 => ElementType::UInt8,
            Self::Bool => ElementType::Bool,
            Self::Fp8 => ElementType::Float8E4M3Fn,
            Self::E8M0 => ElementType::Float8E8M0,
            Self::Int4 => ElementType::Int4,
            Self::Fp4 => ElementType::Float4E2M1,
        }
    }
}

/// How the cache is written. `kLINEAR` is the only mode up to TensorRT 11.4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvCacheMode {
    /// `kLINEAR`
    #[default]
    Linear,
}

impl TryFrom<i32> for KvCacheMode {
    type Error = NetworkError;

    /// TensorRT's number for the mode.
    fn try_from(value: i32) -> Result<Self, NetworkError> {
        if value == 0 { Ok(Self::Linear) } else { Err(NetworkError::CacheMode { value }) }
    }
}

/// How the update holds its samples (`AttentionIOForm`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttentionIoForm {
    /// `kPADDED_BHND`: `[b, d, s, h]`.
    #[default]
    PaddedBhnd,
    /// `kPACKED_NHD`, since TensorRT 11.0: `[totalTokens, d, h]`, and `updateLengths` cumulative.
    PackedNhd,
}

/// Why a network was refused, or an execution of its engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkError {
    /// Two inputs or outputs have one name.
    NameTaken(String),
    /// A dimension is below -1 (-1 is a dynamic one).
    Dimension {
        /// The input.
        name: String,
        /// Place of the dimension.
        dimension: usize,
        /// Its value.
        value: i64,
    },
    /// The tensor or layer belongs to another network.
    Foreign,
    /// A cache mode other than `kLINEAR`.
    CacheMode {
        /// The number given.
        value: i32,
    },
    /// The types or the shapes of a layer break a rule of `KVCacheUpdate`.
    Layer {
        /// Which layer.
        layer: usize,
        /// The rule.
        error: Error,
    },
    /// The cache's sequence dimension, maxSequenceLength, is dynamic.
    DynamicMaxSequenceLength {
        /// Which layer.
        layer: usize,
    },
    /// The cache is not an input of the network.
    CacheNotNetworkInput {
        /// Which layer.
        layer: usize,
    },
    /// The output is not marked as an output of the network.
    OutputNotMarked {
        /// Which layer.
        layer: usize,
    },
    /// Two layers write one cache.
    CacheSharedByLayers {
        /// The second of them.
        layer: usize,
        /// The first.
        first: usize,
    },
    /// An input of the layer is the output of another.
    FedByLayer {
        /// Which layer.
        layer: usize,
        /// The layer it is fed from.
        from: usize,
        /// The input.
        argument: Argument,
    },
    /// An input of the layer is a cache, which is written while it would be read. A rule of ours: what TensorRT
    /// makes of it is not known.
    CacheReadByLayer {
        /// Which layer.
        layer: usize,
        /// The layer whose cache it is.
        cache_of: usize,
        /// The input.
        argument: Argument,
    },
    /// A packed update without `updateLengths`.
    PackedWithoutLengths {
        /// Which layer.
        layer: usize,
    },
    /// `updateLengths` with a padded update.
    LengthsWhilePadded {
        /// Which layer.
        layer: usize,
    },
    /// A network input was marked as output.
    InputMarkedAsOutput(String),
    /// The engine has no such input.
    UnknownInput(String),
    /// The engine has no such output.
    UnknownOutput(String),
    /// An input has no buffer, or a cache or indices have the other kind of buffer.
    Unbound(String),
    /// A buffer's rank is not the input's.
    BoundRank {
        /// The input.
        name: String,
        /// Dimensions of the input.
        expected: usize,
        /// Dimensions of the buffer.
        got: usize,
    },
    /// A buffer's shape contradicts the input's dimensions.
    BoundShape {
        /// The input.
        name: String,
        /// Place of the first dimension that contradicts.
        dimension: usize,
        /// What the input has.
        expected: usize,
        /// What the buffer has.
        got: usize,
    },
    /// The type of bound indices is not the input's.
    BoundType(String),
    /// An output's address is not its cache's: the layer works in place or not at all.
    OutputAddress(String),
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTaken(name) => write!(f, "two tensors are named {name}"),
            Self::Dimension { name, dimension, value } => {
                write!(f, "dimension {dimension} of input {name} is {value}: must be -1 (dynamic) or more")
            }
            Self::Foreign => f.write_str("the tensor or layer belongs to another network"),
            Self::CacheMode { value } => write!(f, "cacheMode = {value}: kLINEAR (0) is the only mode"),
            Self::Layer { layer, error } => write!(f, "layer {layer}: {error}"),
            Self::DynamicMaxSequenceLength { layer } => {
                write!(f, "layer {layer}: the cache's maximum sequence length must not be dynamic")
            }
            Self::CacheNotNetworkInput { layer } => {
                write!(f, "layer {layer}: the cache must be an input of the network")
            }
            Self::OutputNotMarked { layer } => {
                write!(f, "layer {layer}: its output must be marked as an output of the network")
            }
            Self::CacheSharedByLayers { layer, first } => {
                write!(f, "layer {layer}: its cache is already written by layer {first}")
            }
            Self::FedByLayer { layer, from, argument } => {
                write!(
                    f,
                    "layer {layer}: {argument} is the output of layer {from}, must not come from a layer"
                )
            }
            Self::CacheReadByLayer { layer, cache_of, argument } => {
                write!(
                    f,
                    "layer {layer}: {argument} is the cache of layer {cache_of}, which is being written"
                )
            }
            Self::PackedWithoutLengths { layer } => {
                write!(f, "layer {layer}: a packed update needs updateLengths")
            }
            Self::LengthsWhilePadded { layer } => {
                write!(f, "layer {layer}: updateLengths belong to a packed update, this one is padded")
            }
            Self::InputMarkedAsOutput(name) => write!(f, "input {name} cannot be an output as well"),
            Self::UnknownInput(name) => write!(f, "the engine has no input {name}"),
            Self::UnknownOutput(name) => write!(f, "the engine has no output {name}"),
            Self::Unbound(name) => write!(f, "input {name} has no buffer of its kind"),
            Self::BoundRank { name, expected, got } => {
                write!(f, "the buffer of {name} has {got} dimensions, the input has {expected}")
            }
            Self::BoundShape { name, dimension, expected, got } => {
                write!(f, "dimension {dimension} of the buffer of {name} is {got}, the input's is {expected}")
            }
            Self::BoundType(name) => write!(f, "the indices bound to {name} are not of the input's type"),
            Self::OutputAddress(name) => {
                write!(f, "the address of output {name} must be its cache's: the update is in place")
            }
        }
    }
}

impl core::error::Error for NetworkError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Layer { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl Network {
    /// An empty network.
    #[must_use]
    pub fn new() -> Self {
        static NETWORKS: AtomicUsize = AtomicUsize::new(0);
        Self { id: NETWORKS.fetch_add(1, Ordering::Relaxed), tensors: Vec::new(), layers: Vec::new() }
    }

    /// Adds an input; -1 is a dynamic dimension.
    ///
    /// # Errors
    /// [`NetworkError::NameTaken`], [`NetworkError::Dimension`].
    pub fn add_input(
        &mut self,
        name: &str,
        data_type: DataType,
        dims: &[i64],
    ) -> Result<TensorId, NetworkError> {
        self.check_name(name)?;
        let mut known = Vec::with_capacity(dims.len());
        for (dimension, &value) in dims.iter().enumerate() {
            known.push(match usize::try_from(value) {
                Ok(size) => Some(size),
                Err(_) if value == -1 => None,
                Err(_) => {
                    return Err(NetworkError::Dimension { name: name.into(), dimension, value });
                }
            });
        }
        Ok(self.add(Tensor {
            name: name.into(),
            data_type,
            dims: known,
            source: Source::Input,
            marked: false,
        }))
    }

    /// Adds a `KVCacheUpdate` layer, its update padded until [`set_update_form`](Self::set_update_form) says
    /// otherwise. What the inputs must be is checked by [`build`](Self::build). Its output has a name of
    /// TensorRT's making until [`set_name`](Self::set_name) gives it another.
    ///
    /// # Errors
    /// [`NetworkError::Foreign`]; [`NetworkError::NameTaken`] if a tensor already has that name.
    pub fn add_kv_cache_update(
        &mut self,
        cache: TensorId,
        update: TensorId,
        write_indices: TensorId,
        mode: KvCacheMode,
    ) -> Result<KvCacheUpdateLayer, NetworkError> {
        for id in [update, write_indices] {
            self.tensor(id)?;
        }
        let Tensor { data_type, dims, .. } = self.tensor(cache)?.clone();
        let index = self.layers.len();
        let name = alloc::format!("(Unnamed Layer* {index}) [KVCacheUpdate]_output");
        self.check_name(&name)?;
        let output = self.add(Tensor { name, data_type, dims, source: Source::Layer(index), marked: false });
        let KvCacheMode::Linear = mode;
        self.layers.push(LayerDefinition {
            cache,
            update,
            write_indices,
            update_lengths: None,
            form: AttentionIoForm::PaddedBhnd,
            output,
        });
        Ok(KvCacheUpdateLayer { index, output })
    }

    /// Says how the layer's update holds its samples (`setUpdateForm`).
    ///
    /// # Errors
    /// [`NetworkError::Foreign`].
    pub fn set_update_form(
        &mut self,
        layer: KvCacheUpdateLayer,
        form: AttentionIoForm,
    ) -> Result<(), NetworkError> {
        self.layer_mut(layer)?.form = form;
        Ok(())
    }

    /// Gives a packed update its cumulative lengths (`setUpdateLengths`).
    ///
    /// # Errors
    /// [`NetworkError::Foreign`].
    pub fn set_update_lengths(
        &mut self,
        layer: KvCacheUpdateLayer,
        lengths: TensorId,
    ) -> Result<(), NetworkError> {
        self.tensor(lengths)?;
        self.layer_mut(layer)?.update_lengths = Some(lengths);
        Ok(())
    }

    /// Names a tensor (`setName`).
    ///
    /// # Errors
    /// [`NetworkError::Foreign`], [`NetworkError::NameTaken`].
    pub fn set_name(&mut self, tensor: TensorId, name: &str) -> Result<(), NetworkError> {
        if self.tensor(tensor)?.name != name {
            self.check_name(name)?;
        }
        self.tensor_mut(tensor)?.name = name.into();
        Ok(())
    }

    /// Marks a layer's output as an output of the network.
    ///
    /// # Errors
    /// [`NetworkError::Foreign`], [`NetworkError::InputMarkedAsOutput`].
    pub fn mark_output(&mut self, tensor: TensorId) -> Result<(), NetworkError> {
        let tensor = self.tensor_mut(tensor)?;
        if tensor.source == Source::Input {
            return Err(NetworkError::InputMarkedAsOutput(tensor.name.clone()));
        }
        tensor.marked = true;
        Ok(())
    }

    /// Holds every layer against TensorRT's rules and makes the engine.
    ///
    /// # Errors
    /// The first rule that is broken, layer by layer.
    pub fn build(self) -> Result<Engine, NetworkError> {
        super::rules::check(&self)?;
        Ok(Engine::new(self))
    }

    pub(super) fn tensor(&self, id: TensorId) -> Result<&Tensor, NetworkError> {
        self.tensors.get(id.index).filter(|_| id.network == self.id).ok_or(NetworkError::Foreign)
    }

    pub(super) fn inputs(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        let id = |index| TensorId { network: self.id, index };
        let numbered = self.tensors.iter().enumerate().map(move |(index, tensor)| (id(index), tensor));
        numbered.filter(|(_, tensor)| tensor.source == Source::Input)
    }

    fn tensor_mut(&mut self, id: TensorId) -> Result<&mut Tensor, NetworkError> {
        let known = id.network == self.id;
        self.tensors.get_mut(id.index).filter(|_| known).ok_or(NetworkError::Foreign)
    }

    fn layer_mut(&mut self, layer: KvCacheUpdateLayer) -> Result<&mut LayerDefinition, NetworkError> {
        self.tensor(layer.output)?;
        self.layers.get_mut(layer.index).ok_or(NetworkError::Foreign)
    }

    fn add(&mut self, tensor: Tensor) -> TensorId {
        self.tensors.push(tensor);
        TensorId { network: self.id, index: self.tensors.len().saturating_sub(1) }
    }

    fn check_name(&self, name: &str) -> Result<(), NetworkError> {
        let taken = self.tensors.iter().any(|tensor| tensor.name == name);
        if taken { Err(NetworkError::NameTaken(name.into())) } else { Ok(()) }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) data_type: DataType,
    /// `None` is dynamic.
    pub(super) dims: Vec<Option<usize>>,
    pub(super) source: Source,
    pub(super) marked: bool,
}

/// Where a tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Input,
    Layer(usize),
}

#[derive(Clone, Debug)]
pub(super) struct LayerDefinition {
    pub(super) cache: TensorId,
    pub(super) update: TensorId,
    pub(super) write_indices: TensorId,
    pub(super) update_lengths: Option<TensorId>,
    pub(super) form: AttentionIoForm,
    pub(super) output: TensorId,
}
