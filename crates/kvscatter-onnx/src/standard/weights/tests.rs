//! Compares dequantized weights before and after, bit for bit. The expected values are computed here, element by
//! element, from the documentation of both operators.

use std::path::Path;

use kvscatter::ElementType;

use super::{StandardWeights, replace};
use crate::edit::NewNode;
use crate::edit::names::Names;
use crate::fold::{Fold, Value, Values};
use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto};
use crate::{Data, DataFileOrigin, Model, OnnxError, Tensor, WeightTransfer, external, tensor_proto};

/// A sequence of random bytes.
struct Random(u64);

impl Random {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let byte = |_| {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 56) as u8
        };
        (0..count).map(byte).collect()
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        self.bytes(count).into_iter().map(|byte| (f32::from(byte) - 100.0) / 640.0).collect()
    }
}

/// Returns a packed number. The first of a byte is in the low nibble.
fn number(bytes: &[u8], at: usize, bits: usize) -> u8 {
    if bits == 8 { bytes[at] } else { (bytes[at / 2] >> (4 * (at % 2))) & 15 }
}

fn le(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    let Data::Bytes(bytes) = tensor.data() else { panic!("strings") };
    bytes.as_chunks().0.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect()
}

fn bytes(tensor: &Tensor) -> &[u8] {
    let Data::Bytes(bytes) = tensor.data() else { panic!("strings") };
    bytes
}

fn tensor(name: &str, element: ElementType, dims: &[usize], bytes: Vec<u8>) -> TensorProto {
    tensor_proto::encode(name, &Tensor::new(element, dims.to_vec(), Data::Bytes(bytes)).unwrap())
}

/// Creates a model `x -> node -> y`.
fn model(node: NodeProto, initializers: Vec<TensorProto>) -> Model {
    let value = |name: &str| ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() };
    let import = |domain: &str, version| OperatorSetIdProto {
        domain: Some(domain.to_owned()),
        version: Some(version),
        ..OperatorSetIdProto::default()
    };
    let graph = GraphProto {
        node: vec![node],
        initializer: initializers,
        input: vec![value("x")],
        output: vec![value("y")],
        ..GraphProto::default()
    };
    Model::from_proto(ModelProto {
        ir_version: Some(11),
        graph: graph.into(),
        opset_import: vec![import("", 24), import("com.microsoft", 1)],
        ..ModelProto::default()
    })
}

fn microsoft(new: NewNode) -> NodeProto {
    NodeProto { domain: Some("com.microsoft".to_owned()), ..new.into_proto(&mut Names::default()) }
}

/// Moves all initializers to a file, and loads the model again.
fn external(model: &Model, folder: &Path) -> Model {
    let mut model = model.clone();
    let mut data = vec![7; 3];
    for tensor in &mut model.proto_mut().graph.get_or_insert_default().initializer {
        let bytes = tensor.raw_data.take().unwrap();
        external::refer(tensor, "in.data", data.len() as u64, bytes.len() as u64);
        data.extend(bytes);
    }
    std::fs::write(folder.join("in.data"), data).unwrap();
    model.save(&folder.join("in.onnx")).unwrap();
    Model::load(&folder.join("in.onnx")).unwrap()
}

/// Returns the initializers that the only `DequantizeLinear` reads.
fn dequantized(model: &Model) -> (Vec<Tensor>, i64) {
    let graph = model.graph().unwrap();
    let node = *graph.nodes().iter().find(|node| node.is("DequantizeLinear")).unwrap();
    let external = model.external_data().unwrap();
    let read = |name: &String| {
        let message = graph.initializers()[name.as_str()].clone();
        tensor_proto::decode(message, external.as_ref()).unwrap()
    };
    (node.proto().input.iter().map(read).collect(), node.attribute("block_size").unwrap().i.unwrap())
}

fn operators(model: &Model) -> Vec<&str> {
    model.graph().unwrap().nodes().iter().map(|node| node.op_type()).collect()
}

/// A `MatMulNBits` with random weights.
struct Product {
    bits: usize,
    n: usize,
    k: usize,
    block: usize,
    has_zeros: bool,
    has_bias: bool,
}

impl Product {
    fn blocks(&self) -> usize {
        self.k.div_ceil(self.block)
    }

