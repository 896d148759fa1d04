//! Compares `Attention` in tract with the oracle.

#[path = "../../../kvscatter-attention/tests/oracle/bounds.rs"]
mod bounds;

use kvscatter_onnx::internal::proto::{AttributeProto, ModelProto, NodeProto, ValueInfoProto};
use kvscatter_oracle::attention::{Array, Attention, Float, Inputs, Mask, Positions};
use kvscatter_oracle::cases::attention::{AttentionCase, random};
use tract_onnx::prelude::*;

use self::bounds::Bounds;
use crate::support::{model, node, plan, value, words};

/// Returns ONNX's number of a type and tract's type, or `None` for bfloat16, which tract does not have.
fn types(element: Float) -> Option<(i32, DatumType)> {
    match element {
        Float::F32 => Some((1, DatumType::F32)),
        Float::F16 => Some((10, DatumType::F16)),
        Float::Bf16 => None,
    }
}

/// A model of one node, whose dimensions are all open, and its inputs.
struct Call {
    node: NodeProto,
    infos: Vec<ValueInfoProto>,
    tensors: TVec<TValue>,
    code: i32,
}

impl Call {
    /// Returns `None` for a case that ONNX or tract cannot express. The node returns `Y`, the scores, and the
    /// presents if there is a past.
    fn new(case: &AttentionCase) -> Option<Self> {
        let Inputs { element, q, k, v, mask, past_key, past_value, positions } = &case.inputs;
        let (code, datum) = types(*element)?;
        let lengths = match positions {
            Positions::Full => None,
            Positions::Lengths(lengths) => Some(lengths),
            Positions::Ring(_) => return None,
        };
        let numbers = |array: &Array<f64>| {
            let mut tensor = Tensor::zero_dt(datum, &array.shape).unwrap();
            let bytes: Vec<u8> = array.data.iter().flat_map(|value| element.to_le_bytes(*value)).collect();
            tensor.as_bytes_mut().copy_from_slice(&bytes);
            (code, tensor)
        };
        let dims = |array: &Array<f64>, [flat, whole]: [&'static str; 2]| {
            if array.shape.len() == 3 { flat } else { whole }
        };
        let mask = mask.as_ref().map(|mask| match mask {
            Mask::Bool(mask) => (9, Tensor::from_shape(&mask.shape, &mask.data).unwrap()),
            Mask::Float(mask) => numbers(mask),
        });
        let mask_dims = ["m3", "m2 m3", "m1 m2 m3", "m0 m1 m2 m3"];
        let mask = mask.map(|(code, mask)| (mask_dims[mask.rank() - 1], (code, mask)));
        let given = [
            ("q", Some((dims(q, ["b s hd", "b h s d"]), numbers(q)))),
            ("k", Some((dims(k, ["b t gd", "b g t d"]), numbers(k)))),
            ("v", Some((dims(v, ["b t ge", "b g t e"]), numbers(v)))),
            ("mask", mask),
            ("past_key", past_key.as_ref().map(|past| ("b g p d", numbers(past)))),
            ("past_value", past_value.as_ref().map(|past| ("b g p e", numbers(past)))),
            ("lengths", lengths.map(|lengths| ("b", (7, tensor1(lengths))))),
        ];
        let outputs = match past_key {
            Some(_) => ["y", "present_key", "present_value", "scores"],
            None => ["y", "", "", "scores"],
        };
        let mut call =
            Self { node: node("Attention", "attend", &[], &outputs), infos: vec![], tensors: tvec![], code };
        call.node.attribute = attributes(&case.attention);
        for (name, given) in given {
            call.node.input.push(given.as_ref().map_or("", |_| name).to_owned());
            if let Some((dims, (code, tensor))) = given {
                call.infos.push(value(name, code, &dims.split(' ').collect::<Vec<_>>()));
                call.tensors.push(tensor.into());
            }
        }
        Some(call)
    }

    fn model(&self) -> ModelProto {
        let outputs = self.node.output.iter().filter(|name| !name.is_empty());
        let outputs = outputs.map(|name| value(name, self.code, &[])).collect();
        model(vec![self.node.clone()], self.infos.clone(), outputs)
    }

    fn run(&self) -> TractResult<TVec<TValue>> {
        plan(self.model())?.run(self.tensors.clone())
    }
}

fn attributes(attention: &Attention) -> Vec<AttributeProto> {
    let (integer, float) = (AttributeProto::int, AttributeProto::float);
    let mut attributes = vec![
        integer("is_causal", attention.is_causal.into()),
        integer("left_window_size", attention.left_window_size),
        integer("right_window_size", attention.right_window_size),
        integer("qk_matmul_output_mode", attention.qk_matmul_output_mode),
        float("softcap", attention.softcap as f32),
    ];
    attributes.extend(attention.scale.map(|scale| float("scale", scale as f32)));
    attributes.extend(attention.q_num_heads.map(|heads| integer("q_num_heads", heads)));
    attributes.extend(attention.kv_num_heads.map(|heads| integer("kv_num_heads", heads)));
    attributes.extend(attention.softmax_precision.map(|precision| integer("softmax_precision", precision)));
    attributes
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let numbers = tensor.cast_to::<f32>().unwrap().into_owned();
    numbers.try_as_plain_ram().unwrap().as_slice::<f32>().unwrap().iter().copied().map(f64::from).collect()
}

