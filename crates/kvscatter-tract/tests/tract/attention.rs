//! Compares `Attention` in tract with a slow float64 implementation of its definition.

use half::f16;
use kvscatter_oracle::cases::Random;
use tract_onnx::pb::{AttributeProto, NodeProto, ValueInfoProto};
use tract_onnx::prelude::*;

use crate::support::{float, integer, model, node, plan, value, words};

/// The inputs of a node with their values.
type Given = TVec<(ValueInfoProto, Tensor)>;

/// One call, in rank 4 for models of any rank.
#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    heads: [usize; 2],
    queries: usize,
    keys: usize,
    past: usize,
    sizes: [usize; 2],
    is_rank_3: bool,
    is_causal: bool,
    window: [i64; 2],
    softcap: f32,
    scale: Option<f32>,
    lengths: Option<Vec<i64>>,
    /// The shape of the mask, and whether it is boolean.
    mask: Option<(Vec<usize>, bool)>,
    mode: Option<i64>,
}

/// The values of the inputs, `[batch, heads, length, size]`.
struct AttentionTensors {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    past_key: Vec<f32>,
    past_value: Vec<f32>,
    mask: Vec<f32>,
}

impl Case {
    fn random(seed: u64) -> Self {
        let random = &mut Random::new(seed, 0);
        let keys_of_head = 1 + random.below(3);
        let heads = [keys_of_head * (1 + random.below(4)), keys_of_head];
        let has_past = random.below(3) == 0;
        let batch = 1 + random.below(3);
        let (queries, keys) = (1 + random.below(20), 1 + random.below(40));
        let past = if has_past { random.below(10) } else { 0 };
        let lengths = (!has_past && random.below(2) == 0)
            .then(|| (0..batch).map(|_| i64::try_from(random.below(keys + 1)).unwrap()).collect());
        let mask = (random.below(2) == 0).then(|| {
            let shorter = if random.below(3) == 0 { random.below(3) } else { 0 };
            let full = [batch, heads[0], queries, (past + keys).saturating_sub(shorter).max(1)];
            let mut shape = full[random.below(4)..].to_vec();
            let outer = shape.len() - 1;
            shape[..outer].iter_mut().for_each(|dim| *dim = if random.below(3) == 0 { 1 } else { *dim });
            (shape, random.below(2) == 0)
        });
        Self {
            batch,
            heads,
            queries,
            keys,
            past,
            sizes: [1 + random.below(40), 1 + random.below(40)],
            is_rank_3: random.below(2) == 0,
            is_causal: random.below(2) == 0,
            window: [random.below(8) as i64, random.below(8) as i64]
                .map(|bound| if bound > 4 { -1 } else { bound }),
            softcap: [0.0, 1.5][random.below(2)],
            scale: [None, Some(0.3)][random.below(2)],
            lengths,
            mask,
            mode: [None, None, Some(0), Some(1), Some(2), Some(3)][random.below(6)],
        }
    }

    fn total(&self) -> usize {
        self.past + self.keys
    }

    fn inputs(&self, random: &mut Random) -> AttentionTensors {
        let mut numbers = |count: usize| random.many(count, number);
        let [of_query, of_key] = self.heads.map(|heads| self.batch * heads);
        let [size, value_size] = self.sizes;
        let mut inputs = AttentionTensors {
            query: numbers(of_query * self.queries * size),
            key: numbers(of_key * self.keys * size),
            value: numbers(of_key * self.keys * value_size),
            past_key: numbers(of_key * self.past * size),
            past_value: numbers(of_key * self.past * value_size),
            mask: numbers(self.mask.as_ref().map_or(0, |(shape, _)| shape.iter().product())),
        };
        if let Some((_, marks_visible)) = &self.mask {
            let to = if *marks_visible { [0.0, 1.0] } else { [f32::NEG_INFINITY, f32::NAN] };
            for value in &mut inputs.mask {
                *value = match (*value < -0.5, to[1].is_nan()) {
                    (true, _) => to[0],
                    (false, true) => *value,
                    (false, false) => to[1],
                };
            }
        }
        inputs
    }

