//! The program that the command runs in, which decides where the command finds other files and programs.

use std::ffi::OsString;
use std::path::PathBuf;

/// The program that the command runs in.
#[derive(Clone, Debug, Default)]
pub enum Host {
    /// The program `kvscatter`.
    #[default]
    Program,
    /// An interpreter with the Python package of kvscatter. The default engine is then ONNX Runtime.
    Python(PythonPackage),
}

/// What the command uses of the Python package that contains it, and of its interpreter.
#[derive(Clone, Debug)]
pub struct PythonPackage {
    /// The library of ONNX Runtime without `--ort-lib`, or a folder with its package. With `None`, the command searches
    /// as the program does.
    pub ort_library: Option<PathBuf>,
    /// The plugin without `--ort-plugin`, or `none`.
    pub ort_plugin: PathBuf,
    /// The program that calls `evaluate_template`, with its arguments.
    pub template_evaluator: Vec<OsString>,
}

/// One call of the command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invocation<'a> {
    /// The command line. The first word is the name of the program.
    #[cfg_attr(not(feature = "certify"), expect(dead_code, reason = "only certificates contain it"))]
    pub(crate) arguments: &'a [OsString],
    pub(crate) host: &'a Host,
}

impl Host {
    #[cfg(feature = "onnxruntime")]
    pub(crate) fn python(&self) -> Option<&PythonPackage> {
        match self {
            Self::Program => None,
            Self::Python(package) => Some(package),
        }
    }
}
