//! A built network, and one execution of it.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::network::{AttentionIoForm, LayerDefinition, Network, NetworkError, Tensor, TensorId};
use super::{KvCacheUpdate, PreparedPacked};
use crate::{ElementType, OutOfRange, Prepared, Starts, WritePlan, Written};

/// A network that TensorRT's rules allow.
#[derive(Clone, Debug)]
pub struct Engine {
    network: Network,
    out_of_range: OutOfRange,
}

impl Engine {
    pub(super) fn new(network: Network) -> Self {
        Self { network, out_of_range: OutOfRange::Error }
    }

    /// An extension of ours: what happens to a sample whose index does not fit.
    #[must_use]
    pub fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.out_of_range = policy;
        self
    }

    /// The input whose memory this output is (`getAliasedInputTensor`).
    #[must_use]
    pub fn aliased_input_tensor(&self, output: &str) -> Option<&str> {
        let layer = self
            .network
            .layers
            .iter()
            .find(|layer| self.network.tensor(layer.output).is_ok_and(|tensor| tensor.name == output))?;
        self.network.tensor(layer.cache).ok().map(|tensor| tensor.name.as_str())
    }

    /// A place to bind buffers for one execution (`createExecutionContext`).
    #[must_use]
    pub fn create_execution_context<'a>(&'a self) -> ExecutionContext<'a> {
        ExecutionContext {
            engine: self,
            caches: BTreeMap::new(),
            data: BTreeMap::new(),
            indices: BTreeMap::new(),
            outputs: BTreeMap::new(),
        }
    }
}