    /// Returns the number that is added to a score, negative infinity for a masked key.
    fn bias(&self, inputs: &AttentionTensors, [b, h, i, j]: [usize; 4]) -> f64 {
        let length = self.lengths.as_ref().map(|lengths| lengths[b]);
        let offset = length.map_or(self.past as i64, |length| length - self.queries as i64);
        let (place, key) = (i as i64 + offset, j as i64);
        let [left, right] = self.window;
        let is_hidden = length.is_some_and(|length| key >= length)
            || (self.is_causal && key > place)
            || (left >= 0 && key < place - left)
            || (right >= 0 && key > place + right);
        let Some((shape, marks_visible)) = self.mask.as_ref().filter(|_| !is_hidden) else {
            return if is_hidden { f64::NEG_INFINITY } else { 0.0 };
        };
        let index = [b, h, i, j];
        let index = &index[4 - shape.len()..];
        if j >= *shape.last().unwrap() {
            return f64::NEG_INFINITY;
        }
        let flat =
            index.iter().zip(shape).fold(0, |flat, (at, dim)| flat * dim + if *dim == 1 { 0 } else { *at });
        match (marks_visible, inputs.mask[flat]) {
            (true, 0.0) => f64::NEG_INFINITY,
            (true, _) => 0.0,
            (false, added) => f64::from(added),
        }
    }

    /// Returns `Y` as `[batch, heads, queries, size]`, and the scores of the mode.
    fn reference(&self, inputs: &AttentionTensors) -> (Vec<f64>, Vec<f64>) {
        let ([heads, key_heads], [size, value_size]) = (self.heads, self.sizes);
        let scale = self.scale.map_or(1.0 / (size as f64).sqrt(), f64::from);
        let value_at = |past: &[f32], new: &[f32], width: usize, [b, g, j, d]: [usize; 4]| {
            let from = |values: &[f32], length: usize, j: usize| {
                values[((b * key_heads + g) * length + j) * width + d]
            };
            f64::from(if j < self.past {
                from(past, self.past, j)
            } else {
                from(new, self.keys, j - self.past)
            })
        };
        let (mut output, mut scores) = (vec![], vec![]);
        for (b, h, i) in (0..self.batch)
            .flat_map(|b| (0..heads).map(move |h| (b, h)))
            .flat_map(|(b, h)| (0..self.queries).map(move |i| (b, h, i)))
        {
            let g = h / (heads / key_heads);
            let query = |d: usize| f64::from(inputs.query[((b * heads + h) * self.queries + i) * size + d]);
            let key = |j, d| value_at(&inputs.past_key, &inputs.key, size, [b, g, j, d]);
            let raw: Vec<f64> = (0..self.total())
                .map(|j| scale * (0..size).map(|d| query(d) * key(j, d)).sum::<f64>())
                .collect();
            let cap = f64::from(self.softcap);
            let capped: Vec<f64> =
                raw.iter().map(|score| if cap > 0.0 { cap * (score / cap).tanh() } else { *score }).collect();
            let biased: Vec<f64> =
                capped.iter().enumerate().map(|(j, score)| score + self.bias(inputs, [b, h, i, j])).collect();
            let most = biased.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = match most {
                f64::NEG_INFINITY => vec![0.0; biased.len()],
                most => {
                    let sum: f64 = biased.iter().map(|score| (score - most).exp()).sum();
                    biased.iter().map(|score| (score - most).exp() / sum).collect()
                }
            };
            let value = |j, d| value_at(&inputs.past_value, &inputs.value, value_size, [b, g, j, d]);
            output.extend(
                (0..value_size).map(|d| (0..self.total()).map(|j| weights[j] * value(j, d)).sum::<f64>()),
            );
            scores.extend([&raw, &capped, &biased, &weights][self.mode.unwrap_or(0) as usize]);
        }
        (output, scores)
    }