/// Some cases contain NaN in every slot that no query sees.
#[test]
fn random_cases_agree_with_the_oracle() {
    let (mut of_type, mut painted, mut with_past) = ([0; 2], 0, 0);
    for case in random(7, 700) {
        let Some(call) = Call::new(&case) else { continue };
        let results = call.run().unwrap_or_else(|error| panic!("{}: {error:?}", case.name));
        let (bounds, name) = (Bounds::new(&case), || case.name.clone());
        bounds.check_y(&numbers(&results[0]), &name);
        bounds.check_scores(&numbers(results.last().unwrap()), &name);
        let presents = [&bounds.expected.present_key, &bounds.expected.present_value];
        for (present, expected) in results[1..results.len() - 1].iter().zip(presents) {
            assert_eq!(present.shape(), expected.shape, "{}", case.name);
            let same = |(got, expected): (&f64, &f64)| got == expected || got.is_nan() && expected.is_nan();
            assert!(numbers(present).iter().zip(&expected.data).all(same), "{}", case.name);
        }
        of_type[usize::from(case.inputs.element == Float::F16)] += 1;
        painted += usize::from(case.painted);
        with_past += usize::from(results.len() == 4);
    }
    assert!(of_type.iter().all(|&cases| cases > 150) && painted > 20 && with_past > 20);
}

/// Returns a causal call of two samples with lengths, in float32.
fn causal(queries: usize, slots: usize, lengths: &[i64]) -> AttentionCase {
    let array = |step: usize, shape: [usize; 4]| {
        let values =
            (0..shape.iter().product()).map(|n: usize| ((n * step + n / 13) % 13) as f64 / 4.0 - 1.5);
        Array::new(values.collect(), &shape)
    };
    AttentionCase {
        name: format!("{queries} of {slots}"),
        attention: Attention { is_causal: true, ..Attention::default() },
        inputs: Inputs {
            element: Float::F32,
            q: array(3, [2, 8, queries, 64]),
            k: array(5, [2, 4, slots, 64]),
            v: array(7, [2, 4, slots, 48]),
            mask: None,
            past_key: None,
            past_value: None,
            positions: Positions::Lengths(lengths.to_vec()),
        },
        painted: false,
    }
}

/// A state keeps what it prepared for the last shapes and the threads of its plan.
#[test]
fn neither_threads_nor_earlier_calls_change_a_result() {
    // The kernels share calls of 2^20 multiplications and more.
    let calls = [causal(3, 20, &[20, 4]), causal(20, 200, &[190, 100])].map(|case| {
        let mut call = Call::new(&case).unwrap();
        call.node.output.truncate(1);
        call
    });
    let one_thread = plan(calls[0].model()).unwrap();
    let executor = Some(multithread::Executor::multithread(3));
    let options = RunOptions { executor, ..RunOptions::default() };
    let three_threads = one_thread.model().clone().into_runnable_with_options(&options).unwrap();
    let mut state = three_threads.spawn().unwrap();
    for turn in [0, 1, 1, 0, 0, 1] {
        let tensors = &calls[turn].tensors;
        let (got, expected) = (state.run(tensors.clone()).unwrap(), one_thread.run(tensors.clone()).unwrap());
        assert_eq!(got[0].as_bytes(), expected[0].as_bytes(), "turn {turn}");
    }
}

#[test]
fn a_node_may_have_one_present() {
    let mut case = causal(3, 5, &[]);
    let past = causal(3, 4, &[]).inputs;
    (case.inputs.past_key, case.inputs.past_value) = (Some(past.k), Some(past.v));
    case.inputs.positions = Positions::Full;
    let mut call = Call::new(&case).unwrap();
    call.node.output = ["y", "", "present_value"].map(str::to_owned).to_vec();
    let results = call.run().unwrap();
    let expected = case.expected().unwrap().present_value;
    assert_eq!((results[1].shape(), numbers(&results[1])), (&*expected.shape, expected.data));
}

#[test]
fn errors_of_a_call_have_the_name_of_the_node() {
    let masked = |mask: Mask| {
        let mut case = causal(2, 5, &[5, 5]);
        case.inputs.mask = Some(mask);
        case
    };
    for (case, expected) in [
        (causal(2, 5, &[6, 6]), "nonpad_kv_seqlen[0] = 6: must be between 0 and 5"),
        (causal(2, 5, &[-1, -1]), "nonpad_kv_seqlen[0] = -1: must be between 0 and 5"),
        (masked(Mask::Bool(Array::new(vec![true; 35], &[7, 5]))), "attn_mask has shape [7, 5]"),
        (masked(Mask::Float(Array::new(vec![0.0; 6], &[6]))), "attn_mask has shape [6]"),
    ] {
        let words = words(Call::new(&case).unwrap().run());
        assert!(words.starts_with("node \"attend\" (Attention): ") && words.contains(expected), "{words}");
    }
}
