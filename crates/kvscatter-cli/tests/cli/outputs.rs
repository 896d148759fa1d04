//! Tests the files that results are written to. Links, pipes and devices are not replaced, and no input or
//! foreign file is lost.
#![cfg(unix)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

use crate::support::{BINARY, Folder, is_built, npy_f32, npy_i64};

const APPLY: &str = "apply tensor-scatter --past-cache cache.npy --update update.npy --axis 1";
const PLAN: &str = "plan tensor-scatter --cache 1,4,1 --update 1,1,1";

/// Makes a folder with a cache [1, 4] and an update [1, 1].
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write_cache_and_update();
    folder
}

fn result() -> Vec<u8> {
    npy_f32(&[1, 4], [1.0, 0.0, 0.0, 0.0])
}

#[test]
fn a_link_stays_and_its_target_is_written() {
    let folder = folder();
    folder.write("sub/target.npy", b"old");
    symlink("sub/target.npy", folder.path("link.npy")).unwrap();
    symlink("sub/new.npy", folder.path("dangling.npy")).unwrap();
    for (link, target) in [("link.npy", "sub/target.npy"), ("dangling.npy", "sub/new.npy")] {
        folder.run(&format!("{APPLY} --present-cache {link}")).passed();
        assert!(folder.path(link).is_symlink(), "{link}");
        assert_eq!(f32s_of(&folder, target), [1.0, 0.0, 0.0, 0.0]);
    }
    symlink("loop.npy", folder.path("loop.npy")).unwrap();
    folder.run(&format!("{APPLY} --present-cache loop.npy")).refused();
}

fn f32s_of(folder: &Folder, name: &str) -> Vec<f32> {
    crate::support::f32s(&folder.read(name))
}

#[test]
fn missing_folders_are_created() {
    let folder = Folder::with_testdata();
    folder.write_cache_and_update();
    let (model, data) = ("testdata/optimum-llama/model.onnx", "testdata/decoders/mobius-0.1-gpt2/model.onnx");
    for (line, output) in [
        (format!("convert {model} --max-seq 8 -o"), "a/new/model.onnx"),
        (format!("convert {data} --max-seq 8 -o"), "b/new/model.onnx"),
        ("lower testdata/mobius-llama-static/model.onnx --to scatter-nd -o".to_owned(), "c/new/model.onnx"),
        (format!("{APPLY} --present-cache"), "d/new/out.npy"),
        (format!("{PLAN} --svg"), "e/new/plan.svg"),
        (
            "generate testdata/mobius-llama-static/model.onnx --prompt-ids 1 --tokens 1 --save-prefix"
                .to_owned(),
            "f/new/prefix",
        ),
    ] {
        if is_built(&line) {
            folder.run(&format!("{line} {output}")).passed();
            assert!(folder.path(output).is_file(), "{line}");
        }
    }
    // A refused command leaves no folder.
    folder.run("convert testdata/mobius-llama-static/model.onnx --max-seq 8 -o g/new/model.onnx").refused();
    assert!(!folder.path("g").exists());
}

#[test]
fn the_mode_of_an_existing_file_is_kept() {
    let folder = folder();
    folder.write("out.npy", b"old");
    for mode in [0o600, 0o640, 0o755] {
        std::fs::set_permissions(folder.path("out.npy"), PermissionsExt::from_mode(mode)).unwrap();
        folder.run(&format!("{APPLY} --present-cache out.npy")).passed();
        let meta = std::fs::metadata(folder.path("out.npy")).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, mode);
    }
}

#[test]
fn devices_and_pipes_are_written_through() {
    let folder = folder();
    symlink("/dev/full", folder.path("full.svg")).unwrap();
    let refused = folder.run(&format!("{PLAN} --svg full.svg")).refused();
    assert_eq!(refused, "error: full.svg: no space left on device");
    assert!(std::fs::metadata("/dev/full").unwrap().file_type().is_char_device());
    symlink("/dev/null", folder.path("null.npy")).unwrap();
    folder.run(&format!("{APPLY} --present-cache null.npy")).passed();
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());

    assert!(Command::new("mkfifo").arg(folder.path("pipe.npy")).status().unwrap().success());
    let pipe = folder.path("pipe.npy");
    let reader = std::thread::spawn(move || std::fs::read(pipe).unwrap());
    folder.run(&format!("{APPLY} --present-cache pipe.npy")).passed();
    assert_eq!(reader.join().unwrap().len(), result().len());
    assert!(std::fs::metadata(folder.path("pipe.npy")).unwrap().file_type().is_fifo());
}

#[test]
fn a_full_disk_under_standard_output_is_said() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(BINARY).args(PLAN.split(' ')).stdout(full).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), error.as_str()),
        (Some(2), "error: standard output: No space left on device\n")
    );
}