    /// Runs the case in tract and returns `Y`, in the reference's layout, and the scores.
    fn run(&self, inputs: &AttentionTensors, datum: DatumType) -> TractResult<(Vec<f32>, Vec<f32>)> {
        let (attention, given) = self.node(inputs, datum)?;
        let outputs =
            ["y", "scores"].into_iter().filter(|name| attention.output.iter().any(|has| has == name));
        let outputs =
            outputs.map(|name| value(name, if datum == DatumType::F16 { 10 } else { 1 }, &[])).collect();
        let (infos, tensors): (Vec<_>, Vec<_>) = given.into_iter().unzip();
        let tensors = tensors.into_iter().map(|tensor| {
            let is_number = tensor.datum_type() == DatumType::F32;
            Ok(if is_number { tensor.cast_to_dt(datum)?.into_owned() } else { tensor }.into())
        });
        let results =
            plan(&model(vec![attention], infos, outputs))?.run(tensors.collect::<TractResult<_>>()?)?;
        let numbers = |tensor: &TValue| -> TractResult<Vec<f32>> {
            Ok(tensor.cast_to::<f32>()?.try_as_plain_ram()?.as_slice::<f32>()?.to_vec())
        };
        let output = self.heads_outside(&numbers(&results[0])?, self.heads[0], self.queries, self.sizes[1]);
        Ok((output, results.get(1).map(numbers).transpose()?.unwrap_or_default()))
    }

    /// Returns the node and its inputs with their values.
    fn node(&self, inputs: &AttentionTensors, datum: DatumType) -> TractResult<(NodeProto, Given)> {
        let ([heads, key_heads], [size, value_size]) = (self.heads, self.sizes);
        let code = if datum == DatumType::F16 { 10 } else { 1 };
        let mut attention = node("Attention", "attend", &["q", "k", "v", "", "", "", ""], &["y", "", "", ""]);
        let mut given = tvec![
            (
                value("q", code, self.dims(["b", "s"], 0)),
                self.tensor(&inputs.query, heads, self.queries, size)
            ),
            (
                value("k", code, self.dims(["b", "t"], 1)),
                self.tensor(&inputs.key, key_heads, self.keys, size)
            ),
            (
                value("v", code, self.dims(["b", "t"], 2)),
                self.tensor(&inputs.value, key_heads, self.keys, value_size)
            ),
        ];
        if let Some((shape, marks_visible)) = &self.mask {
            attention.input[3] = "mask".to_owned();
            let dims = ["m0", "m1", "m2", "m3"];
            let tensor = Tensor::from_shape(shape, &inputs.mask)?;
            let (code, tensor) =
                if *marks_visible { (9, tensor.cast_to::<bool>()?.into_owned()) } else { (code, tensor) };
            given.push((value("mask", code, &dims[..shape.len()]), tensor));
        }
        if self.past > 0 {
            for (place, name, values, size) in
                [(4, "pk", &inputs.past_key, size), (5, "pv", &inputs.past_value, value_size)]
            {
                attention.input[place] = name.to_owned();
                let tensor = Tensor::from_shape(&[self.batch, key_heads, self.past, size], values)?;
                given.push((value(name, code, &["b", "g", "p", if place == 4 { "d" } else { "e" }]), tensor));
            }
            attention.output[1] = "present_key".to_owned();
            attention.output[2] = "present_value".to_owned();
        }
        if let Some(lengths) = &self.lengths {
            attention.input[6] = "lengths".to_owned();
            given.push((value("lengths", 7, &["b"]), tensor1(lengths)));
        }
        if let Some(mode) = self.mode {
            attention.output[3] = "scores".to_owned();
            attention.attribute.push(integer("qk_matmul_output_mode", mode));
        }
        self.add_attributes(&mut attention.attribute);
        Ok((attention, given))
    }

    fn add_attributes(&self, attributes: &mut Vec<AttributeProto>) {
        if self.is_rank_3 {
            attributes.push(integer("q_num_heads", self.heads[0] as i64));
            attributes.push(integer("kv_num_heads", self.heads[1] as i64));
        }
        attributes.push(integer("is_causal", i64::from(self.is_causal)));
        attributes.push(integer("left_window_size", self.window[0]));
        attributes.push(integer("right_window_size", self.window[1]));
        attributes.push(float("softcap", self.softcap));
        attributes.extend(self.scale.map(|scale| float("scale", scale)));
    }

