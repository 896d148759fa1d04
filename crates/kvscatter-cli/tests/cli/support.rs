//! Runs the binary in a temporary folder.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
#[cfg(feature = "full")]
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use kvscatter_onnx::Model;
use kvscatter_onnx::internal::proto::tensor_shape_proto::Dimension;
use kvscatter_onnx::internal::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::internal::proto::{GraphProto, ValueInfoProto};
use serde_json::Value;
use tempfile::TempDir;

use crate::token_types::add_token_types;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_kvscatter");

/// A folder in which the commands of a test run, so that they print no absolute path.
pub(crate) struct Folder(TempDir);

/// The answer of a command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Returns whether this build has the features that a command line needs. `cargo test --features full` has
/// all of them.
pub(crate) fn is_built(line: &str) -> bool {
    let needs_engine =
        line.starts_with("certify") || line.starts_with("generate") || line.contains("--engine");
    cfg!(feature = "full") || !needs_engine
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// Makes a folder with a copy of the repository's test data as `testdata`.
    pub(crate) fn with_testdata() -> Self {
        let folder = Self::new();
        folder.copy("", "testdata");
        folder
    }

    /// Copies a folder of the repository's test data.
    pub(crate) fn copy(&self, name: &str, to: &str) {
        let from = testdata(name);
        for path in listing(&from) {
            let copy = self.path(to).join(path.strip_prefix(&from).unwrap());
            // A folder comes before its files.
            if path.is_dir() {
                std::fs::create_dir_all(copy).unwrap();
            } else {
                std::fs::copy(path, copy).unwrap();
            }
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Returns the names in a folder, in ascending order.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Writes a cache [1, 4] of zeros and an update [1, 1] of a one.
    pub(crate) fn write_cache_and_update(&self) {
        self.write("cache.npy", &npy_f32(&[1, 4], [0.0; 4]));
        self.write("update.npy", &npy_f32(&[1, 1], [1.0]));
    }

    /// Flips bits of one byte of a file. `from_end` is 1 for the last byte.
    pub(crate) fn flip(&self, name: &str, from_end: usize, bits: u8) {
        let mut bytes = self.read(name);
        let at = bytes.len() - from_end;
        bytes[at] ^= bits;
        self.write(name, &bytes);
    }

    /// Runs a command line, split at the spaces that are not between single quotes.
    pub(crate) fn run(&self, line: &str) -> Answer {
        let words = line.split('\'').enumerate().flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().collect(),
            _ => vec![part],
        });
        self.run_args(&words.collect::<Vec<_>>())
    }

    /// Runs a command line with `--json`, and returns the document.
    #[track_caller]
    pub(crate) fn json(&self, line: &str) -> Value {
        let answer = self.run(&format!("{line} --json"));
        assert_eq!((answer.code, answer.stderr.as_str()), (Some(0), ""), "{answer}");
        answer.document()
    }

    /// Runs the commands of a transcript again, and compares it with what they print.
    ///
    /// A transcript is a snapshot in `transcripts/`. It has comments (`# …`), commands (`$ kvscatter …`), and below
    /// each command what it prints, with `[1]` if a check has failed. To add a command, write its line and update
    /// the snapshot.
    #[track_caller]
    pub(crate) fn check_transcript(&self, name: &str) {
        let path = format!("{}/tests/cli/transcripts/{name}.snap", env!("CARGO_MANIFEST_DIR"));
        let mut transcript = String::new();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            if let Some(arguments) = line.strip_prefix("$ kvscatter ") {
                transcript += &format!("{line}\n{}\n", self.run(arguments).shown());
            } else if line.starts_with("# ") {
                transcript += &format!("\n{line}\n");
            }
        }
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("transcripts");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(name, transcript));
    }

    /// Saves a changed copy of a model. Files of weights are not copied.
    pub(crate) fn change(&self, model: &str, copy: &str, change: impl FnOnce(&mut GraphProto)) {
        let mut model = Model::load(&self.path(model)).unwrap();
        change(model.proto_mut().graph.get_or_insert_default());
        model.save(&self.path(copy)).unwrap();
    }

    pub(crate) fn run_args(&self, args: &[&str]) -> Answer {
        self.answer(Command::new(BINARY).args(args))
    }

    /// Runs a command line as [`run`](Self::run) does, without an installed ONNX Runtime.
    #[cfg(feature = "full")]
    pub(crate) fn run_without_onnxruntime(&self, line: &str) -> Answer {
        let mut command = Command::new(BINARY);
        command.args(line.split_whitespace()).env("VIRTUAL_ENV", self.path("no-environment"));
        self.answer(command.env_remove("KVSCATTER_ORT_LIB").env_remove("ORT_DYLIB_PATH"))
    }

    /// Runs a command line as [`run`](Self::run) does, for a terminal with this number of columns.
    pub(crate) fn run_in_columns(&self, columns: usize, line: &str) -> Answer {
        let mut command = Command::new(BINARY);
        self.answer_in(command.args(line.split_whitespace()).env("COLUMNS", columns.to_string()))
    }

    pub(crate) fn run_os(&self, args: &[OsString]) -> Answer {
        self.answer(Command::new(BINARY).args(args))
    }

    /// Runs a command line as [`run`](Self::run) does, with limits as arguments of `ulimit`.
    #[cfg(unix)]
    pub(crate) fn run_with_limits(&self, limits: &str, line: &str) -> Answer {
        let script = format!("ulimit {limits}; exec \"$0\" \"$@\"");
        self.answer(Command::new("sh").args(["-c", &script, BINARY]).args(line.split_whitespace()))
    }

    /// Runs a command line as [`run`](Self::run) does, with these bytes as standard input.
    #[cfg(feature = "full")]
    pub(crate) fn run_with_input(&self, line: &str, input: &[u8]) -> Answer {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(input).unwrap();
        file.rewind().unwrap();
        self.answer(Command::new(BINARY).args(line.split_whitespace()).stdin(file))
    }

    pub(crate) fn answer(&self, command: &mut Command) -> Answer {
        self.answer_in(command.env_remove("COLUMNS"))
    }

    fn answer_in(&self, command: &mut Command) -> Answer {
        command.current_dir(self.0.path()).env_remove("CLICOLOR_FORCE");
        // Conversions are kept in this folder, and not in that of the user.
        let output = command.env("KVSCATTER_CACHE", self.path("cache")).output().unwrap();
        Answer {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Answer {
    /// Returns the standard output of a command that succeeded.
    #[track_caller]
    pub(crate) fn passed(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{}", self.stdout);
        self.stdout
    }

    /// Returns the one error line of a command that was refused.
    #[track_caller]
    pub(crate) fn refused(self) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (Some(2), ""), "{}", self.stderr);
        self.one_error_line()
    }

    /// Returns the JSON document on standard output.
    pub(crate) fn document(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// Returns what a transcript shows of a command: its error line, or its output.
    #[track_caller]
    fn shown(self) -> String {
        match self.code {
            Some(2) => format!("{}{}", self.stdout, self.one_error_line()),
            Some(1) => {
                assert_eq!(self.stderr, "");
                self.stdout + "[1]"
            }
            _ => self.passed().trim_end().to_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn one_error_line(&self) -> String {
        let line = self.stderr.strip_suffix('\n').expect("a line").to_owned();
        assert!(line.starts_with("error: ") && !line.contains('\n'), "{line}");
        assert!(!line.contains("panicked"), "{line}");
        line
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "exit code {}", self.code.unwrap_or(-1))?;
        if !self.stdout.is_empty() {
            write!(f, "--- standard output\n{}", self.stdout)?;
        }
        if !self.stderr.is_empty() {
            write!(f, "--- standard error\n{}", self.stderr)?;
        }
        Ok(())
    }
}

/// Returns the path of a file or folder of the repository's test data.
pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// Returns a `.npy` file as NumPy writes it.
pub(crate) fn npy(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let dims: String = shape.iter().map(|dim| format!("{dim},")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    while !(header.len() + 11).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let len = u16::try_from(header.len()).unwrap();
    [b"\x93NUMPY\x01\x00".as_slice(), &len.to_le_bytes(), header.as_bytes(), data].concat()
}

/// Returns a `.npy` file of float32.
pub(crate) fn npy_f32(shape: &[usize], values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    let data: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    npy("<f4", shape, &data)
}

/// Returns a `.npy` file of int64 or int32.
pub(crate) fn npy_i64(values: &[i64]) -> Vec<u8> {
    npy("<i8", &[values.len()], &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

pub(crate) fn npy_i32(values: &[i32]) -> Vec<u8> {
    npy("<i4", &[values.len()], &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

/// Returns the float32 values of a `.npy` file with a 128-byte header.
pub(crate) fn f32s(file: &[u8]) -> Vec<f32> {
    file[128..].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Returns the paths of all files and folders below a folder, and the folder itself.
pub(crate) fn listing(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.extend([path]) }
        }
        found.insert(folder);
    }
    found
}

/// Returns the contents of all files below a folder.
pub(crate) fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = listing(folder).into_iter().filter(|path| path.is_file());
    files.map(|path| (path.strip_prefix(folder).unwrap().to_owned(), std::fs::read(path).unwrap())).collect()
}

/// Returns the sizes that a model declares for a tensor.
pub(crate) fn dims(value: &mut ValueInfoProto) -> &mut Vec<Dimension> {
    let Some(TypeValue::TensorType(tensor)) = &mut value.r#type.get_or_insert_default().value else {
        panic!("{:?} is no tensor", value.name)
    };
    &mut tensor.shape.get_or_insert_default().dim
}

/// Writes a decoder with the types of tokens, and returns its path.
pub(crate) fn with_token_types(folder: &Folder) -> String {
    let path = "testdata/genai-llama-gqa/types.onnx";
    folder.change("testdata/genai-llama-gqa/model.onnx", path, add_token_types);
    path.to_owned()
}
