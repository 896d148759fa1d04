//! Tests TensorRT's rules about networks: valid networks, and a violation of every rule.

use kvscatter::ElementType::{BFloat16, Float16, Float32, Int8, Int32};
use kvscatter::spec::tensorrt::{
    AttentionIoForm, KvCacheUpdate, KvCacheUpdateLayer, Network, NetworkError, NetworkTensor, TensorSource,
};
use kvscatter::spec::{Dimension, PartialTensor};
use kvscatter::{Argument, ElementType, Error};

/// The description of a valid layer. Each test changes the parts that must be rejected. -1 is a dynamic
/// dimension.
struct Parts<'a> {
    types: [ElementType; 3],
    cache: &'a [i64],
    update: &'a [i64],
    indices: &'a [i64],
    form: AttentionIoForm,
    lengths: Option<(ElementType, &'a [i64])>,
}

impl Default for Parts<'_> {
    fn default() -> Self {
        Self {
            types: [Float32, Float32, Int32],
            cache: &[4, 2, 8, 1],
            update: &[4, 2, 4, 1],
            indices: &[4],
            form: AttentionIoForm::PaddedBhnd,
            lengths: None,
        }
    }
}

fn dimensions(dims: &[i64]) -> Vec<Dimension<'static>> {
    dims.iter().map(|&dim| usize::try_from(dim).map_or(Dimension::Unknown, Dimension::Known)).collect()
}

impl Parts<'_> {
    fn packed() -> Self {
        Self { update: &[-1, 2, 1], form: AttentionIoForm::PackedNhd, ..Self::default() }
    }

    /// Returns the rules that a network of these layers breaks.
    ///
    /// `wire` may connect the inputs of the layers. The names of the inputs end with the number of the layer.
    fn broken_by(layers: &[Self], wire: impl FnOnce(&mut [KvCacheUpdateLayer<'_>])) -> Vec<NetworkError> {
        let shapes: Vec<_> = layers
            .iter()
            .map(|parts| {
                let lengths = parts.lengths.map_or_else(Vec::new, |(_, dims)| dimensions(dims));
                (dimensions(parts.cache), dimensions(parts.update), dimensions(parts.indices), lengths)
            })
            .collect();
        let names: Vec<_> = (0..layers.len())
            .map(|layer| {
                ["cache", "update", "write_indices", "update_lengths"].map(|name| format!("{name}{layer}"))
            })
            .collect();
        let mut network = Network::default();
        for ((parts, names), (cache, update, indices, lengths)) in layers.iter().zip(&names).zip(&shapes) {
            let [cache_type, update_type, indices_type] = parts.types;
            let [cache_name, update_name, indices_name, lengths_name] = names;
            network.layers.push(KvCacheUpdateLayer {
                cache: input(cache_name, cache_type, cache),
                update: input(update_name, update_type, update),
                write_indices: input(indices_name, indices_type, indices),
                update_lengths: parts.lengths.map(|(element, _)| input(lengths_name, element, lengths)),
                form: parts.form,
                output_is_marked: true,
            });
        }
        wire(&mut network.layers);
        network.check().flatten().collect()
    }

    fn broken(self) -> Vec<NetworkError> {
        Self::broken_by(&[self], |_| {})
    }
}

fn input<'a>(name: &'a str, element: ElementType, shape: &'a [Dimension<'a>]) -> NetworkTensor<'a> {
    let inferred = PartialTensor { element: Some(element), shape: Some(shape) };
    NetworkTensor { name, source: TensorSource::NetworkInput, inferred }
}

fn layer(error: Error) -> NetworkError {
    NetworkError::Layer { layer: 0, error }
}

#[test]
fn padded_and_packed_networks_are_valid() {
    assert_eq!(Parts::default().broken(), []);
    let packed = Parts { indices: &[-1], lengths: Some((Int32, &[-1])), ..Parts::packed() };
    assert_eq!(packed.broken(), []);
}

/// `tests/oracle/infer.rs` compares all other rules of the operator with the oracle.
#[test]
fn layers_break_rules_of_the_operator() {
    let accepted = KvCacheUpdate::ELEMENT_TYPES;
    let wrong_type = |argument| layer(Error::ElementType { argument, element: Int8, accepted });
    let lengths = |got, expected| Error::ListLength { argument: Argument::UpdateLengths, got, expected };
    let rank = |argument, rank, expected| layer(Error::Rank { argument, rank, expected });
    let (cache, argument, element) = (Float16, Argument::Update, BFloat16);
    for (parts, error) in [
        (Parts { types: [Int8, Float32, Int32], ..Parts::default() }, wrong_type(Argument::Cache)),
        (Parts { types: [Float32, Int8, Int32], ..Parts::default() }, wrong_type(Argument::Update)),
        (
            Parts { types: [Float16, BFloat16, Int32], ..Parts::default() },
            layer(Error::ElementTypeMismatch { cache, argument, element }),
        ),
        (Parts { cache: &[4, 2, 8], ..Parts::default() }, rank(Argument::Cache, 3, &[4])),
        (Parts { indices: &[4, 1], ..Parts::default() }, rank(Argument::TensorRtWriteIndices, 2, &[1])),
        (Parts { lengths: Some((Int32, &[-1])), ..Parts::default() }, layer(lengths(1, 0))),
        (Parts { indices: &[-1], update: &[9, 2, 1], ..Parts::packed() }, layer(lengths(0, 1))),
        (
            Parts { cache: &[4, 2, -1, 1], ..Parts::default() },
            NetworkError::DynamicMaxSequenceLength { layer: 0 },
        ),
    ] {
        assert_eq!(parts.broken(), [error]);
    }
    // TensorRT accepts a smaller batch, and dynamic batch, head and row sizes.
    assert_eq!(Parts { update: &[3, 2, 4, 1], indices: &[3], ..Parts::default() }.broken(), []);
    let dynamic = Parts { cache: &[-1, -1, 8, -1], update: &[-1; 4], indices: &[-1], ..Parts::default() };
    assert_eq!(dynamic.broken(), []);
}

