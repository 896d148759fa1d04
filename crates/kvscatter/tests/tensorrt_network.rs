//! TensorRT's network rules: the document's worked example through the network, and every rejection.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up must fail")]

use kvscatter::spec::tensorrt::{
    AttentionIoForm, DataType, Engine, KvCacheMode, KvCacheUpdateLayer, Network, NetworkError,
};
use kvscatter::{Argument, ElementType, Error, OutOfRange};

/// The document's arrays, `[4, 1, n, 1]`; it repeats them over the 2 heads.
const CACHE: [[f32; 8]; 4] = [
    [0.53, 0.88, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.41, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.67, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.32, 0.79, 0.64, 0.0, 0.0, 0.0, 0.0, 0.0],
];
const UPDATE: [[f32; 4]; 4] =
    [[0.72, 0.0, 0.0, 0.0], [0.55, 0.94, 0.0, 0.0], [0.61, 0.28, 0.0, 0.0], [0.83, 0.0, 0.0, 0.0]];
const EXPECTED: [[f32; 8]; 4] = [
    [0.53, 0.88, 0.72, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.41, 0.55, 0.94, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.67, 0.61, 0.28, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.32, 0.79, 0.64, 0.83, 0.0, 0.0, 0.0, 0.0],
];
const CACHE_SHAPE: [usize; 4] = [4, 2, 8, 1];
const UPDATE_SHAPE: [usize; 4] = [4, 2, 4, 1];

fn over_two_heads<const N: usize>(rows: [[f32; N]; 4]) -> Vec<f32> {
    rows.iter().flat_map(|row| row.iter().chain(row)).copied().collect()
}

/// What a layer of a network is built from; a test changes what it wants refused.
struct Parts<'a> {
    types: [DataType; 3],
    cache: &'a [i64],
    update: &'a [i64],
    indices: &'a [i64],
    form: AttentionIoForm,
    lengths: Option<(DataType, &'a [i64])>,
}

impl Default for Parts<'_> {
    fn default() -> Self {
        Self {
            types: [DataType::Float, DataType::Float, DataType::Int32],
            cache: &[4, 2, 8, 1],
            update: &[4, 2, 4, 1],
            indices: &[4],
            form: AttentionIoForm::PaddedBhnd,
            lengths: None,
        }
    }
}

impl Parts<'_> {
    fn network(&self) -> (Network, KvCacheUpdateLayer) {
        let mut network = Network::new();
        let cache = network.add_input("cache", self.types[0], self.cache).unwrap();
        let update = network.add_input("update", self.types[1], self.update).unwrap();
        let indices = network.add_input("write_indices", self.types[2], self.indices).unwrap();
        let layer = network.add_kv_cache_update(cache, update, indices, KvCacheMode::Linear).unwrap();
        network.set_update_form(layer, self.form).unwrap();
        if let Some((data_type, dims)) = self.lengths {
            let lengths = network.add_input("update_lengths", data_type, dims).unwrap();
            network.set_update_lengths(layer, lengths).unwrap();
        }
        network.set_name(layer.output(), "output").unwrap();
        (network, layer)
    }

    fn build(&self) -> Result<Engine, NetworkError> {
        let (mut network, layer) = self.network();
        network.mark_output(layer.output()).unwrap();
        network.build()
    }

    fn refused(&self) -> NetworkError {
        self.build().unwrap_err()
    }
}

fn layer(error: Error) -> NetworkError {
    NetworkError::Layer { layer: 0, error }
}

#[test]
fn the_documents_worked_example() {
    let engine = Parts::default().build().unwrap();
    assert_eq!(engine.aliased_input_tensor("output"), Some("cache"));
    assert_eq!(engine.aliased_input_tensor("cache"), None);

    let mut cache = over_two_heads(CACHE);
    let update = over_two_heads(UPDATE);
    let address = cache.as_ptr().cast();
    let mut context = engine.create_execution_context();
    context.bind_cache("cache", &CACHE_SHAPE, bytemuck::cast_slice_mut(&mut cache)).unwrap();
    context.bind_update("update", &UPDATE_SHAPE, bytemuck::cast_slice(&update)).unwrap();
    context.bind_indices("write_indices", &[2_i32, 1, 1, 3]).unwrap();
    context.bind_output_address("output", address).unwrap();
    context.execute().unwrap();
    drop(context);
    assert_eq!(cache, over_two_heads(EXPECTED));
}

