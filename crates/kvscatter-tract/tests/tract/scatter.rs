//! Compares `TensorScatter` in tract with the oracle, and checks its effect on the cache's memory.

use kvscatter_onnx::internal::proto::{AttributeProto, NodeProto};
use kvscatter_oracle::cases::{self, Call, Case, Values};
use kvscatter_tract::cache_copy_counts;
use tract_onnx::prelude::*;

use crate::support::{model, node, plan, value, words};

/// tract's types with ONNX's names and numbers.
const TYPES: [(&str, i32, DatumType); 12] = [
    ("float", 1, DatumType::F32),
    ("uint8", 2, DatumType::U8),
    ("int8", 3, DatumType::I8),
    ("uint16", 4, DatumType::U16),
    ("int16", 5, DatumType::I16),
    ("int32", 6, DatumType::I32),
    ("int64", 7, DatumType::I64),
    ("bool", 9, DatumType::Bool),
    ("float16", 10, DatumType::F16),
    ("double", 11, DatumType::F64),
    ("uint32", 12, DatumType::U32),
    ("uint64", 13, DatumType::U64),
];

fn tensor(datum: DatumType, shape: &[usize], values: &Values) -> Tensor {
    match values {
        Values::Bytes(bytes) => {
            let mut tensor = Tensor::zero_dt(datum, shape).unwrap();
            tensor.as_bytes_mut().copy_from_slice(bytes);
            tensor
        }
        Values::Strings(strings) => {
            tract_ndarray::ArrayD::from_shape_vec(shape, strings.clone()).unwrap().into()
        }
    }
}

fn values(tensor: &Tensor) -> Values {
    match tensor.datum_type() {
        DatumType::String => {
            Values::Strings(tensor.try_as_plain_ram().unwrap().as_slice::<String>().unwrap().to_vec())
        }
        _ => Values::Bytes(tensor.as_bytes().to_vec()),
    }
}

fn write_node(attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto { attribute, ..node("TensorScatter", "write", &["cache", "update", "at"], &["present"]) }
}

/// Runs a case with all dimensions open, so that only the run can detect errors.
fn run(case: &Case, code: i32, datum: DatumType) -> Option<Result<Values, String>> {
    let Call::TensorScatter { operator, write_indices, .. } = &case.call else { return None };
    let (cache_names, update_names) =
        (["ca", "cb", "cc", "cd", "ce", "cf"], ["ua", "ub", "uc", "ud", "ue", "uf"]);
    let (cache_dims, update_dims) =
        (cache_names.get(..case.cache_shape.len())?, update_names.get(..case.update_shape.len())?);
    let mut write = write_node(vec![
        AttributeProto::int("axis", operator.axis),
        AttributeProto::string("mode", &operator.mode),
    ]);
    let mut inputs = vec![value("cache", code, cache_dims), value("update", code, update_dims)];
    let mut given: TVec<TValue> = tvec![
        tensor(datum, &case.cache_shape, &case.cache).into(),
        tensor(datum, &case.update_shape, &case.update).into()
    ];
    match write_indices {
        Some(indices) => {
            inputs.push(value("at", 7, &["n"]));
            given.push(tensor1(indices).into());
        }
        None => write.input.truncate(2),
    }
    let outputs = vec![value("present", code, cache_dims)];
    let present = plan(model(vec![write], inputs, outputs)).and_then(|plan| plan.run(given));
    Some(present.map(|present| values(&present[0])).map_err(|error| error.root_cause().to_string()))
}

#[test]
fn it_leaves_what_the_oracle_leaves() {
    let mut seen = [0; 2];
    for case in cases::tensor_scatter(7, 4000) {
        let [element, update] = case.elements.map(|element| element.name);
        let known =
            TYPES.iter().copied().chain([("string", 8, DatumType::String)]).find(|row| row.0 == element);
        let Some((_, code, datum)) = known.filter(|_| element == update) else { continue };
        let Some(got) = run(&case, code, datum) else { continue };
        match (&case.expected, got) {
            (Ok(expected), Ok(present)) => {
                assert_eq!(present, expected.present, "{}", case.name);
                seen[0] += 1;
            }
            (Err(_), Err(words)) => {
                assert!(words.starts_with("node \"write\" (TensorScatter): "), "{}: {words}", case.name);
                seen[1] += 1;
            }
            (expected, got) => panic!("{}: {got:?} instead of {expected:?}", case.name),
        }
    }
    assert!(seen[0] > 500 && seen[1] > 100, "{seen:?}");
}

