//! Runs ONNX's own node tests from folders.
//!
//! `testdata/onnx-node` has the tests of `TensorScatter`, and `testdata/onnx-attention` those of `Attention`
//! with `nonpad_kv_seqlen`. If `KVSCATTER_CASES` names the folder of all tests of `Attention`, as in `cargo
//! xtask models`, all of them run.

use std::path::Path;

use kvscatter_onnx::internal::test_dir::{DataSet, TestCase, discover};
use kvscatter_onnx::{Data, Model};
use kvscatter_tract::register;
use tract_onnx::prelude::*;

use crate::support::testdata;

/// The tolerance of ONNX's own runner, plus half a unit of float16.
const RELATIVE: f32 = 1e-3;
const ABSOLUTE: f32 = 1e-6;

#[test]
fn those_of_the_repository() {
    let [(scatter, no_scatter), (attention, no_attention)] =
        ["onnx-node", "onnx-attention"].map(|folder| run_all(&testdata(folder)));
    let (ran, refused) = ([scatter, attention].concat(), [no_scatter, no_attention].concat());
    let named = |name: &str| ran.iter().any(|ran| ran == name);
    for name in [
        "test_tensorscatter",
        "test_tensorscatter_3d",
        "test_tensorscatter_circular",
        "test_attention_4d_diff_heads_mask4d_padded_kv",
        "test_attention_4d_gqa_causal_nonpad_decode",
        "test_attention_4d_gqa_causal_nonpad_decode_fp16",
        "test_attention_4d_causal_nonpad_continued_prefill",
        "test_attention_4d_causal_nonpad_negative_offset_structural_empty",
        "test_attention_4d_causal_nonpad_attn_mask_composition",
        "test_attention_4d_causal_nonpad_batch_prefill",
    ] {
        assert!(named(name), "{name} did not run");
    }
    assert_eq!(refused, [] as [String; 0]);
}

#[test]
#[ignore = "needs a folder of cases in KVSCATTER_CASES"]
fn those_of_a_folder() {
    let folder = std::env::var_os("KVSCATTER_CASES").expect("KVSCATTER_CASES names a folder of cases");
    let (ran, refused) = run_all(Path::new(&folder));
    assert!(ran.len() > 80, "{ran:?}");
    // tract has no bfloat16.
    assert!(refused.iter().all(|name| name.ends_with("_bf16")), "{refused:?}");
}

/// Returns the names of the cases that ran and passed, and of those that tract does not load.
fn run_all(folder: &Path) -> (Vec<String>, Vec<String>) {
    let (mut ran, mut refused) = (vec![], vec![]);
    for folder in discover(folder).unwrap().cases {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let case = TestCase::open(&folder).unwrap();
        let mut onnx = tract_onnx::onnx();
        register(&mut onnx);
        let plan =
            onnx.model_for_path(case.model_path()).and_then(|model| model.into_optimized()?.into_runnable());
        match plan {
            Ok(plan) => {
                let model = Model::load(&case.model_path()).unwrap();
                case.data_sets.iter().for_each(|set| check(&name, &plan, &model, set));
                ran.push(name);
            }
            Err(_) => refused.push(name),
        }
    }
    (ran, refused)
}

fn check(name: &str, plan: &Arc<TypedSimplePlan>, model: &Model, set: &DataSet) {
    let inputs = set.read_inputs(&model.graph().unwrap()).unwrap();
    let inputs = inputs.iter().map(|(_, tensor)| theirs(tensor).into()).collect();
    let results = plan.run(inputs).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    let expected = set.read_outputs().unwrap();
    assert_eq!(results.len(), expected.len(), "{name}");
    for (got, expected) in results.iter().zip(&expected) {
        let expected = theirs(expected);
        assert_eq!((got.shape(), got.datum_type()), (expected.shape(), expected.datum_type()), "{name}");
        let numbers = |tensor: &Tensor| tensor.cast_to::<f32>().unwrap().into_owned();
        let (got, expected) = (numbers(got), numbers(&expected));
        let [got, expected] = [&got, &expected]
            .map(|tensor| tensor.try_as_plain_ram().unwrap().as_slice::<f32>().unwrap().to_vec());
        for (got, expected) in got.iter().zip(&expected) {
            let is_close = got == expected || (got - expected).abs() <= ABSOLUTE + RELATIVE * expected.abs();
            assert!(is_close, "{name}: {got} instead of {expected}");
        }
    }
}

fn theirs(tensor: &kvscatter_onnx::Tensor) -> Tensor {
    let datum = match tensor.element().to_string().as_str() {
        "float" => DatumType::F32,
        "float16" => DatumType::F16,
        "int64" => DatumType::I64,
        "bool" => DatumType::Bool,
        other => panic!("a case with {other}"),
    };
    let Data::Bytes(bytes) = tensor.data() else { panic!("a case with strings") };
    let mut theirs = Tensor::zero_dt(datum, tensor.shape()).unwrap();
    theirs.as_bytes_mut().copy_from_slice(bytes);
    theirs
}