    fn model(&self) -> (Model, Vec<Vec<f32>>) {
        let &Self { bits, n, k, block, has_zeros, has_bias } = self;
        let (blocks, blob) = (self.blocks(), block * bits / 8);
        let zero_row = (blocks * bits).div_ceil(8);
        let mut random = Random((n * 1000 + k) as u64);
        let (weights, scales) = (random.bytes(n * blocks * blob), random.floats(n * blocks));
        let zeros = random.bytes(n * zero_row);
        let dequantized = |n: usize, k: usize| {
            let block_at = n * blocks + k / block;
            let quantized = number(&weights[block_at * blob..], k % block, bits);
            let zero = match has_zeros {
                true => number(&zeros[n * zero_row..], k / block, bits),
                false => 1 << (bits - 1),
            };
            (f32::from(quantized) - f32::from(zero)) * scales[block_at]
        };
        let expected = (0..k).map(|k| (0..n).map(|n| dequantized(n, k)).collect()).collect();
        let inputs = ["x", "w", "s", if has_zeros { "z" } else { "" }, "", if has_bias { "b" } else { "" }];
        let node = NewNode::new("MatMulNBits", &inputs).outputs(&["y"]);
        let node = node.int("bits", bits as i64).int("N", n as i64).int("K", k as i64);
        let mut initializers = vec![
            tensor("w", ElementType::UInt8, &[n, blocks, blob], weights.clone()),
            tensor("s", ElementType::Float32, &[n, blocks], le(&scales)),
            tensor("b", ElementType::Float32, &[n], vec![0; 4 * n]),
        ];
        if has_zeros {
            initializers.push(tensor("z", ElementType::UInt8, &[n, zero_row], zeros.clone()));
        }
        (model(microsoft(node.int("block_size", block as i64)), initializers), expected)
    }

    /// Checks the weights of a converted model.
    fn check(&self, model: &Model, expected: &[Vec<f32>]) {
        let &Self { bits, n, k, has_zeros, has_bias, .. } = self;
        let wanted = ["DequantizeLinear", "MatMul", "Add"];
        assert_eq!(operators(model), wanted[..2 + usize::from(has_bias)]);
        let (inputs, block) = dequantized(model);
        let block = usize::try_from(block).unwrap();
        assert_eq!((inputs.len(), block), (2 + usize::from(has_zeros), self.block));
        assert_eq!(
            (inputs[0].shape(), inputs[1].shape()),
            ([k, n].as_slice(), [self.blocks(), n].as_slice())
        );
        let scales = floats(&inputs[1]);
        for (k, row) in expected.iter().enumerate() {
            for (n_at, expected) in row.iter().enumerate() {
                let at = k / block * n + n_at;
                let quantized = number(bytes(&inputs[0]), k * n + n_at, bits);
                let shifted = match inputs.get(2) {
                    Some(zeros) => f32::from(quantized) - f32::from(number(bytes(zeros), at, bits)),
                    // The number is signed.
                    None => f32::from((quantized << (8 - bits)) as i8 >> (8 - bits)),
                };
                assert_eq!((shifted * scales[at]).to_bits(), expected.to_bits(), "[{k}, {n_at}]");
            }
        }
        if has_zeros {
            assert_eq!(inputs[2].shape(), inputs[1].shape());
        }
    }
}

#[test]
fn weights_of_products_are_the_same_bit_for_bit() {
    let sizes = [(1, 16), (2, 32), (7, 48), (33, 65), (48, 33), (64, 128), (65, 40)];
    for (at, (n, k)) in sizes.into_iter().enumerate() {
        for (bits, block, has_zeros) in [
            (4, 16, false),
            (4, 32, true),
            (4, 64, false),
            (8, 32, false),
            (8, 16, true),
            (8, 128, true),
            (4, 16, true),
        ] {
            let product = Product { bits, n, k, block, has_zeros, has_bias: at % 2 == 0 };
            let (original, expected) = product.model();
            let mut embedded = original.clone();
            let standard = replace(&mut embedded).unwrap();
            assert_eq!((standard.replaced["MatMulNBits"], standard.kept.len()), (1, 0));
            assert!(embedded.computed().is_empty());
            product.check(&embedded, &expected);

            let folder = tempfile::tempdir().unwrap();
            let mut computed = external(&original, folder.path());
            replace(&mut computed).unwrap();
            assert_eq!(computed.proto().opset_import.len(), 1);
            let output = folder.path().join("out.onnx");
            let files = computed.save_with_weights(&output, WeightTransfer::Copy).unwrap();
            assert_eq!(files.len(), 1, "the exported file of weights is not needed");
            assert_eq!(
                (files[0].origin, &files[0].path),
                (DataFileOrigin::Written, &folder.path().join("out.onnx.data"))
            );
            product.check(&Model::load(&output).unwrap(), &expected);
            product.check(&Model::from_bytes(&computed.to_bytes().unwrap()).unwrap(), &expected);
        }
    }
}