/// Returns a plan that writes a cache of `[batch, 8, 2]` at axis 1.
fn write(outputs: &[&str], more: Option<NodeProto>) -> Arc<TypedSimplePlan> {
    let write = write_node(vec![AttributeProto::int("axis", 1)]);
    let inputs = vec![
        value("cache", 1, &["batch", "8", "2"]),
        value("update", 1, &["batch", "rows", "2"]),
        value("at", 7, &["batch"]),
    ];
    let nodes = [write].into_iter().chain(more).collect();
    let outputs = outputs.iter().map(|name| value(name, 1, &["batch", "8", "2"])).collect();
    plan(model(nodes, inputs, outputs)).unwrap()
}

fn given(cache: Tensor, at: &[i64]) -> TVec<TValue> {
    let update = Tensor::from_shape(&[at.len(), 1, 2], &vec![7.0_f32; at.len() * 2]).unwrap();
    tvec![cache.into(), update.into(), tensor1(at).into()]
}

#[test]
fn the_cache_stays_where_it_is_step_after_step() {
    let mut state = write(&["present"], None).spawn().unwrap();
    let mut cache = Tensor::zero::<f32>(&[2, 8, 2]).unwrap();
    let address = cache.as_bytes().as_ptr();
    for step in 0..8 {
        let present = state.run(given(cache, &[step, 7 - step])).unwrap();
        assert_eq!(present[0].as_bytes().as_ptr(), address);
        cache = present.into_iter().next().unwrap().into_tensor();
    }
    assert!(cache.try_as_plain_ram().unwrap().as_slice::<f32>().unwrap().iter().all(|value| *value == 7.0));
    assert_eq!(cache_copy_counts(&state), []);
}

#[test]
fn a_second_reader_of_the_cache_makes_it_a_copy_that_is_counted() {
    let sum = node("Add", "sum", &["cache", "present"], &["sum"]);
    let mut state = write(&["present", "sum"], Some(sum)).spawn().unwrap();
    for step in 1..=2 {
        let results = state.run(given(Tensor::zero::<f32>(&[1, 8, 2]).unwrap(), &[3])).unwrap();
        // `Add` read the zeros of the past, not the new rows, so the sum is the present.
        assert_eq!(results[0].as_bytes(), results[1].as_bytes());
        assert_eq!(cache_copy_counts(&state), [("write".to_owned(), step)]);
    }
}

#[test]
fn a_cache_that_the_caller_also_keeps_is_copied() {
    let mut state = write(&["present"], None).spawn().unwrap();
    let mut given = given(Tensor::zero::<f32>(&[1, 8, 2]).unwrap(), &[3]);
    let held = given[0].clone();
    let present = state.run(std::mem::take(&mut given)).unwrap();
    assert_ne!(present[0].as_bytes().as_ptr(), held.as_bytes().as_ptr());
    assert!(held.as_bytes().iter().all(|byte| *byte == 0));
    assert_eq!(cache_copy_counts(&state), [("write".to_owned(), 1)]);
}

#[test]
fn errors_of_a_model_name_the_node() {
    let refused = |attributes, cache: &[&str], update: &[&str], at: i32| {
        let inputs = vec![value("cache", 1, cache), value("update", 1, update), value("at", at, &["batch"])];
        words(plan(model(vec![write_node(attributes)], inputs, vec![value("present", 1, cache)])))
    };
    let (node, integer) = ("node \"write\" (TensorScatter): ", AttributeProto::int);
    for (expected, attributes, cache, update, at) in [
        ("unknown attribute \"axes\"", vec![integer("axes", 1)], ["b", "8", "2"], ["b", "1", "2"], 7),
        (
            "attribute \"mode\" must be a string",
            vec![integer("mode", 1)],
            ["b", "8", "2"],
            ["b", "1", "2"],
            7,
        ),
        ("axis = 0", vec![integer("axis", 0)], ["b", "8", "2"], ["b", "1", "2"], 7),
        ("update", vec![], ["b", "8", "2"], ["b", "9", "2"], 7),
        ("write_indices", vec![], ["b", "8", "2"], ["b", "1", "2"], 6),
    ] {
        let words = refused(attributes, &cache, &update, at);
        assert!(words.starts_with(node) && words.contains(expected), "{words}");
    }
}