    fn dims(&self, names: [&'static str; 2], which: usize) -> &'static [&'static str] {
        match (self.is_rank_3, which, names) {
            (true, 0, _) => &["b", "s", "hd"],
            (true, 1, _) => &["b", "t", "gd"],
            (true, ..) => &["b", "t", "ge"],
            (false, 0, _) => &["b", "h", "s", "d"],
            (false, 1, _) => &["b", "g", "t", "d"],
            (false, ..) => &["b", "g", "t", "e"],
        }
    }

    /// Converts `[batch, heads, length, size]` to the layout of the model.
    fn tensor(&self, values: &[f32], heads: usize, length: usize, size: usize) -> Tensor {
        let tensor = Tensor::from_shape(&[self.batch, heads, length, size], values).unwrap();
        if !self.is_rank_3 {
            return tensor;
        }
        tensor.permute_axes(&[0, 2, 1, 3]).unwrap().into_shape(&[self.batch, length, heads * size]).unwrap()
    }

    fn heads_outside(&self, values: &[f32], heads: usize, length: usize, size: usize) -> Vec<f32> {
        if !self.is_rank_3 {
            return values.to_vec();
        }
        let tensor = Tensor::from_shape(&[self.batch, length, heads, size], values).unwrap();
        tensor.permute_axes(&[0, 2, 1, 3]).unwrap().try_as_plain_ram().unwrap().as_slice().unwrap().to_vec()
    }
}

/// Returns a number from -2 to 2.
fn number(random: &mut Random) -> f32 {
    random.below(4001) as f32 / 1000.0 - 2.0
}

fn assert_close(got: &[f32], expected: &[f64], tolerance: f64, case: &Case) {
    assert_eq!(got.len(), expected.len(), "{case:?}");
    for (got, expected) in got.iter().zip(expected) {
        let got = f64::from(*got);
        let is_close = got == *expected || (got - expected).abs() <= tolerance * (1.0 + expected.abs());
        assert!(is_close, "{got} instead of {expected}: {case:?}");
    }
}

fn check(seeds: std::ops::Range<u64>, datum: DatumType, tolerance: f64) {
    for seed in seeds {
        let case = Case::random(seed);
        let mut inputs = case.inputs(&mut Random::new(seed, 1));
        if datum == DatumType::F16 {
            let all = [&mut inputs.query, &mut inputs.key, &mut inputs.value, &mut inputs.past_key];
            let all = all.into_iter().chain([&mut inputs.past_value, &mut inputs.mask]).flatten();
            all.for_each(|value| *value = f16::from_f32(*value).to_f32());
        }
        let (output, scores) = case.reference(&inputs);
        let (got, got_scores) =
            case.run(&inputs, datum).unwrap_or_else(|error| panic!("{error:?}: {case:?}"));
        assert_close(&got, &output, tolerance, &case);
        if case.mode.is_some() {
            assert_close(&got_scores, &scores, tolerance, &case);
        }
    }
}

#[test]
fn float32_is_what_the_definition_says() {
    check(0..400, DatumType::F32, 1e-5);
}

#[test]
fn float16_is_summed_in_float32() {
    check(1000..1200, DatumType::F16, 2e-3);
}

#[test]
fn slots_after_the_length_have_no_influence() {
    let mut case = Case::random(3);
    case = Case { past: 0, keys: 9, batch: 2, lengths: Some(vec![4, 7]), mask: None, mode: None, ..case };
    let mut inputs = case.inputs(&mut Random::new(5, 1));
    let clean = case.run(&inputs, DatumType::F32).unwrap().0;
    for (values, size) in [(&mut inputs.key, case.sizes[0]), (&mut inputs.value, case.sizes[1])] {
        for (row, values) in values.chunks_exact_mut(size).enumerate() {
            let (sample, key) = (row / (case.heads[1] * 9), row % 9);
            if key >= [4, 7][sample] {
                values.fill(f32::NAN);
            }
        }
    }
    assert_eq!(case.run(&inputs, DatumType::F32).unwrap().0, clean);
}

/// A state keeps what it prepared for the last shapes and the threads of its plan.
#[test]
fn neither_threads_nor_earlier_calls_change_a_result() {
    let small = Case {
        batch: 2,
        heads: [8, 4],
        queries: 3,
        keys: 20,
        past: 0,
        sizes: [64, 48],
        is_rank_3: false,
        is_causal: true,
        lengths: Some(vec![20, 4]),
        mask: None,
        mode: None,
        ..Case::random(3)
    };
    // The kernels share calls of 2^20 multiplications and more.
    let large = Case { queries: 20, keys: 200, lengths: Some(vec![190, 100]), ..small.clone() };
    let inputs = [&small, &large].map(|case| {
        let (attention, given) = case.node(&case.inputs(&mut Random::new(5, 1)), DatumType::F32).unwrap();
        let (infos, tensors): (Vec<_>, Vec<_>) = given.into_iter().unzip();
        let tensors: TVec<TValue> = tensors.into_iter().map(TValue::from).collect();
        (model(vec![attention], infos, vec![value("y", 1, &[])]), tensors)
    });
    let one_thread = plan(&inputs[0].0).unwrap();
    let executor = Some(multithread::Executor::multithread(3));
    let options = RunOptions { executor, ..RunOptions::default() };
    let three_threads = one_thread.model().clone().into_runnable_with_options(&options).unwrap();
    let mut state = three_threads.spawn().unwrap();
    for turn in [0, 1, 1, 0, 0, 1] {
        let tensors = &inputs[turn].1;
        let (got, expected) = (state.run(tensors.clone()).unwrap(), one_thread.run(tensors.clone()).unwrap());
        assert_eq!(got[0].as_bytes(), expected[0].as_bytes(), "turn {turn}");
    }
}

#[test]
fn a_node_may_have_one_present() {
    let case = Case { past: 4, keys: 5, lengths: None, mask: None, mode: None, ..Case::random(3) };
    let inputs = case.inputs(&mut Random::new(5, 1));
    let (mut attention, given) = case.node(&inputs, DatumType::F32).unwrap();
    attention.output[1].clear();
    let (infos, tensors): (Vec<_>, Vec<_>) = given.into_iter().unzip();
    let outputs = ["y", "present_value"].map(|name| value(name, 1, &[])).to_vec();
    let plan = plan(&model(vec![attention], infos, outputs)).unwrap();
    let results = plan.run(tensors.into_iter().map(TValue::from).collect()).unwrap();
    let [size, keys, past] = [case.sizes[1], case.keys, case.past];
    let rows = inputs.past_value.chunks(past * size).zip(inputs.value.chunks(keys * size));
    let expected: Vec<f32> = rows.flat_map(|(past, new)| [past, new].concat()).collect();
    assert_eq!(results[1].shape(), [case.batch, case.heads[1], past + keys, size]);
    assert_eq!(results[1].try_as_plain_ram().unwrap().as_slice::<f32>().unwrap(), expected);
}

#[test]
fn errors_of_a_call_name_the_node() {
    let right =
        Case { is_rank_3: false, past: 0, keys: 5, lengths: None, mask: None, mode: None, ..Case::random(3) };
    let batch = right.batch;
    let message_of =
        |case: &Case| words(case.run(&case.inputs(&mut Random::new(5, 1)), DatumType::F32).map(|_| ()));
    for (case, expected) in [
        (
            Case { lengths: Some(vec![6; batch]), ..right.clone() },
            "nonpad_kv_seqlen[0] = 6: must be between 0 and 5",
        ),
        (
            Case { lengths: Some(vec![-1; batch]), ..right.clone() },
            "nonpad_kv_seqlen[0] = -1: must be between 0 and 5",
        ),
        (Case { mask: Some((vec![7, 5], true)), queries: 2, ..right.clone() }, "attn_mask has shape [7, 5]"),
        (Case { mask: Some((vec![6], false)), ..right.clone() }, "attn_mask has shape [6]"),
    ] {
        let words = message_of(&case);
        assert!(words.starts_with("node \"attend\" (Attention): ") && words.contains(expected), "{words}");
    }
}
