//! Tests the worked examples of the three documents.

use kvscatter_oracle::ascend::KvCacheOperation;
use kvscatter_oracle::onnx::TensorScatter;
use kvscatter_oracle::tensorrt::{KvCacheUpdate, UpdateForm};
use kvscatter_oracle::{Outcome, Tensor};

fn circular() -> TensorScatter {
    TensorScatter { mode: "circular".to_owned(), ..TensorScatter::default() }
}

/// One row of the cache that ONNX's node tests share.
const ROW_0: [f32; 5] = [1.0, 2.0, 3.0, 4.0, 5.0];
const ROW_1: [f32; 5] = [5.0, 6.0, 7.0, 8.0, 9.0];
const ROW_2: [f32; 5] = [8.0, 7.0, 6.0, 5.0, 4.0];
const ROW_3: [f32; 5] = [4.0, 3.0, 2.0, 1.0, 0.0];

fn all(value: f32) -> [f32; 5] {
    [value; 5]
}

/// The ONNX node test `test_tensorscatter`.
#[test]
fn onnx_linear_node_case() {
    let past = [ROW_0, ROW_1, ROW_2, ROW_3, ROW_0, ROW_1, ROW_2, ROW_3].concat();
    let update = [all(5.0), all(1.0)].concat();
    let outcome = TensorScatter::default().run(
        Tensor::new(&past, &[2, 1, 4, 5]),
        Tensor::new(&update, &[2, 1, 1, 5]),
        Some(&[1, 2]),
        None,
    );
    let present = [ROW_0, all(5.0), ROW_2, ROW_3, ROW_0, ROW_1, all(1.0), ROW_3].concat();
    assert_eq!(outcome, Ok(Outcome { present, skipped: 0 }));
}

/// The ONNX node test `test_tensorscatter_circular`.
#[test]
fn onnx_circular_node_case() {
    let past = [ROW_0, ROW_1, ROW_2, ROW_3, ROW_0, ROW_1, ROW_2, ROW_3].concat();
    let update = [all(5.0), all(6.0), all(1.0), all(2.0)].concat();
    let outcome = circular().run(
        Tensor::new(&past, &[2, 1, 4, 5]),
        Tensor::new(&update, &[2, 1, 2, 5]),
        Some(&[1, 3]),
        None,
    );
    let present = [ROW_0, all(5.0), all(6.0), ROW_3, all(2.0), ROW_1, ROW_2, all(1.0)].concat();
    assert_eq!(outcome, Ok(Outcome { present, skipped: 0 }));
}

/// The ONNX node test `test_tensorscatter_3d`.
#[test]
fn onnx_three_dimensional_node_case() {
    let last = [5.0, 4.0, 3.0, 2.0, 1.0];
    let past = [[ROW_0, ROW_1, ROW_2, last]; 3].concat().concat();
    let update = [4.0, 5.0, 6.0, 7.0, 2.0, 3.0].map(all).concat();
    let outcome = TensorScatter::default().run(
        Tensor::new(&past, &[3, 4, 5]),
        Tensor::new(&update, &[3, 2, 5]),
        Some(&[1, 2, 0]),
        None,
    );
    let present = [
        [ROW_0, all(4.0), all(5.0), last],
        [ROW_0, ROW_1, all(6.0), all(7.0)],
        [all(2.0), all(3.0), ROW_2, last],
    ]
    .concat()
    .concat();
    assert_eq!(outcome, Ok(Outcome { present, skipped: 0 }));
}