#[test]
fn a_packed_network_executes() {
    let engine = Parts {
        update: &[-1, 2, 1],
        form: AttentionIoForm::PackedNhd,
        indices: &[-1],
        lengths: Some((DataType::Int32, &[-1])),
        ..Parts::default()
    }
    .build()
    .unwrap();
    let mut cache = vec![0.0_f32; 64];
    let update = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]; // three tokens of two heads
    let mut context = engine.create_execution_context();
    context.bind_cache("cache", &CACHE_SHAPE, bytemuck::cast_slice_mut(&mut cache)).unwrap();
    context.bind_update("update", &[3, 2, 1], bytemuck::cast_slice(&update)).unwrap();
    context.bind_indices("write_indices", &[7_i32, 0, 3]).unwrap();
    context.bind_indices("update_lengths", &[0_i32, 1, 1, 3]).unwrap();
    context.execute().unwrap();
    drop(context);
    let mut expected = vec![0.0_f32; 64];
    for (at, value) in [(7, 1.0), (15, 2.0), (35, 3.0), (43, 4.0), (36, 5.0), (44, 6.0)] {
        expected[at] = value;
    }
    assert_eq!(cache, expected);
}

#[test]
fn types_are_refused_one_by_one() {
    use DataType::{Bf16, Bool, E8M0, Float, Fp4, Fp8, Half, Int4, Int8, Int32, Int64, UInt8};
    let wrong =
        |argument, data_type: DataType| layer(Error::ElementType { argument, element: data_type.element() });
    for data_type in [Int8, Int32, Int64, UInt8, Bool, Fp8, E8M0, Int4, Fp4] {
        let refused = Parts { types: [data_type, Float, Int32], ..Parts::default() }.refused();
        assert_eq!(refused, wrong(Argument::Cache, data_type));
        let refused = Parts { types: [Float, data_type, Int32], ..Parts::default() }.refused();
        assert_eq!(refused, wrong(Argument::Update, data_type));
    }
    for data_type in [Float, Half, Int8, UInt8, Bool] {
        let refused = Parts { types: [Float, Float, data_type], ..Parts::default() }.refused();
        assert_eq!(refused, wrong(Argument::TensorRtWriteIndices, data_type));
    }
    for data_type in [Float, Half, Bf16] {
        assert!(Parts { types: [data_type, data_type, Int64], ..Parts::default() }.build().is_ok());
    }
    let refused = Parts { types: [Half, Bf16, Int32], ..Parts::default() }.refused();
    let element = ElementType::BFloat16;
    let mismatch =
        Error::ElementTypeMismatch { cache: ElementType::Float16, argument: Argument::Update, element };
    assert_eq!(refused, layer(mismatch));
}

#[test]
fn shapes_are_refused_one_by_one() {
    let mismatch = |dimension, expected, got| {
        layer(Error::DimensionMismatch { argument: Argument::Update, dimension, expected, got })
    };
    let rank = |argument, rank, expected| layer(Error::Rank { argument, rank, expected });
    let count = |argument, got, want| layer(Error::Count { argument, got, want });
    let cases = [
        (Parts { cache: &[4, 2, 8], ..Parts::default() }, rank(Argument::Cache, 3, &[4])),
        (Parts { update: &[4, 2, 4], ..Parts::default() }, rank(Argument::Update, 3, &[4])),
        (Parts { indices: &[4, 1], ..Parts::default() }, rank(Argument::TensorRtWriteIndices, 2, &[1])),
        (Parts { update: &[4, 3, 4, 1], ..Parts::default() }, mismatch(1, 2, 3)),
        (Parts { update: &[4, 2, 4, 5], ..Parts::default() }, mismatch(3, 1, 5)),
        (
            Parts { update: &[4, 2, 9, 1], ..Parts::default() },
            layer(Error::UpdateLongerThanCache { rows: 9, capacity: 8 }),
        ),
        (
            Parts { update: &[5, 2, 4, 1], indices: &[5], ..Parts::default() },
            layer(Error::BatchTooLarge { cache: 4, update: 5 }),
        ),
        (Parts { indices: &[3], ..Parts::default() }, count(Argument::TensorRtWriteIndices, 3, 4)),
        (
            Parts { cache: &[4, 2, -1, 1], ..Parts::default() },
            NetworkError::DynamicMaxSequenceLength { layer: 0 },
        ),
    ];
    for (parts, error) in cases {
        assert_eq!(parts.refused(), error);
    }
    // What TensorRT builds: a smaller batch, dynamic batch, heads and rows.
    assert!(Parts { update: &[3, 2, 4, 1], indices: &[3], ..Parts::default() }.build().is_ok());
    assert!(
        Parts { cache: &[-1, -1, 8, -1], update: &[-1; 4], indices: &[-1], ..Parts::default() }
            .build()
            .is_ok()
    );
}