#[test]
fn a_file_of_other_weights_is_never_replaced() {
    let product = Product { bits: 4, n: 6, k: 32, block: 16, has_zeros: true, has_bias: false };
    let folder = tempfile::tempdir().unwrap();
    let mut model = external(&product.model().0, folder.path());
    replace(&mut model).unwrap();
    let save = |name: &str| model.save_with_weights(&folder.path().join(name), WeightTransfer::Copy);
    let names = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(save("a.onnx").unwrap()[0].origin, DataFileOrigin::Written);
    assert_eq!(save("a.onnx").unwrap()[0].origin, DataFileOrigin::Kept);
    assert_eq!(names(), ["a.onnx", "a.onnx.data", "in.data", "in.onnx"]);
    std::fs::write(folder.path().join("b.onnx.data"), "other").unwrap();
    let error = save("b.onnx").unwrap_err();
    assert!(matches!(error.root(), OnnxError::DataFileDiffers), "{error}");
    let error = save("in.data").unwrap_err();
    assert!(matches!(error.root(), OnnxError::OverInput), "{error}");
    assert_eq!(names(), ["a.onnx", "a.onnx.data", "b.onnx.data", "in.data", "in.onnx"]);
}

/// A `GatherBlockQuantized` with a random table.
struct Rows {
    element: ElementType,
    bits: usize,
    columns: usize,
    block: usize,
    has_zeros: bool,
}

impl Rows {
    const ROWS: usize = 9;

    fn model(&self) -> (Model, Vec<Vec<f32>>) {
        let &Self { element, bits, columns, block, has_zeros } = self;
        let (rows, blocks) = (Self::ROWS, columns.div_ceil(block));
        let [row, zero_row] = [columns, blocks].map(|size| (size * bits).div_ceil(8));
        let mut random = Random((columns + block) as u64);
        let [table, zeros] = [row, zero_row].map(|row| random.bytes(rows * row));
        let scales = random.floats(rows * blocks);
        let read = |bytes: &[u8], at| {
            let number = number(bytes, at, bits);
            if element == ElementType::Int4 { f32::from((number << 4) as i8 >> 4) } else { f32::from(number) }
        };
        let dequantized = |at: usize, column: usize| {
            let zero = match (has_zeros, element) {
                (true, _) => read(&zeros[at * zero_row..], column / block),
                (false, ElementType::UInt8) => f32::from(1_u8 << (bits - 1)),
                (false, _) => 0.0,
            };
            (read(&table[at * row..], column) - zero) * scales[at * blocks + column / block]
        };
        let expected =
            (0..rows).map(|at| (0..columns).map(|column| dequantized(at, column)).collect()).collect();
        let inputs = ["w", "x", "s", if has_zeros { "z" } else { "" }];
        let node = NewNode::new("GatherBlockQuantized", &inputs).outputs(&["y"]).int("bits", bits as i64);
        let dims =
            |row: usize, columns: usize| [rows, if element == ElementType::UInt8 { row } else { columns }];
        let mut initializers = vec![
            tensor("w", element, &dims(row, columns), table.clone()),
            tensor("s", ElementType::Float32, &[rows, blocks], le(&scales)),
        ];
        if has_zeros {
            initializers.push(tensor("z", element, &dims(zero_row, blocks), zeros.clone()));
        }
        (model(microsoft(node.int("block_size", block as i64)), initializers), expected)
    }

    /// Checks what `DequantizeLinear` reads for a few indices.
    fn check(&self, model: &Model, expected: &[Vec<f32>]) {
        let graph = model.graph().unwrap();
        let node = *graph.nodes().last().unwrap();
        assert!(node.is("DequantizeLinear") && node.attribute("axis").unwrap().i == Some(-1));
        assert_eq!(node.attribute("block_size").unwrap().i, Some(self.block as i64));
        let external = model.external_data().unwrap();
        let mut fold = Fold::new(&graph, external.as_ref());
        let picked = [[8, 0, 3], [3, -1, 5]];
        let indices = Values::Ints(picked.as_flattened().to_vec());
        fold.set("x", Value::new(ElementType::Int64, vec![2, 3], Some(indices)).unwrap()).unwrap();
        let mut read = |slot| fold.value(node.input(slot)?).ok().cloned();
        let [numbers, scales, zeros] = [0, 1, 2].map(&mut read);
        let (numbers, scales) = (numbers.unwrap(), scales.unwrap());
        let blocks = self.columns.div_ceil(self.block);
        assert_eq!((&numbers.shape, numbers.element), (&vec![2, 3, self.columns], ElementType::UInt8));
        assert_eq!(scales.shape, [2, 3, blocks]);
        assert!(zeros.as_ref().is_none_or(|zeros| zeros.shape == scales.shape));
        for (at, &index) in picked.as_flattened().iter().enumerate() {
            let expected = &expected[usize::try_from((index + 9) % 9).unwrap()];
            for (column, expected) in expected.iter().enumerate() {
                let block = at * blocks + column / self.block;
                let number = numbers.as_ints().unwrap()[at * self.columns + column];
                let zero = zeros.as_ref().map_or(0, |zeros| zeros.as_ints().unwrap()[block]);
                let got = (number - zero) as f32 * scales.as_floats().unwrap()[block] as f32;
                assert_eq!(got.to_bits(), expected.to_bits(), "[{index}, {column}]");
            }
        }
    }
}