/// Returns the output of the first layer. It has the type and the shape of its cache.
fn first_output<'a>(layers: &[KvCacheUpdateLayer<'a>]) -> NetworkTensor<'a> {
    NetworkTensor { name: "output0", source: TensorSource::KvCacheUpdateLayer(0), ..layers[0].cache }
}

#[test]
fn wiring_is_refused_one_by_one() {
    let unmarked = Parts::broken_by(&[Parts::default()], |layers| layers[0].output_is_marked = false);
    assert_eq!(unmarked, [NetworkError::OutputNotMarked { layer: 0 }]);

    let two = [Parts::default(), Parts::default()];
    let cache_from_layer = Parts::broken_by(&two, |layers| layers[1].cache = first_output(layers));
    let fed = |argument| NetworkError::FedByLayer { layer: 1, from: 0, argument };
    assert_eq!(cache_from_layer, [NetworkError::CacheNotNetworkInput { layer: 1 }, fed(Argument::Cache)]);
    let update_from_layer = Parts::broken_by(&two, |layers| layers[1].update = first_output(layers));
    assert_eq!(update_from_layer, [fed(Argument::Update)]);

    let argument = Argument::Update;
    let own_cache = Parts::broken_by(&[Parts::default()], |layers| layers[0].update = layers[0].cache);
    assert_eq!(own_cache, [NetworkError::CacheReadByLayer { layer: 0, cache_of: 0, argument }]);
    let later_cache = Parts::broken_by(&two, |layers| layers[0].update = layers[1].cache);
    assert_eq!(later_cache, [NetworkError::CacheReadByLayer { layer: 0, cache_of: 1, argument }]);

    let shared = Parts::broken_by(&two, |layers| layers[1].cache = layers[0].cache);
    assert_eq!(shared, [NetworkError::CacheSharedByLayers { layer: 1, first: 0 }]);
}

#[test]
fn every_broken_rule_is_listed() {
    let broken =
        Parts::broken_by(&[Parts { cache: &[4, 2, -1, 1], indices: &[3], ..Parts::default() }], |layers| {
            layers[0].output_is_marked = false;
        });
    let count = Error::ListLength { argument: Argument::TensorRtWriteIndices, got: 3, expected: 4 };
    assert_eq!(
        broken,
        [
            NetworkError::DynamicMaxSequenceLength { layer: 0 },
            NetworkError::OutputNotMarked { layer: 0 },
            layer(count),
        ]
    );
    let nothing_known = Network { layers: vec![KvCacheUpdateLayer::default()] };
    let broken: Vec<_> = nothing_known.check().next().unwrap();
    assert_eq!(
        broken[..],
        [NetworkError::CacheNotNetworkInput { layer: 0 }, NetworkError::OutputNotMarked { layer: 0 }]
    );
}

#[test]
fn messages_name_the_layer_and_what_is_wrong() {
    let broken = Error::ListLength { argument: Argument::UpdateLengths, got: 0, expected: 1 };
    let (layer, argument) = (3, Argument::Update);
    for (error, expected) in [
        (NetworkError::Layer { layer, error: broken }, format!("layer 3: {broken}").as_str()),
        (
            NetworkError::DynamicMaxSequenceLength { layer },
            "layer 3: the cache's maximum sequence length must not be dynamic",
        ),
        (NetworkError::CacheNotNetworkInput { layer }, "layer 3: the cache must be an input of the network"),
        (
            NetworkError::OutputNotMarked { layer },
            "layer 3: its output must be marked as an output of the network",
        ),
        (
            NetworkError::CacheSharedByLayers { layer, first: 1 },
            "layer 3: its cache is already written by layer 1",
        ),
        (
            NetworkError::FedByLayer { layer, from: 1, argument },
            "layer 3: update is the output of layer 1, must not come from a layer",
        ),
        (
            NetworkError::CacheReadByLayer { layer, cache_of: 1, argument },
            "layer 3: update is the cache of layer 1, which is being written",
        ),
    ] {
        assert_eq!(error.to_string(), expected);
        let source = core::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(source, matches!(error, NetworkError::Layer { .. }).then(|| broken.to_string()));
    }
}