#[test]
fn packed_and_lengths_belong_together() {
    let packed = || Parts { update: &[9, 2, 1], form: AttentionIoForm::PackedNhd, ..Parts::default() };
    assert_eq!(packed().refused(), NetworkError::PackedWithoutLengths { layer: 0 });
    let lengths = Some((DataType::Int32, [5_i64].as_slice()));
    assert!(Parts { lengths, ..packed() }.build().is_ok());
    assert_eq!(
        Parts { lengths, ..Parts::default() }.refused(),
        NetworkError::LengthsWhilePadded { layer: 0 }
    );

    let argument = Argument::UpdateLengths;
    let refused = Parts { lengths: Some((DataType::Int32, &[4])), ..packed() }.refused();
    assert_eq!(refused, layer(Error::Count { argument, got: 4, want: 5 }));
    let refused = Parts { lengths: Some((DataType::Int64, &[5])), ..packed() }.refused();
    assert_eq!(refused, layer(Error::ElementType { argument, element: ElementType::Int64 }));
    let refused = Parts { lengths: Some((DataType::Int32, &[5, 1])), ..packed() }.refused();
    assert_eq!(refused, layer(Error::Rank { argument, rank: 2, expected: &[1] }));
    let refused = Parts { lengths, update: &[4, 2, 4, 1], ..packed() }.refused();
    assert_eq!(refused, layer(Error::Rank { argument: Argument::Update, rank: 4, expected: &[3] }));
    let refused = Parts { lengths: Some((DataType::Int32, &[6])), indices: &[5], ..packed() }.refused();
    assert_eq!(refused, layer(Error::BatchTooLarge { cache: 4, update: 5 }));
}