#[test]
fn rows_of_tables_are_the_same_bit_for_bit() {
    let tables = [
        (ElementType::UInt8, 4, 64, 32),
        (ElementType::UInt8, 4, 96, 32),
        (ElementType::UInt8, 4, 40, 16),
        (ElementType::UInt8, 8, 33, 16),
        (ElementType::UInt4, 4, 64, 32),
        (ElementType::Int4, 4, 64, 16),
    ];
    for (element, bits, columns, block) in tables {
        for has_zeros in [false, true] {
            let rows = Rows { element, bits, columns, block, has_zeros };
            let (original, expected) = rows.model();
            let mut embedded = original.clone();
            assert_eq!(replace(&mut embedded).unwrap().replaced["GatherBlockQuantized"], 1);
            rows.check(&embedded, &expected);
            let folder = tempfile::tempdir().unwrap();
            let mut files = external(&original, folder.path());
            replace(&mut files).unwrap();
            files.save_with_weights(&folder.path().join("out.onnx"), WeightTransfer::Copy).unwrap();
            rows.check(&Model::load(&folder.path().join("out.onnx")).unwrap(), &expected);
        }
    }
}

#[test]
fn two_products_share_their_weights() {
    let product = Product { bits: 4, n: 6, k: 32, block: 16, has_zeros: false, has_bias: false };
    let mut model = product.model().0;
    let graph = model.proto_mut().graph.get_or_insert_default();
    let mut second = graph.node[0].clone();
    second.name = Some("second".to_owned());
    second.output = vec!["second".to_owned()];
    graph.node[0].output = vec!["first".to_owned()];
    graph.node.push(second);
    let sum = NewNode::new("Add", &["first", "second"]).outputs(&["y"]);
    graph.node.push(sum.into_proto(&mut Names::default()));
    assert_eq!(replace(&mut model).unwrap().replaced["MatMulNBits"], 2);
    assert_eq!(model.proto().graph.initializer.len(), 2);
}

#[test]
fn what_has_no_standard_form_stays() {
    let kept = |change: &dyn Fn(&mut GraphProto)| {
        let product = Product { bits: 4, n: 6, k: 32, block: 16, has_zeros: true, has_bias: false };
        let mut model = product.model().0;
        change(model.proto_mut().graph.get_or_insert_default());
        let StandardWeights { replaced, kept } = replace(&mut model).unwrap();
        assert!(replaced.is_empty() && kept.len() == 1, "{kept:?}");
        assert_eq!(operators(&model), [kept[0].node.op_type.as_str()]);
        kept[0].reason.to_string()
    };
    let set = |name: &'static str, value: i64| {
        move |graph: &mut GraphProto| {
            let node = std::mem::take(&mut graph.node[0]);
            graph.node[0] = NewNode::from(node).int(name, value).into_proto(&mut Names::default());
        }
    };
    let reasons = [
        (kept(&|graph| graph.node[0].op_type = Some("QMoE".to_owned())), "QMoE"),
        (kept(&|graph| graph.node[0].input[4] = "z".to_owned()), "g_idx of MatMulNBits"),
        (kept(&set("weight_prepacked", 1)), "weight_prepacked of MatMulNBits"),
        (kept(&set("bits", 2)), "MatMulNBits with bits = 2"),
        (kept(&set("N", 0)), "N = 0"),
        (kept(&set("K", 48)), "B of 96 bytes, where K and N take 144,"),
        (kept(&set("unknown", 1)), "attribute \"unknown\" of MatMulNBits"),
        (kept(&|graph| graph.node[0].input[1] = "x".to_owned()), "B that is not a constant"),
        (
            kept(&|graph| graph.initializer[3] = tensor("z", ElementType::Float32, &[6, 2], vec![0; 48])),
            "zero_points of float",
        ),
        (
            kept(&|graph| {
                graph.input.push(ValueInfoProto { name: Some("s".to_owned()), ..ValueInfoProto::default() })
            }),
            "scales that is not a constant",
        ),
    ];
    for (reason, what) in reasons {
        assert_eq!(reason, format!("{what} has no form in operators of ONNX"));
    }
}
