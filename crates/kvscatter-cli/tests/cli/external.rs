//! Tests the files that a model names. Every command refuses a model that names anything but a regular file
//! of its folder, even for a tensor that nothing uses. No command shows anything about a file outside the folder.
//!
//! The tests of kvscatter-onnx show that tensors are checked in every part of a model.
#![cfg(unix)]

use std::os::unix::fs::symlink;
use std::process::Command;

use kvscatter::ElementType;
use kvscatter_onnx::Model;
use kvscatter_onnx::internal::proto::tensor_proto::DataLocation;
use kvscatter_onnx::internal::proto::{StringStringEntryProto, TensorProto};
use kvscatter_onnx::internal::{ExternalData, tensor_proto};

use crate::support::{Answer, BINARY, Folder, contents, is_built, testdata};

/// The size and the SHA-256 of the file next to the model's folder.
const SECRET_BYTES: usize = 12_347;
const SECRET_SHA256: &str = "299c13a3168fcd60d6494d7dbfca6e2c3698f69b2f06e278169d423a23df98bd";

/// A file of the folder that can serve as values: 8 zeros.
const INSIDE: &str = "inside.bin";
const ABSENT: &str = "absent.bin";

/// A command on a folder of models. `model.onnx` (in a test directory), `static.onnx` and `growing.onnx` name
/// the file under test. `good.onnx` names no such file.
struct Line {
    words: &'static str,
    /// Whether the command may succeed although a file of values is missing, if it needs none of these
    /// values. `convert` and `lower` leave out tensors that nothing uses.
    tolerates_absence: bool,
}

const fn needs(words: &'static str) -> Line {
    Line { words, tolerates_absence: false }
}

const fn tolerates(words: &'static str) -> Line {
    Line { words, tolerates_absence: true }
}

const LINES: [Line; 10] = [
    tolerates("inspect m/static.onnx"),
    tolerates("convert m/growing.onnx -o out/out.onnx --max-seq 8"),
    tolerates("lower m/static.onnx -o out/out.onnx --to scatter-nd"),
    tolerates("run m/model.onnx -o present_cache=out/out.npy"),
    tolerates("run m -o present_cache=out/out.npy"),
    needs("run m/static.onnx --engine tract --dim batch=1 --dim sequence_len=1 -o logits=out/out.npy"),
    needs("generate m/static.onnx --engine tract --prompt-ids 1 --tokens 1"),
    needs("certify m/static.onnx --engine tract --steps 1 --no-timing --html out/out.html"),
    needs(
        "certify m/good.onnx --original m/static.onnx --engine tract --steps 1 --no-timing --html out/out.html",
    ),
    tolerates("verify m"),
];

const LINES_OF_ONNX_RUNTIME: [Line; 4] = [
    needs("run m/static.onnx --engine ort --dim batch=1 --dim sequence_len=1 -o logits=out/out.npy"),
    needs("generate m/static.onnx --engine ort --prompt-ids 1 --tokens 1"),
    needs("certify m/static.onnx --engine ort --steps 1 --no-timing --html out/out.html"),
    needs(
        "certify m/good.onnx --original m/static.onnx --engine ort --steps 1 --no-timing --html out/out.html",
    ),
];

#[test]
fn a_model_reads_nothing_but_regular_files_of_its_folder() {
    walk(&LINES);
}

#[test]
#[ignore = "needs ONNX Runtime: cargo xtask models"]
fn in_onnxruntime_a_model_reads_nothing_but_regular_files_of_its_folder() {
    walk(&LINES_OF_ONNX_RUNTIME);
}

/// Runs the same models with a file that they may name. This shows that the models above are refused for the
/// location alone.
#[test]
#[cfg(feature = "full")]
fn the_models_of_this_test_run_with_a_file_that_they_may_name() {
    let scene = scene();
    plant(&scene, INSIDE);
    for line in &LINES {
        let answer = run(&scene, line.words);
        assert!(matches!(answer.code, Some(0 | 1)), "{}: {answer}", line.words);
    }
}