#[test]
fn wiring_is_refused_one_by_one() {
    let (network, _) = Parts::default().network();
    assert_eq!(network.build().unwrap_err(), NetworkError::OutputNotMarked { layer: 0 });

    // A second layer that takes the first one's output as its cache, as its update, or the first one's cache.
    let second = |wire: fn(&mut Network, KvCacheUpdateLayer) -> KvCacheUpdateLayer| {
        let (mut network, first) = Parts::default().network();
        let second = wire(&mut network, first);
        network.mark_output(first.output()).unwrap();
        network.mark_output(second.output()).unwrap();
        network.build().unwrap_err()
    };
    let cache_from_layer = second(|network, first| {
        let update = network.add_input("u", DataType::Float, &[4, 2, 4, 1]).unwrap();
        let indices = network.add_input("i", DataType::Int32, &[4]).unwrap();
        network.add_kv_cache_update(first.output(), update, indices, KvCacheMode::Linear).unwrap()
    });
    assert_eq!(cache_from_layer, NetworkError::CacheNotNetworkInput { layer: 1 });
    let update_from_layer = second(|network, first| {
        let cache = network.add_input("c", DataType::Float, &[4, 2, 8, 1]).unwrap();
        let indices = network.add_input("i", DataType::Int32, &[4]).unwrap();
        network.add_kv_cache_update(cache, first.output(), indices, KvCacheMode::Linear).unwrap()
    });
    assert_eq!(update_from_layer, NetworkError::FedByLayer { layer: 1, from: 0, argument: Argument::Update });

    let mut network = Network::new();
    let cache = network.add_input("cache", DataType::Float, &[4, 2, 8, 1]).unwrap();
    let indices = network.add_input("write_indices", DataType::Int32, &[4]).unwrap();
    let layer = network.add_kv_cache_update(cache, cache, indices, KvCacheMode::Linear).unwrap();
    network.mark_output(layer.output()).unwrap();
    let argument = Argument::Update;
    assert_eq!(
        network.build().unwrap_err(),
        NetworkError::CacheReadByLayer { layer: 0, cache_of: 0, argument }
    );

    let mut network = Network::new();
    let cache = network.add_input("cache", DataType::Float, &[4, 2, 8, 1]).unwrap();
    let update = network.add_input("update", DataType::Float, &[4, 2, 4, 1]).unwrap();
    let indices = network.add_input("write_indices", DataType::Int32, &[4]).unwrap();
    for _ in 0..2 {
        let layer = network.add_kv_cache_update(cache, update, indices, KvCacheMode::Linear).unwrap();
        network.mark_output(layer.output()).unwrap();
    }
    assert_eq!(network.build().unwrap_err(), NetworkError::CacheSharedByLayers { layer: 1, first: 0 });
}

#[test]
fn definitions_are_refused_one_by_one() {
    let mut network = Network::new();
    let cache = network.add_input("cache", DataType::Float, &[4, 2, 8, 1]).unwrap();
    let taken = NetworkError::NameTaken("cache".into());
    assert_eq!(network.add_input("cache", DataType::Float, &[1]).unwrap_err(), taken);
    let below = NetworkError::Dimension { name: "x".into(), dimension: 1, value: -2 };
    assert_eq!(network.add_input("x", DataType::Float, &[1, -2]).unwrap_err(), below);
    assert_eq!(network.mark_output(cache).unwrap_err(), NetworkError::InputMarkedAsOutput("cache".into()));
    assert_eq!(KvCacheMode::try_from(0), Ok(KvCacheMode::Linear));
    for value in [1, -1, i32::MAX] {
        assert_eq!(KvCacheMode::try_from(value), Err(NetworkError::CacheMode { value }));
    }
    let (other, layer) = Parts::default().network();
    let foreign = other.clone().add_input("more", DataType::Float, &[1]).unwrap();
    drop(other);
    assert_eq!(network.mark_output(foreign).unwrap_err(), NetworkError::Foreign, "its index is too large");
    assert_eq!(network.set_name(layer.output(), "mine").unwrap_err(), NetworkError::Foreign);
    assert_eq!(
        Parts::default().network().0.set_name(layer.output(), "x").unwrap_err(),
        NetworkError::Foreign
    );
    assert_eq!(network.mark_output(layer.output()).unwrap_err(), NetworkError::Foreign);
    assert_eq!(
        network.set_update_form(layer, AttentionIoForm::PaddedBhnd).unwrap_err(),
        NetworkError::Foreign
    );
}