#[test]
fn a_picture_on_standard_output_is_all_there_is_on_it() {
    let svg = folder().run(&format!("{PLAN} --svg -")).passed();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
}

/// Checks that no output replaces an input, under any name of the input.
#[test]
fn no_input_is_overwritten() {
    let folder = folder();
    folder.write("at.npy", &npy_i64(&[2]));
    folder.write("lengths.npy", &npy_i64(&[1]));
    symlink("at.npy", folder.path("soft.npy")).unwrap();
    std::fs::hard_link(folder.path("at.npy"), folder.path("hard.npy")).unwrap();
    std::fs::create_dir(folder.path("sub")).unwrap();
    let reads = "--write-indices at.npy --lengths lengths.npy";
    let names = [
        "at.npy",
        "./at.npy",
        "soft.npy",
        "hard.npy",
        "sub/../at.npy",
        "lengths.npy",
        "cache.npy",
        "update.npy",
    ];
    for out in names {
        let lines = [
            format!("{APPLY} {reads} --present-cache {out}"),
            format!("plan tensor-scatter --cache cache.npy --update update.npy --axis 1 {reads} --svg {out}"),
        ];
        for line in lines {
            let before = folder.read(out);
            let refused = folder.run(&line).refused();
            let expected = format!("error: {out}: is an input of this command, and no input is overwritten");
            assert_eq!(refused, expected, "{line}");
            assert_eq!(folder.read(out), before);
        }
    }
    let line = "apply kv-cache-operation --past cache.npy --new-kv update.npy --layer-id at.npy --token-offset at.npy \
                --seq-len lengths.npy --present lengths.npy";
    folder.run(line).refused();
    assert_eq!(folder.read("lengths.npy"), npy_i64(&[1]));
}

/// Checks that external data is an input, too. The values of a data set's tensor may be in another file.
#[test]
fn external_data_is_not_overwritten() {
    let folder = Folder::with_testdata();
    let case = "testdata/onnx-node/test_tensorscatter_circular";
    let values = format!("{case}/test_data_set_0/values.pb");
    // dims, FLOAT, external_data { location: "values.pb" }, EXTERNAL.
    let entry = [b"\x0a\x08location\x12\x09".as_slice(), b"values.pb"].concat();
    let entry_len = u8::try_from(entry.len()).unwrap();
    let past =
        [b"\x08\x02\x08\x01\x08\x04\x08\x05\x10\x01\x6a".as_slice(), &[entry_len], &entry, b"\x70\x01"]
            .concat();
    folder.write(&format!("{case}/test_data_set_0/input_0.pb"), &past);
    folder.write(&values, &[0; 160]);
    let refused = folder.run(&format!("run {case} -o present_cache={values}")).refused();
    assert!(refused.contains("is an input of this command"), "{refused}");
    assert_eq!(folder.read(&values), [0; 160]);
    // A tensor on the command line may name a file anywhere.
    let line = format!(
        "apply tensor-scatter --past-cache {case}/test_data_set_0/input_0.pb --update {values} --in-place"
    );
    folder.run(&line).refused();
    let line = format!("plan tensor-scatter --cache {case}/test_data_set_0/input_0.pb --update 2,1,1,5");
    let refused = folder.run(&line).refused();
    assert!(refused.contains("external data in \"values.pb\", which is only read for models"), "{refused}");
}

/// Checks that an output replaces only a file of the same kind, so that a mistaken name destroys no file.
#[test]
fn a_file_of_another_kind_is_not_replaced() {
    let folder = Folder::with_testdata();
    let model = folder.read("testdata/decoders/optimum-1.18-gpt2/model.onnx");
    let kinds: [(&str, &[u8]); 5] = [
        ("ONNX model", &model),
        ("HTML page", b"<!DOCTYPE html><p>mine"),
        ("SVG picture", b"<svg><!-- mine -->"),
        ("", b"# notes"),
        ("", &npy_f32(&[1, 4], [0.0; 4])),
    ];
    let lines = [
        ("convert testdata/decoders/optimum-1.18-gpt2/model.onnx --max-seq 8 -o out", "ONNX model"),
        ("lower testdata/onnx-node/test_tensorscatter/model.onnx --to scatter-nd -o out", "ONNX model"),
        (
            "certify testdata/mobius-llama-static/model.onnx --engine tract --steps 1 --no-timing --html out",
            "HTML page",
        ),
        ("plan tensor-scatter --cache 1,4,1 --update 1,1,1 --svg out", "SVG picture"),
    ];
    for (line, kind) in lines.into_iter().filter(|(line, _)| is_built(line)) {
        for (there, bytes) in kinds {
            folder.write("out", bytes);
            let answer = folder.run(line);
            if there == kind {
                assert_eq!(answer.code, Some(0), "{line} over {there}: {answer}");
                assert!(folder.read("out") != bytes, "{line}");
                continue;
            }
            assert_eq!(answer.code, Some(2), "{line} over {there}: {answer}");
            let start = format!("error: out: exists and is not an {kind} file");
            assert!(answer.one_error_line().starts_with(&start), "{line}");
            assert!(folder.read("out") == bytes, "{line}");
        }
        folder.write("out", b"");
        assert_eq!(folder.run(line).code, Some(0), "{line}");
        assert!(!folder.read("out").is_empty(), "{line}");
    }
}