/// Buffers for one execution. Bytes are little-endian and dense.
#[derive(Debug)]
pub struct ExecutionContext<'a> {
    engine: &'a Engine,
    caches: BTreeMap<TensorId, (Vec<usize>, &'a mut [u8])>,
    data: BTreeMap<TensorId, (Vec<usize>, &'a [u8])>,
    indices: BTreeMap<TensorId, Starts<'a>>,
    outputs: BTreeMap<String, *const u8>,
}

impl<'a> ExecutionContext<'a> {
    /// Binds a cache: the input that a layer updates in place.
    ///
    /// # Errors
    /// [`NetworkError::UnknownInput`], [`NetworkError::BoundShape`].
    pub fn bind_cache(
        &mut self,
        name: &str,
        shape: &[usize],
        bytes: &'a mut [u8],
    ) -> Result<(), NetworkError> {
        let (id, _) = self.input(name, shape)?;
        self.caches.insert(id, (shape.to_vec(), bytes));
        Ok(())
    }

    /// Binds an update.
    ///
    /// # Errors
    /// [`NetworkError::UnknownInput`], [`NetworkError::BoundShape`].
    pub fn bind_update(&mut self, name: &str, shape: &[usize], bytes: &'a [u8]) -> Result<(), NetworkError> {
        let (id, _) = self.input(name, shape)?;
        self.data.insert(id, (shape.to_vec(), bytes));
        Ok(())
    }

    /// Binds `writeIndices` or `updateLengths`, of the type the input was added with.
    ///
    /// # Errors
    /// [`NetworkError::UnknownInput`], [`NetworkError::BoundType`], [`NetworkError::BoundShape`].
    pub fn bind_indices(&mut self, name: &str, values: impl Into<Starts<'a>>) -> Result<(), NetworkError> {
        let values = values.into();
        let (element, count) = match values {
            Starts::I32(values) => (ElementType::Int32, values.len()),
            Starts::I64(values) => (ElementType::Int64, values.len()),
            Starts::Zero => return Err(NetworkError::BoundType(name.into())),
        };
        let (id, tensor) = self.input(name, &[count])?;
        if tensor.data_type.element() != element {
            return Err(NetworkError::BoundType(name.into()));
        }
        self.indices.insert(id, values);
        Ok(())
    }

    /// Says where the caller expects an output. It is compared with the cache's address when executed, and
    /// never followed. Outputs that are not bound lie where their cache does.
    ///
    /// # Errors
    /// [`NetworkError::UnknownOutput`].
    pub fn bind_output_address(&mut self, name: &str, address: *const u8) -> Result<(), NetworkError> {
        if self.engine.aliased_input_tensor(name).is_none() {
            return Err(NetworkError::UnknownOutput(name.into()));
        }
        self.outputs.insert(name.into(), address);
        Ok(())
    }

    /// Executes all layers as one write: everything is checked first, and on an error no cache has changed
    /// (X1).
    ///
    /// # Errors
    /// [`NetworkError::Unbound`], [`NetworkError::OutputAddress`], and [`NetworkError::Layer`] with the rule of
    /// `KVCacheUpdate` that shapes, indices or buffers break.
    pub fn execute(&mut self) -> Result<Written, NetworkError> {
        let layers = &self.engine.network.layers;
        let prepared: Vec<Shapes> = layers
            .iter()
            .enumerate()
            .map(|(layer, definition)| self.prepare(layer, definition))
            .collect::<Result<_, _>>()?;
        self.check_outputs()?;
        let mut steps = Vec::with_capacity(layers.len());
        for (layer, (definition, shapes)) in layers.iter().zip(&prepared).enumerate() {
            let plan = self.plan(layer, definition, shapes)?;
            let (_, update) = *self.bound(&self.data, definition.update)?;
            let (_, cache) = self.bound(&self.caches, definition.cache)?;
            let checked = plan.check_bytes(0, cache.len(), update.len());
            checked.map_err(|error| NetworkError::Layer { layer, error })?;
            steps.push((layer, definition.cache, plan, update));
        }
        let mut written = Written { skipped: 0 };
        for (layer, cache, plan, update) in steps {
            // `bound` has seen it above; no two layers have one cache.
            let (_, cache) = self.caches.get_mut(&cache).ok_or(NetworkError::Foreign)?;
            let one =
                plan.write_bytes(cache, update).map_err(|error| NetworkError::Layer { layer, error })?;
            written.skipped = written.skipped.saturating_add(one.skipped);
        }
        Ok(written)
    }

    fn check_outputs(&self) -> Result<(), NetworkError> {
        let network = &self.engine.network;
        for (name, address) in &self.outputs {
            let named = |layer: &&LayerDefinition| {
                network.tensor(layer.output).is_ok_and(|tensor| &tensor.name == name)
            };
            let cache = network.layers.iter().find(named).and_then(|layer| self.caches.get(&layer.cache));
            if cache.is_none_or(|(_, bytes)| bytes.as_ptr() != *address) {
                return Err(NetworkError::OutputAddress(name.clone()));
            }
        }
        Ok(())
    }

    fn prepare(&self, layer: usize, definition: &LayerDefinition) -> Result<Shapes, NetworkError> {
        let element = self.engine.network.tensor(definition.cache)?.data_type.element();
        let (cache, _) = self.bound(&self.caches, definition.cache)?;
        let (update, _) = self.bound(&self.data, definition.update)?;
        let operation = KvCacheUpdate::new().out_of_range(self.engine.out_of_range);
        let shapes = match definition.form {
            AttentionIoForm::PaddedBhnd => operation.prepare(element, cache, update).map(Shapes::Padded),
            AttentionIoForm::PackedNhd => {
                operation.prepare_packed(element, cache, update).map(Shapes::Packed)
            }
        };
        shapes.map_err(|error| NetworkError::Layer { layer, error })
    }

    fn plan<'p>(
        &self,
        layer: usize,
        definition: &LayerDefinition,
        shapes: &'p Shapes,
    ) -> Result<WritePlan<'p>, NetworkError>
    where
        'a: 'p,
    {
        let starts = *self.bound(&self.indices, definition.write_indices)?;
        let plan = match (shapes, definition.update_lengths) {
            (Shapes::Packed(prepared), Some(lengths)) => match *self.bound(&self.indices, lengths)? {
                Starts::I32(lengths) => prepared.plan(starts, lengths),
                Starts::I64(_) | Starts::Zero => return Err(self.unbound(lengths)),
            },
            (Shapes::Packed(_), None) => return Err(NetworkError::PackedWithoutLengths { layer }),
            (Shapes::Padded(prepared), _) => prepared.plan(starts),
        };
        plan.map_err(|error| NetworkError::Layer { layer, error })
    }

    fn input(&self, name: &str, shape: &[usize]) -> Result<(TensorId, &'a Tensor), NetworkError> {
        let inputs = self.engine.network.inputs();
        let named = inputs.into_iter().find(|(_, tensor)| tensor.name == name);
        let (id, tensor) = named.ok_or_else(|| NetworkError::UnknownInput(name.into()))?;
        let (expected, got) = (tensor.dims.len(), shape.len());
        if expected != got {
            return Err(NetworkError::BoundRank { name: name.into(), expected, got });
        }
        for (dimension, (expected, &got)) in tensor.dims.iter().zip(shape).enumerate() {
            if let Some(expected) = expected.filter(|&expected| expected != got) {
                return Err(NetworkError::BoundShape { name: name.into(), dimension, expected, got });
            }
        }
        Ok((id, tensor))
    }

    fn bound<'m, B>(&self, bindings: &'m BTreeMap<TensorId, B>, id: TensorId) -> Result<&'m B, NetworkError> {
        bindings.get(&id).ok_or_else(|| self.unbound(id))
    }

    fn unbound(&self, id: TensorId) -> NetworkError {
        let name = self.engine.network.tensor(id).map(|tensor| tensor.name.clone());
        NetworkError::Unbound(name.unwrap_or_default())
    }
}

/// A layer's shapes, checked.
enum Shapes {
    Padded(Prepared),
    Packed(PreparedPacked),
}