#[test]
fn bindings_are_refused_one_by_one() {
    let engine = Parts::default().build().unwrap();
    let (mut cache, update) = (vec![0_u8; 256], vec![1_u8; 128]);
    let mut elsewhere = vec![0_u8; 256];
    let mut context = engine.create_execution_context();
    let unknown = NetworkError::UnknownInput("nothing".into());
    assert_eq!(context.bind_update("nothing", &UPDATE_SHAPE, &update).unwrap_err(), unknown);
    let name = || "update".into();
    let shape = NetworkError::BoundShape { name: name(), dimension: 2, expected: 4, got: 5 };
    let rank = NetworkError::BoundRank { name: name(), expected: 4, got: 2 };
    assert_eq!(context.bind_update("update", &[4, 2, 5, 1], &update).unwrap_err(), shape);
    assert_eq!(context.bind_update("update", &[4, 2], &update).unwrap_err(), rank);
    let wrong_type = NetworkError::BoundType("write_indices".into());
    assert_eq!(context.bind_indices("write_indices", &[0_i64; 4]).unwrap_err(), wrong_type);
    assert_eq!(context.execute().unwrap_err(), NetworkError::Unbound("cache".into()));
    context.bind_cache("cache", &CACHE_SHAPE, &mut cache).unwrap();
    context.bind_update("update", &UPDATE_SHAPE, &update).unwrap();
    context.bind_indices("write_indices", &[0_i32; 4]).unwrap();
    let unknown = NetworkError::UnknownOutput("cache".into());
    assert_eq!(context.bind_output_address("cache", elsewhere.as_ptr()).unwrap_err(), unknown);
    context.bind_output_address("output", elsewhere.as_mut_ptr()).unwrap();
    assert_eq!(context.execute().unwrap_err(), NetworkError::OutputAddress("output".into()));
    drop(context);
    assert_eq!(cache, [0; 256]);

    // A wrong address can be corrected.
    let address = cache.as_ptr();
    let mut context = engine.create_execution_context();
    context.bind_update("update", &UPDATE_SHAPE, &update).unwrap();
    context.bind_indices("write_indices", &[0_i32; 4]).unwrap();
    context.bind_output_address("output", elsewhere.as_ptr()).unwrap();
    assert_eq!(
        context.execute().unwrap_err(),
        NetworkError::Unbound("cache".into()),
        "found before the address"
    );
    context.bind_cache("cache", &CACHE_SHAPE, &mut cache).unwrap();
    context.bind_output_address("output", address).unwrap();
    context.execute().unwrap();
}

/// X1 over layers: a bad index in the last layer leaves the caches of all layers as they were.
#[test]
fn all_layers_or_none() {
    let mut network = Network::new();
    let shape = [2, 1, 4, 1];
    for name in ["k", "v"] {
        let cache = network.add_input(name, DataType::Half, &shape).unwrap();
        let update = network.add_input(&format!("new_{name}"), DataType::Half, &[2, 1, 1, 1]).unwrap();
        let indices = network.add_input(&format!("at_{name}"), DataType::Int64, &[2]).unwrap();
        let layer = network.add_kv_cache_update(cache, update, indices, KvCacheMode::Linear).unwrap();
        network.mark_output(layer.output()).unwrap();
    }
    let engine = network.build().unwrap();
    let update = [7_u8; 4];
    let run = |engine: &Engine, value_index: i64, value_bytes: usize| {
        let (mut k, mut v) = ([0_u8; 16], [0_u8; 16]);
        let v_indices = [1, value_index];
        let mut context = engine.create_execution_context();
        context.bind_cache("k", &[2, 1, 4, 1], &mut k).unwrap();
        context.bind_cache("v", &[2, 1, 4, 1], &mut v[..value_bytes]).unwrap();
        for name in ["new_k", "new_v"] {
            context.bind_update(name, &[2, 1, 1, 1], &update).unwrap();
        }
        context.bind_indices("at_k", &[0_i64, 3]).unwrap();
        context.bind_indices("at_v", &v_indices).unwrap();
        let result = context.execute();
        drop(context);
        (result, k, v)
    };
    let (result, k, v) = run(&engine, 4, 16);
    let argument = Argument::TensorRtWriteIndices;
    let error = Error::StartOutOfRange { argument, index: 1, value: 4, rows: 1, capacity: 4 };
    assert_eq!(result.unwrap_err(), NetworkError::Layer { layer: 1, error });
    assert_eq!((k, v), ([0; 16], [0; 16]));

    let (result, k, v) = run(&engine, 3, 14);
    let error = Error::BufferLength { argument: Argument::Cache, buffer: 0, got: 14, want: 16 };
    assert_eq!(result.unwrap_err(), NetworkError::Layer { layer: 1, error });
    assert_eq!((k, v), ([0; 16], [0; 16]));

    let (result, k, v) = run(&engine.clone().out_of_range(OutOfRange::SkipSample), 4, 16);
    assert_eq!(result.unwrap().skipped, 1);
    assert_eq!(k, [7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7]);
    assert_eq!(v, [0, 0, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}