/// Tests `.pb` tensor files, which can also name external data.
#[test]
fn a_tensor_file_reads_nothing_but_regular_files_of_its_folder() {
    let scene = scene();
    for location in refused_locations(&scene) {
        furnish(&scene, "m/test_data_set_0", &location);
        furnish(&scene, ".", &location);
        let tensor = kvscatter_onnx::internal::proto::encode(&external(&location)).unwrap();
        for file in ["m/test_data_set_0/input_0.pb", "m/test_data_set_0/output_0.pb"] {
            let before = scene.read(file);
            scene.write(file, &tensor);
            for words in ["run m", "verify m"] {
                check(&scene, words, &run(&scene, words), &location);
            }
            scene.write(file, &before);
        }
        scene.write("t.pb", &tensor);
        for words in [
            "plan tensor-scatter --cache t.pb --update 1,1,1",
            "apply tensor-scatter --past-cache t.pb --update t.pb --in-place",
            "apply tensor-scatter --past-cache t.pb --update t.pb --present-cache out/out.npy",
        ] {
            check(&scene, words, &run(&scene, words), &location);
        }
    }
}

fn walk(lines: &[Line]) {
    let scene = scene();
    for location in refused_locations(&scene).into_iter().chain([ABSENT.to_owned()]) {
        furnish(&scene, "m", &location);
        plant(&scene, &location);
        for line in lines.iter().filter(|line| is_built(line.words)) {
            let answer = run(&scene, line.words);
            if location == ABSENT && line.tolerates_absence {
                assert!(matches!(answer.code, Some(0..=2)), "{}: {answer}", line.words);
                scene
                    .names("out")
                    .iter()
                    .for_each(|name| std::fs::remove_file(scene.path("out").join(name)).unwrap());
            } else {
                check(&scene, &format!("{} at {location}", line.words), &answer, &location);
            }
        }
    }
}

/// Checks that a command refuses the location at once, in one line that names it, and writes nothing.
#[track_caller]
fn check(scene: &Folder, what: &str, answer: &Answer, location: &str) {
    assert_eq!(answer.code, Some(2), "{what}: {answer}");
    // `verify` prints the location in its verdicts.
    assert!(answer.stdout.is_empty() || what.starts_with("verify"), "{what}: {answer}");
    // `verify` also prints a link that leads out of the folder.
    let link = location.split('/').next().filter(|link| !link.is_empty()).unwrap_or(location);
    let mut printed = answer.stdout.lines().chain(answer.stderr.lines());
    let name = if what.starts_with("verify") { link } else { location };
    // If the file is only missing, another fault of the tensor may be reported first.
    let is_named =
        printed.any(|line| line.contains(name) || (location == ABSENT && line.contains("\"planted\"")));
    assert!(is_named, "{what}: {answer}");
    assert_eq!(answer.stderr.lines().count(), 1, "{what}: {answer}");
    let printed = format!("{}{}", answer.stdout, answer.stderr);
    assert!(
        !printed.contains(SECRET_SHA256) && !printed.contains(&SECRET_BYTES.to_string()),
        "{what}: {answer}"
    );
    assert!(scene.names("out").is_empty(), "{what} left a file: {answer}");
}

/// Runs a command as [`Folder::run`] does, with a time limit. A command that opened a pipe, or read a device
/// to its end, would never end.
fn run(scene: &Folder, words: &str) -> Answer {
    const SECONDS: &str = "60";
    let mut command = Command::new("timeout");
    command.args([SECONDS, BINARY]).args(words.split_whitespace());
    scene.answer(&mut command)
}

