//! Three cases of TensorScatter, and right answers to them.

use kvscatter_onnx::internal::proto::{NodeProto, ValueInfoProto};
use serde_json::{Value, json};

use crate::directory::{Attribute, Directory, Expectation, Input};
use crate::support::{Folder, npy_f32};

/// The cache of all cases: two samples with four slots of one number.
pub(crate) const CACHE: [f32; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
/// The update of all cases: two rows for each sample.
const UPDATE: [f32; 4] = [10.0, 11.0, 12.0, 13.0];
/// The present after a write at `[1, 0]`.
pub(crate) const PRESENT: [f32; 8] = [0.0, 10.0, 11.0, 3.0, 12.0, 13.0, 6.0, 7.0];

/// Returns a folder with three cases in `cases`: `valid`, `refused` at these indices, and `again`, which reads the
/// past after the write.
pub(crate) fn folder(refused: [i64; 2], kind: &str) -> Folder {
    let folder = Folder::new();
    let valid = || Expectation::Outputs(vec![floats(&CACHE.map(|_| 0.0), &PRESENT)]);
    scatter([1, 0], valid()).write(&folder, "cases/valid");
    scatter(refused, Expectation::Refused(kind.to_owned())).write(&folder, "cases/refused");
    scatter([1, 0], valid()).write(&folder, "cases/again");
    folder.change("cases/again/model.onnx", "cases/again/model.onnx", |graph| {
        graph.node.push(NodeProto::new("Identity", &["input_0"], &["kept"]));
        let kept = Some("kept".to_owned());
        graph.output.push(ValueInfoProto { name: kept, ..graph.input[0].clone() });
    });
    let past = folder.read("cases/again/test_data_set_0/input_0.pb");
    folder.write("cases/again/test_data_set_0/output_1.pb", &past);
    folder
}

fn scatter(indices: [i64; 2], expectation: Expectation) -> Directory {
    let inputs = vec![floats(&CACHE, &CACHE), floats(&UPDATE, &UPDATE), Input::int64s(&indices)];
    Directory {
        op_type: "TensorScatter",
        domain: "",
        version: 24,
        attributes: vec![("axis", Attribute::Int(1))],
        inputs: inputs.into_iter().map(Some).collect(),
        expectation,
        tolerance: None,
    }
}

/// Returns numbers in the shape `[2, slots, 1]`.
fn floats(like: &[f32], values: &[f32]) -> Input {
    Input::new(
        "float",
        &[2, like.len() / 2, 1],
        values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    )
}

/// Writes a file of `theirs`, in the shape of the cache.
pub(crate) fn write(folder: &Folder, case: &str, name: &str, values: &[f32; 8]) {
    folder.write(&format!("theirs/{case}/test_data_set_0/{name}.npy"), &npy_f32(&[2, 4, 1], *values));
}

pub(crate) fn answer(folder: &Folder, case: &str, document: &Value) {
    folder.write(&format!("theirs/{case}/test_data_set_0/answer.json"), document.to_string().as_bytes());
}

/// Writes right answers to all cases.
pub(crate) fn write_right(folder: &Folder) {
    for case in ["valid", "again"] {
        write(folder, case, "output_0", &PRESENT);
        write(folder, case, "in_place_0", &PRESENT);
    }
    write(folder, "again", "output_1", &CACHE);
    write(folder, "again", "past_0", &CACHE);
    write(folder, "refused", "in_place_0", &CACHE);
    let returned = |same: bool| json!({"plain": {"status": "returned"}, "in_place": {"status": "returned", "same_memory": same}});
    answer(folder, "valid", &returned(true));
    answer(folder, "again", &returned(false));
    let refused = json!({"status": "refused", "message": "write_indices[0] is out of range"});
    answer(folder, "refused", &json!({"plain": refused, "in_place": refused}));
}