/// The example of TensorRT's document, with four samples, two equal heads and head size 1.
#[test]
fn tensorrt_example() {
    let two_heads = |rows: &[&[f32]]| rows.iter().flat_map(|row| [*row, *row].concat()).collect::<Vec<_>>();
    let cache = two_heads(&[
        &[0.53, 0.88, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        &[0.41, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        &[0.67, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        &[0.32, 0.79, 0.64, 0.0, 0.0, 0.0, 0.0, 0.0],
    ]);
    let update = two_heads(&[
        &[0.72, 0.0, 0.0, 0.0],
        &[0.55, 0.94, 0.0, 0.0],
        &[0.61, 0.28, 0.0, 0.0],
        &[0.83, 0.0, 0.0, 0.0],
    ]);
    let outcome = KvCacheUpdate::default().run(
        Tensor::new(&cache, &[4, 2, 8, 1]),
        Tensor::new(&update, &[4, 2, 4, 1]),
        &[2, 1, 1, 3],
        None,
        None,
    );
    let present = two_heads(&[
        &[0.53, 0.88, 0.72, 0.0, 0.0, 0.0, 0.0, 0.0],
        &[0.41, 0.55, 0.94, 0.0, 0.0, 0.0, 0.0, 0.0],
        &[0.67, 0.61, 0.28, 0.0, 0.0, 0.0, 0.0, 0.0],
        &[0.32, 0.79, 0.64, 0.83, 0.0, 0.0, 0.0, 0.0],
    ]);
    assert_eq!(outcome, Ok(Outcome { present, skipped: 0 }));
}

/// The real rows of the document's example, packed by token and then by head.
#[test]
fn tensorrt_packed() {
    let cache = ["."; 16]; // [2, 2, 4, 1]
    let update = ["a0", "a1", "b0", "b1", "c0", "c1"]; // three tokens of two heads
    let operator = KvCacheUpdate { update_form: UpdateForm::Packed, ..KvCacheUpdate::default() };
    let outcome = operator.run(
        Tensor::new(&cache, &[2, 2, 4, 1]),
        Tensor::new(&update, &[3, 2, 1]),
        &[3, 1],
        Some(&[0, 1, 3]),
        None,
    );
    let present = vec![
        ".", ".", ".", "a0", ".", ".", ".", "a1", // sample 0
        ".", "b0", "c0", ".", ".", "b1", "c1", ".", // sample 1
    ];
    assert_eq!(outcome, Ok(Outcome { present, skipped: 0 }));
}

/// A hand-made example with two layers and hidden size 2. The two samples have two tokens and one token, and
/// the offsets are ends.
#[test]
fn ascend_by_hand() {
    let past: Vec<_> = (0..24).map(|n| format!("p{n}")).collect(); // [2, 2, 3, 2]
    let new_kv: Vec<_> = (0..6).map(|n| format!("n{n}")).collect(); // [3, 2]
    let outcome = KvCacheOperation::default().run(
        Tensor::new(&new_kv, &[3, 2]),
        &[1],
        Tensor::new(&past, &[2, 2, 3, 2]),
        &[3, 1],
        &[2, 1],
        None,
    );
    let mut present = past.clone();
    // Layer 1 begins at 12. Sample 0: tokens 0 and 1 end at slot 3, so they take slots 1 and 2.
    present[14..18].clone_from_slice(&new_kv[0..4]);
    // Sample 1 begins at 18: token 2 ends at slot 1, so it takes slot 0.
    present[18..20].clone_from_slice(&new_kv[4..6]);
    assert_eq!(outcome, Ok(Outcome { present, skipped: 0 }));
}

/// The document's scenario: five prompt tokens that end at 5, then one token that ends at 6.
#[test]
fn ascend_prefill_then_decode() {
    let prompt = ["世", "界", "最", "高", "峰"];
    let operator = KvCacheOperation::default();
    let prefilled = operator
        .run(Tensor::new(&prompt, &[5, 1]), &[0], Tensor::new(&[""; 8], &[1, 1, 8, 1]), &[5], &[5], None)
        .unwrap();
    let decoded = operator
        .run(
            Tensor::new(&["是"], &[1, 1]),
            &[0],
            Tensor::new(&prefilled.present, &[1, 1, 8, 1]),
            &[6],
            &[1],
            None,
        )
        .unwrap();
    assert_eq!(decoded.present, ["世", "界", "最", "高", "峰", "是", "", ""]);
}

/// An update of `[batch, seq_len, head_num, head_size]` has the same bytes as `[batch * seq_len, hidden]`.
#[test]
fn ascend_four_dimensional_update() {
    let past = [0; 16]; // [1, 2, 2, 4]
    let new_kv: Vec<_> = (1..=8).collect(); // [2, 1, 2, 2]
    let outcome = KvCacheOperation::default().run(
        Tensor::new(&new_kv, &[2, 1, 2, 2]),
        &[0],
        Tensor::new(&past, &[1, 2, 2, 4]),
        &[2, 1],
        &[1, 1],
        None,
    );
    let present = vec![0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0];
    assert_eq!(outcome, Ok(Outcome { present, skipped: 0 }));
}
