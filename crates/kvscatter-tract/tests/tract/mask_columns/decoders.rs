//! Converted decoders. The results of cut masks are compared with those of whole ones.

use std::collections::BTreeSet;
use std::path::Path;

use kvscatter_onnx::Model;
use kvscatter_onnx::internal::proto::GraphProto;
use kvscatter_tract::register;
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::internal::*;

use super::{BATCH, BOOL, CAPACITY, bytes, names, run};
use crate::support::{self, value};

/// Returns a converted decoder, and one that also returns its mask, which therefore stays whole.
fn converted(name: &str, capacity: usize, folder: &Path) -> [TypedModel; 2] {
    let path = support::converted(name, capacity, folder);
    let mut model = Model::load(&path).unwrap();
    remove_unread_outputs(model.proto_mut().graph.get_or_insert_default());
    let load = |model: &Model| {
        model.save(&path).unwrap();
        let mut onnx = tract_onnx::onnx();
        register(&mut onnx);
        onnx.model_for_path(&path).unwrap().into_optimized().unwrap()
    };
    let cut = load(&model);
    let graph = model.proto_mut().graph.get_or_insert_default();
    let attention = graph.node.iter().find(|node| node.op_type.as_deref() == Some("Attention")).unwrap();
    graph.output.push(value(&attention.input[3], BOOL, &[]));
    [cut, load(&model)]
}

/// Removes the outputs that tract does not support and that nothing reads.
fn remove_unread_outputs(graph: &mut GraphProto) {
    let read: BTreeSet<String> = graph.node.iter().flat_map(|node| node.input.clone()).collect();
    let skips = |operator: &Option<String>| operator.as_ref().is_some_and(|name| name.starts_with("Skip"));
    for node in graph.node.iter_mut().filter(|node| skips(&node.op_type)) {
        node.output.iter_mut().filter(|output| !read.contains(*output)).for_each(String::clear);
    }
}

/// One run of a decoder. Each sample gets `width` tokens after its cached ones.
struct Step {
    width: usize,
    cached: [usize; BATCH],
    /// The number of slots before a sample's first token, which are padding.
    padding: [usize; BATCH],
}

impl Step {
    fn inputs(
        &self,
        model: &TypedModel,
        capacity: usize,
        caches: &mut dyn Iterator<Item = TValue>,
    ) -> TVec<TValue> {
        let columns = |value: &dyn Fn(usize, usize) -> usize, width: usize| {
            let all = (0..BATCH).flat_map(|sample| (0..width).map(move |column| (sample, column)));
            let values: Vec<i64> = all.map(|(sample, column)| value(sample, column) as i64).collect();
            Tensor::from_shape(&[BATCH, width], &values).unwrap().into_tvalue()
        };
        let [starts, ends] = [0, self.width].map(|more| self.cached.map(|cached| (cached + more) as i64));
        let input = |outlet: &OutletId| match &*model.node(outlet.node).name {
            "input_ids" => columns(&|sample, column| 3 + 2 * sample + column, self.width),
            "position_ids" => columns(
                &|sample, column| (self.cached[sample] + column).saturating_sub(self.padding[sample]),
                self.width,
            ),
            "attention_mask" => columns(
                &|sample, slot| {
                    let tokens = self.padding[sample]..self.cached[sample] + self.width;
                    usize::from(tokens.contains(&slot))
                },
                capacity,
            ),
            "write_indices" => tensor1(&starts).into(),
            "nonpad_kv_seqlen" => tensor1(&ends).into(),
            _ => caches.next().unwrap(),
        };
        model.inputs.iter().map(input).collect()
    }
}

fn zeros(model: &TypedModel, capacity: usize) -> Vec<TValue> {
    let facts = (1..model.outputs.len()).map(|index| model.output_fact(index).unwrap());
    let caches = facts.filter(|fact| fact.rank() == 4 && !fact.datum_type.is::<bool>());
    let zeros = caches.map(|fact| {
        let size = |axis: usize| fact.shape[axis].to_usize().unwrap();
        Tensor::zero_dt(fact.datum_type, &[BATCH, size(1), capacity, size(3)]).unwrap().into()
    });
    zeros.collect()
}

/// A prefill, steps of samples with different lengths, and a new prompt. Logits and caches are compared.
#[test]
fn decoders_compute_the_same_bits_over_valid_slots() {
    let folder = tempfile::tempdir().unwrap();
    for (name, capacity) in [
        ("optimum-llama", CAPACITY),
        ("mobius-llama-dynamic", CAPACITY),
        ("decoders/torch-2.15-llama", CAPACITY),
        ("decoders/mobius-0.1-gpt2", 29),
        ("decoders/optimum-1.18-gpt2", 29),
        ("decoders/mobius-0.1-qwen3-float16", 29),
        ("decoders/optimum-0.1-qwen3-float16", CAPACITY),
        ("decoders/optimum-0.1-qwen3-moe", CAPACITY),
        ("decoders/optimum-llama-4bit", CAPACITY),
        ("decoders/optimum-llama-int8", CAPACITY),
    ] {
        let plans = converted(name, capacity, folder.path()).map(|model| model.into_runnable().unwrap());
        let mut states = [&plans[0], &plans[1]].map(|plan| plan.spawn().unwrap());
        let mut caches = [&plans[0], &plans[1]].map(|plan| zeros(plan.model(), capacity));
        for (width, cached, padding) in [
            (5, [0, 0], [0, 3]),
            (1, [5, 5], [0, 3]),
            (1, [6, 15], [0, 3]),
            (1, [7, 16], [0, 3]),
            (3, [0, 17], [1, 3]),
            (4, [0, 0], [0, 0]),
        ] {
            let step = Step { width, cached, padding };
            let mut of_plan = |index: usize| {
                let mut given = std::mem::take(&mut caches[index]).into_iter();
                let inputs = step.inputs(plans[index].model(), capacity, &mut given);
                let ran = run(&mut states[index], capacity, inputs);
                caches[index] = ran.outputs[1..].iter().filter(|of| of.rank() == 4).cloned().collect();
                caches[index].retain(|of| !of.datum_type().is::<bool>());
                ran
            };
            let (cut, whole) = (of_plan(0), of_plan(1));
            assert_eq!(bytes(&cut.outputs), bytes(&whole.outputs[..cut.outputs.len()]), "{name} {cached:?}");
            assert!(whole.columns.iter().all(|columns| *columns == capacity), "{name}");
            let longest = cached[0].max(cached[1]) + width;
            let columns = longest.next_multiple_of(16).min(capacity);
            assert!(!cut.columns.is_empty(), "{name} has Attention");
            assert!(cut.columns.iter().all(|of| *of == columns), "{name}: {:?} for {longest}", cut.columns);
            if columns < capacity {
                assert_eq!(cut.whole, names(["Source", "TensorScatter"]), "{name}");
            }
        }
    }
}
