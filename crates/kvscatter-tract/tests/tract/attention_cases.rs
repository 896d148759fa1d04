//! Runs ONNX's own node tests of `Attention` in `kvscatter-attention`, from the folder in `KVSCATTER_CASES`, as in
//! `cargo xtask models`. The tests of that crate read no files, so that they build fast.

#[path = "../../../kvscatter-attention/tests/oracle/call.rs"]
#[expect(dead_code, reason = "these cases need only some calls")]
mod call;
#[path = "../../../kvscatter-attention/tests/oracle/element.rs"]
#[expect(dead_code, reason = "these cases need only some conversions")]
mod element;

use std::path::Path;

use half::{bf16, f16};
use kvscatter::ElementType;
use kvscatter_attention::{Attention, Scores};
use kvscatter_onnx::test_dir::{TestCase, discover};
use kvscatter_onnx::{Data, Model, Node, Tensor as OnnxTensor};
use kvscatter_oracle::attention::{self as oracle, Positions};

use self::call::{AnyMask, Operands, Tensor, operator};
use self::element::{Element, elements};

/// The tolerance of ONNX's own runner.
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-6;

#[test]
#[ignore = "needs a folder of cases in KVSCATTER_CASES"]
fn those_of_a_folder() {
    let folder = std::env::var_os("KVSCATTER_CASES").expect("KVSCATTER_CASES names a folder of cases");
    let mut ran = 0;
    for folder in discover(Path::new(&folder)).unwrap().cases {
        let case = TestCase::open(&folder).unwrap();
        let model = Model::load(&case.model_path()).unwrap();
        let graph = model.graph().unwrap();
        let [node] = graph.nodes() else { panic!("{}: one node", folder.display()) };
        for set in &case.data_sets {
            let inputs = set.read_inputs(&graph).unwrap();
            let input = |slot| {
                let name = node.input(slot)?;
                inputs.iter().find(|(input, _)| input == name).map(|(_, tensor)| tensor)
            };
            let outputs: Vec<_> = graph.output_names().zip(set.read_outputs().unwrap()).collect();
            let output = |slot| {
                let name = node.output(slot)?;
                outputs.iter().find(|(output, _)| *output == name).map(|(_, tensor)| tensor)
            };
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            match input(0).unwrap().element() {
                ElementType::Float32 => check::<f32>(&name, node, input, output),
                ElementType::Float16 => check::<f16>(&name, node, input, output),
                ElementType::BFloat16 => check::<bf16>(&name, node, input, output),
                other => panic!("{name}: {other}"),
            }
            ran += 1;
        }
    }
    assert!(ran > 80, "{ran}");
}

fn check<'t, T: Element>(
    name: &str,
    node: &Node<'_>,
    input: impl Fn(usize) -> Option<&'t OnnxTensor>,
    output: impl Fn(usize) -> Option<&'t OnnxTensor>,
) {
    let tensor = |slot| input(slot).map(tensor::<T>);
    let operands = Operands {
        query: tensor(0).unwrap(),
        key: tensor(1).unwrap(),
        value: tensor(2).unwrap(),
        mask: input(3).map(|mask| match (mask.element(), mask.data()) {
            (ElementType::Bool, Data::Bytes(bytes)) => {
                AnyMask::Bool(Tensor { shape: mask.shape().to_vec(), data: bytes.clone() })
            }
            _ => AnyMask::Float(self::tensor(mask)),
        }),
        past: tensor(4).zip(tensor(5)).map(|(key, value)| [key, value]),
        lengths: input(6).map(|lengths| lengths.int64s().unwrap().collect()),
    };
    let mut op = attributes(node);
    if output(3).is_some() {
        op = op.scores(Scores::from_mode(int(node, "qk_matmul_output_mode").unwrap_or(0)).unwrap());
    }
    let prepared = operands.prepare(&op).unwrap_or_else(|error| panic!("{name}: {error}"));
    let shapes = [
        Some(prepared.output_shape()),
        Some(prepared.present_shapes()[0].to_vec()),
        Some(prepared.present_shapes()[1].to_vec()),
        Some(prepared.scores_shape().to_vec()),
    ];
    let mut scratch = prepared.scratch(1);
    let results = operands.run_on(&prepared, &op, output(1).is_some(), &mut scratch, None).unwrap();
    let present = results.present.map(|[key, value]| (key, value)).unzip();
    let results = [Some(results.y), present.0, present.1, results.scores];
    for (slot, (results, shape)) in results.into_iter().zip(shapes).enumerate() {
        let Some(expected) = output(slot) else { continue };
        assert_eq!(shape.as_deref(), Some(expected.shape()), "{name}: output {slot}");
        let expected = numbers(expected);
        for (at, (got, expected)) in results.unwrap().into_iter().zip(expected).enumerate() {
            let got = f64::from(got.to_f32());
            // ONNX's results of the half types were rounded after every step of the function body.
            let rounding = 2.0 * T::TYPE.unit_in_the_last_place(expected);
            let is_close = got == expected
                || got.is_nan() && expected.is_nan()
                || (got - expected).abs() <= ABSOLUTE + RELATIVE * expected.abs() + rounding;
            assert!(is_close, "{name}: element {at} of output {slot} is {got}, not {expected}");
        }
    }
}

/// Returns the operator without an output of scores.
fn attributes(node: &Node<'_>) -> Attention {
    let float = |name: &str| node.attribute(name).and_then(|attribute| attribute.f).map(f64::from);
    let attention = oracle::Attention {
        is_causal: int(node, "is_causal").is_some_and(|value| value != 0),
        scale: float("scale"),
        softcap: float("softcap").unwrap_or(0.0),
        q_num_heads: int(node, "q_num_heads"),
        kv_num_heads: int(node, "kv_num_heads"),
        softmax_precision: int(node, "softmax_precision"),
        left_window_size: int(node, "left_window_size").unwrap_or(-1),
        right_window_size: int(node, "right_window_size").unwrap_or(-1),
        ..oracle::Attention::default()
    };
    operator(&attention, &Positions::Full).unwrap()
}

fn int(node: &Node<'_>, name: &str) -> Option<i64> {
    node.attribute(name).and_then(|attribute| attribute.i)
}

/// Converts a tensor of floating-point numbers. A mask may have another type than the queries.
fn tensor<T: Element>(tensor: &OnnxTensor) -> Tensor<T> {
    Tensor { shape: tensor.shape().to_vec(), data: elements(&numbers(tensor)) }
}

fn numbers(tensor: &OnnxTensor) -> Vec<f64> {
    fn values<T: Element>(bytes: &[u8]) -> Vec<f64> {
        let elements = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>);
        elements.map(|element| f64::from(element.to_f32())).collect()
    }
    match (tensor.element(), tensor.data()) {
        (ElementType::Float32, Data::Bytes(bytes)) => values::<f32>(bytes),
        (ElementType::Float16, Data::Bytes(bytes)) => values::<f16>(bytes),
        (ElementType::BFloat16, Data::Bytes(bytes)) => values::<bf16>(bytes),
        (other, _) => panic!("a tensor of {other}"),
    }
}