#[test]
fn two_outputs_are_two_files() {
    let folder = Folder::with_testdata();
    std::fs::create_dir(folder.path("sub")).unwrap();
    symlink("sub", folder.path("other")).unwrap();
    let run = "run testdata/files/kv_pair.onnx --dim batch=1 --dim capacity=4 --dim rows=1";
    for (first, second) in [("a.npy", "sub/../a.npy"), ("sub/new.npy", "other/new.npy")] {
        let refused = folder.run(&format!("{run} -o present_k={first} -o present_v={second}")).refused();
        assert!(refused.contains("leads to the same file as"), "{refused}");
        assert!(!folder.path(first).exists());
    }
    folder.run(&format!("{run} -o present_k=a.npz#k -o present_v=a.npz#v")).passed();
    for file in ["b.npz", "b.safetensors"] {
        let refused = folder.run(&format!("{run} -o present_k={file}#k -o present_v={file}#k")).refused();
        assert_eq!(refused, format!("error: {file}: two outputs are called 'k'"));
        assert!(!folder.path(file).exists());
    }
    folder.run(&format!("{run} -o present_k=b.safetensors#__metadata__")).refused();
}

#[test]
fn the_other_entries_of_a_file_are_not_lost() {
    let folder = Folder::with_testdata();
    folder.write_cache_and_update();
    for (file, other) in [("two.npz", "write_indices"), ("two.safetensors", "v")] {
        let out = format!("testdata/files/{file}");
        let before = folder.read(&out);
        for (name, lost) in [("#k", other.to_owned()), ("#new", format!("k, {other}"))] {
            let refused = folder.run(&format!("{APPLY} --present-cache {out}{name}")).refused();
            let expected =
                format!("error: {out}: exists, and these entries would be lost: {lost}; name a new file");
            assert_eq!(refused, expected);
            assert_eq!(folder.read(&out), before);
        }
    }
    for out in ["new.npz#a", "new.npz#a", "new.safetensors#a", "new.safetensors#a"] {
        folder.run(&format!("{APPLY} --present-cache {out}")).passed();
    }
}

#[test]
fn file_names_need_not_be_unicode() {
    let folder = folder();
    let name = |before: &str, after: &str| {
        OsStr::from_bytes(&[before.as_bytes(), b"\xff", after.as_bytes()].concat()).to_owned()
    };
    std::fs::rename(folder.path("cache.npy"), folder.path("").join(name("c", ".npy"))).unwrap();
    let line = ["apply", "tensor-scatter", "--update", "update.npy", "--axis", "1", "--past-cache"];
    let mut args: Vec<_> = line.iter().map(Into::into).collect();
    args.extend([name("c", ".npy"), "--present-cache".into(), name("out", ".safetensors#k")]);
    folder.run_os(&args).passed();
    assert!(folder.path("").join(name("out", ".safetensors")).exists());
    let mut args: Vec<_> = PLAN.split(' ').map(Into::into).collect();
    args.extend(["--svg".into(), name("p", ".svg")]);
    folder.run_os(&args).passed();
    assert!(folder.path("").join(name("p", ".svg")).exists());
}

/// Runs `verify … | head -1`. The command checks all cases, and the exit code is for all of them.
#[test]
fn a_reader_that_leaves_does_not_change_the_verdict() {
    let folder = Folder::new();
    folder.run("cases -o cases --seed 1 --count 400").passed();
    let last = folder.names("cases").into_iter().rfind(|case| !case.contains("_refused_")).unwrap();
    // A float32 of shape [1].
    let other = [0x08, 1, 0x10, 1, 0x4a, 4, 0, 0, 0x80, 0x3f];
    folder.write(&format!("cases/{last}/test_data_set_0/output_0.pb"), &other);
    for json in [&[][..], &["--json"]] {
        let mut child = Command::new(BINARY)
            .args(["verify", "cases"])
            .args(json)
            .current_dir(folder.path(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!((child.wait().unwrap().code(), errors.as_str()), (Some(1), ""), "{first}");
    }
}