/// Makes a folder `m` with models and with the files that they must not name, next to a secret file.
fn scene() -> Folder {
    let scene = Folder::new();
    scene.write("secret.bin", &(0..SECRET_BYTES).map(|at| (at * 7 % 256) as u8).collect::<Vec<_>>());
    scene.write(&format!("m/{INSIDE}"), &[0; 8]);
    std::fs::create_dir(scene.path("out")).unwrap();
    let case = testdata("onnx-node/test_tensorscatter/test_data_set_0");
    for (name, bytes) in contents(&case) {
        scene.write(&format!("m/test_data_set_0/{}", name.display()), &bytes);
    }
    for (model, name) in MODELS {
        let mut model = Model::load(&testdata(model)).unwrap();
        // The values of the model move into the model file, so only the planted tensor is external.
        model.proto_mut().graph.get_or_insert_default().initializer.iter_mut().for_each(inline);
        for folder in ["m", "original"] {
            std::fs::create_dir_all(scene.path(folder)).unwrap();
            model.save(&scene.path(&format!("{folder}/{name}"))).unwrap();
        }
    }
    scene
}

const MODELS: [(&str, &str); 4] = [
    ("onnx-node/test_tensorscatter/model.onnx", "model.onnx"),
    ("mobius-llama-static/model.onnx", "static.onnx"),
    ("mobius-llama-dynamic/model.onnx", "growing.onnx"),
    ("mobius-llama-static/model.onnx", "good.onnx"),
];

fn inline(tensor: &mut TensorProto) {
    if tensor.data_location == Some(DataLocation::EXTERNAL) {
        let folder = ExternalData::open(&testdata("mobius-llama-static")).unwrap();
        let values = tensor_proto::decode(tensor.clone(), Some(&folder)).unwrap();
        *tensor = tensor_proto::encode(tensor.name.as_deref().unwrap(), &values);
    }
}

/// Returns the locations that no model may name.
fn refused_locations(scene: &Folder) -> Vec<String> {
    let absolute = scene.path("secret.bin").display().to_string();
    let up = ["../secret.bin", "sub/../../secret.bin", "up/secret.bin", "out.bin"];
    let others = ["/dev/zero", "zero.bin", "pipe", "to_pipe", "sub", "."];
    up.into_iter().chain(others).map(str::to_owned).chain([absolute]).collect()
}

/// Makes the file or link of a location in a folder. It makes no others, because `verify` prints every link
/// that leads out.
fn furnish(scene: &Folder, folder: &str, location: &str) {
    let path = |name: &str| scene.path(&format!("{folder}/{name}"));
    for name in ["up", "out.bin", "zero.bin", "pipe", "to_pipe"] {
        let _ = std::fs::remove_file(path(name));
    }
    let _ = std::fs::remove_dir(path("sub"));
    let pipe = || assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    match location.split('/').next() {
        Some("up") => symlink(scene.path(""), path("up")).unwrap(),
        Some("out.bin") => symlink(scene.path("secret.bin"), path("out.bin")).unwrap(),
        Some("zero.bin") => symlink("/dev/zero", path("zero.bin")).unwrap(),
        Some("sub") => std::fs::create_dir(path("sub")).unwrap(),
        Some("pipe") => pipe(),
        Some("to_pipe") => {
            pipe();
            symlink("pipe", path("to_pipe")).unwrap();
        }
        _ => {}
    }
}

/// Puts a tensor with values in `location` into all models but `good.onnx`.
fn plant(scene: &Folder, location: &str) {
    for (_, name) in MODELS.into_iter().filter(|(_, name)| *name != "good.onnx") {
        let [original, planted] = ["original", "m"].map(|folder| format!("{folder}/{name}"));
        scene.change(&original, &planted, |graph| graph.initializer.push(external(location)));
    }
}

/// Returns a tensor of two float32 in another file.
fn external(location: &str) -> TensorProto {
    let entry = StringStringEntryProto {
        key: Some("location".to_owned()),
        value: Some(location.to_owned()),
        ..StringStringEntryProto::default()
    };
    TensorProto {
        name: Some("planted".to_owned()),
        data_type: Some(ElementType::Float32.onnx_code()),
        dims: vec![2],
        data_location: Some(DataLocation::EXTERNAL),
        external_data: vec![entry],
        ..TensorProto::default()
    }
}
