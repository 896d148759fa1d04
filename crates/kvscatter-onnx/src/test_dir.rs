//! The ONNX test-directory format: `model.onnx` next to `test_data_set_N/{input_i.pb, output_i.pb}`.
//!
//! The file `input_i.pb` is input `i` of the graph, even if the tensor in the file has another name.
//! Sequences and optional values are not supported. [`Graph::inputs`](crate::Graph::inputs) returns an error
//! for a graph that has them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::{ErrorPlace, FileError, Graph, Model, OnnxError, Tensor, tensor_proto};

/// The maximum depth below the root at which test directories are searched for.
const MAX_DEPTH: usize = 32;

/// The name of the file with the model.
const MODEL: &str = "model.onnx";
/// The prefix of the names of data sets.
const DATA_SET: &str = "test_data_set_";
/// The name of the file that marks a test directory whose inputs must be rejected. This is a kvscatter
/// extension; not part of the specification.
pub const REFUSED: &str = "refused.json";
/// The name of the file with the tolerance that the outputs of a test directory are compared with. This is a
/// kvscatter extension; not part of the specification.
pub const TOLERANCE: &str = "tolerance.json";

/// A test directory: a model with its data sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestCase {
    /// The path of the test directory.
    pub folder: PathBuf,
    /// The `test_data_set_N` folders in the order of their numbers.
    pub data_sets: Vec<DataSet>,
}

/// The files of one call's inputs and expected outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSet {
    /// The path of the `test_data_set_N` folder.
    pub folder: PathBuf,
    /// The paths of `input_0.pb`, `input_1.pb`, and so on.
    pub inputs: Vec<PathBuf>,
    /// The paths of `output_0.pb`, `output_1.pb`, and so on. The list is empty for inputs that must be
    /// rejected.
    pub outputs: Vec<PathBuf>,
}

/// The test directories that [`discover`] found, and the paths that it could not read.
#[derive(Debug, Default)]
pub struct Discovered {
    /// The test directories in the order of their paths.
    pub cases: Vec<PathBuf>,
    /// The files and folders that were not read, in the order of their paths.
    pub unread: Vec<Unread>,
}

/// A file or folder that [`discover`] did not read.
#[derive(Debug)]
pub struct Unread {
    /// The path of the file or folder.
    pub path: PathBuf,
    /// The reason why it was not read.
    pub cause: OnnxError,
}

/// Finds the test directories in a folder and below it. These are the folders that contain a `model.onnx`.
///
/// The caller [opens](TestCase::open) them one by one, so that a broken one does not hide the others.
///
/// Symbolic links inside the folder are followed, at most 32 levels deep, and each loop only once. Links that
/// lead out of the folder, links that lead to nothing, and folders that cannot be read are returned as
/// [`Unread`]. A test directory is omitted if one of its files is unread.
///
/// # Errors
/// Returns [`std::io::Error`] wrapped in [`OnnxError::InFile`] if the folder itself cannot be read.
pub fn discover(root: &Path) -> Result<Discovered, OnnxError> {
    let inside = root.canonicalize().in_file(root)?;
    let leads_out = |path: &Path| path.canonicalize().is_ok_and(|path| !path.starts_with(&inside));
    let mut discovered = Discovered::default();
    let mut walk = WalkDir::new(root).follow_links(true).max_depth(MAX_DEPTH).sort_by_file_name().into_iter();
    while let Some(entry) = walk.next() {
        match entry {
            Ok(entry) if entry.depth() > 0 && entry.path_is_symlink() && leads_out(entry.path()) => {
                let cause = FileError::LinkLeadsOut.into();
                discovered.unread.push(Unread { path: entry.path().to_owned(), cause });
                if entry.file_type().is_dir() {
                    walk.skip_current_dir();
                }
            }
            Ok(entry) if entry.file_name() == MODEL && entry.depth() > 0 => {
                if entry.file_type().is_file() {
                    discovered.cases.push(entry.path().parent().unwrap_or(root).to_owned());
                } else {
                    let cause = FileError::NotRegularFile.into();
                    discovered.unread.push(Unread { path: entry.path().to_owned(), cause });
                }
            }
            Ok(_) => {}
            // The link leads to a folder that is already being walked.
            Err(error) if error.loop_ancestor().is_some() => {}
            Err(error) => {
                let (path, depth) = (error.path().unwrap_or(root).to_owned(), error.depth());
                let unknown = || std::io::Error::other("cannot be read");
                let cause = error.into_io_error().unwrap_or_else(unknown);
                if depth == 0 {
                    return Err(cause).in_file(path);
                }
                discovered.unread.push(Unread { path, cause: cause.into() });
            }
        }
    }
    let Discovered { cases, unread } = &mut discovered;
    let parts = unread.iter().flat_map(|unread| unread.path.ancestors()).filter(|path| is_part(path));
    let spoilt: BTreeSet<&Path> = parts.filter_map(Path::parent).collect();
    cases.retain(|case| !spoilt.contains(case.as_path()));
    // The walk skips loops and entries that are too deep, so it does not reach every file that a case reads.
    cases.retain(|case| match parts_of(case).into_iter().find(|part| leads_out(part)) {
        None => true,
        Some(path) => {
            unread.push(Unread { path, cause: FileError::LinkLeadsOut.into() });
            false
        }
    });
    Ok(discovered)
}

/// Returns the files that a test directory consists of.
fn parts_of(case: &Path) -> Vec<PathBuf> {
    let mut parts = [MODEL, REFUSED, TOLERANCE].map(|name| case.join(name)).to_vec();
    // If a test directory cannot be opened, none of its data sets is read.
    for set in TestCase::open(case).map(|case| case.data_sets).unwrap_or_default() {
        parts.extend(set.inputs.into_iter().chain(set.outputs));
    }
    parts
}

/// Returns `true` if a file of this name belongs to a test directory.
fn is_part(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(DATA_SET) || [MODEL, REFUSED, TOLERANCE].contains(&name))
}

impl TestCase {
    /// Lists the data sets of one test directory.
    ///
    /// # Errors
    /// * Returns [`std::io::Error`] wrapped in [`OnnxError::InFile`] if a folder cannot be read.
    /// * Returns [`FileError::TestFileMissing`] if the files of a data set are not numbered from 0 without a
    ///   gap.
    pub fn open(folder: &Path) -> Result<Self, OnnxError> {
        let mut data_sets = Vec::new();
        for (_, folder) in numbered(folder, DATA_SET, "")? {
            data_sets.push(DataSet {
                inputs: files(&folder, "input_")?,
                outputs: files(&folder, "output_")?,
                folder,
            });
        }
        Ok(Self { folder: folder.to_owned(), data_sets })
    }

    /// Returns the path of the model.
    #[must_use]
    pub fn model_path(&self) -> PathBuf {
        self.folder.join(MODEL)
    }

    /// Writes a test directory with the model and one data set for each pair of inputs and outputs.
    ///
    /// Missing folders are created. Existing files are overwritten.
    ///
    /// # Errors
    /// * Returns [`std::io::Error`] or [`ProtoError::Encode`](crate::ProtoError::Encode), wrapped in
    ///   [`OnnxError::InFile`].
    /// * Returns [`FileError::TestFileCount`] if a data set has more tensors than the graph has inputs or
    ///   outputs.
    /// * Returns the errors of [`Model::graph`].
    pub fn write(
        folder: &Path,
        model: &Model,
        data_sets: &[(Vec<Tensor>, Vec<Tensor>)],
    ) -> Result<(), OnnxError> {
        let graph = model.graph()?;
        create(folder)?;
        model.save(&folder.join("model.onnx"))?;
        for (number, (inputs, outputs)) in data_sets.iter().enumerate() {
            let folder = folder.join(format!("{DATA_SET}{number}"));
            create(&folder)?;
            write_files(&folder, "input", inputs, graph.input_names())?;
            write_files(&folder, "output", outputs, graph.output_names())?;
        }
        Ok(())
    }
}

impl DataSet {
    /// Reads the inputs in the graph's order and under the graph's names.
    ///
    /// Every input needs a file. Only the last inputs may lack one, and only if they have an initializer.
    ///
    /// # Errors
    /// * Returns [`FileError::TestFileCount`] if there are more files than inputs.
    /// * Returns [`FileError::TestFileMissing`] if there are too few files.
    /// * Returns the errors of [`load_tensor_pb`](crate::load_tensor_pb).
    pub fn read_inputs(&self, graph: &Graph<'_>) -> Result<Vec<(String, Tensor)>, OnnxError> {
        let names = graph.input_names();
        check_count("input", names.len(), self.inputs.len())?;
        let without_file = names.enumerate().skip(self.inputs.len());
        let mut missing = without_file.filter(|(_, name)| graph.initializer(name).is_none());
        if let Some((index, _)) = missing.next() {
            let folder = self.folder.clone();
            return Err(FileError::TestFileMissing { folder, missing: format!("input_{index}.pb") }.into());
        }
        let named = graph.input_names().zip(&self.inputs);
        named.map(|(name, path)| Ok((name.to_owned(), tensor_proto::load_tensor_pb(path)?))).collect()
    }

    /// Reads the expected outputs in the graph's order.
    ///
    /// # Errors
    /// Returns the errors of [`load_tensor_pb`](crate::load_tensor_pb).
    pub fn read_outputs(&self) -> Result<Vec<Tensor>, OnnxError> {
        self.outputs.iter().map(|path| tensor_proto::load_tensor_pb(path)).collect()
    }

    /// Returns the other files that contain values of this data set's tensors.
    ///
    /// These files must not be overwritten while the data set is in use.
    ///
    /// # Errors
    /// Returns the errors of [`tensor_proto::external_file`].
    pub fn external_files(&self) -> Result<Vec<PathBuf>, OnnxError> {
        let files = self.inputs.iter().chain(&self.outputs);
        files.filter_map(|path| tensor_proto::external_file(path).transpose()).collect()
    }
}

/// Returns the files `prefix0.pb`, `prefix1.pb`, … and checks that the numbers have no gap.
fn files(folder: &Path, prefix: &str) -> Result<Vec<PathBuf>, OnnxError> {
    let files = numbered(folder, prefix, ".pb")?;
    for (index, (number, _)) in files.iter().enumerate() {
        if *number != index {
            return Err(FileError::TestFileMissing {
                folder: folder.to_owned(),
                missing: format!("{prefix}{index}.pb"),
            }
            .into());
        }
    }
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Returns the folder's entries whose names are the prefix, a number and the suffix, in the order of the
/// numbers.
fn numbered(folder: &Path, prefix: &str, suffix: &str) -> Result<Vec<(usize, PathBuf)>, OnnxError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).in_file(folder)? {
        let name = entry.in_file(folder)?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.strip_suffix(suffix))
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok());
        if let Some(number) = number {
            files.push((number, folder.join(name)));
        }
    }
    files.sort();
    Ok(files)
}

fn check_count(what: &'static str, expected: usize, got: usize) -> Result<(), FileError> {
    if got > expected { Err(FileError::TestFileCount { what, expected, got }) } else { Ok(()) }
}

fn create(folder: &Path) -> Result<(), OnnxError> {
    std::fs::create_dir_all(folder).in_file(folder)
}

fn write_files<'m>(
    folder: &Path,
    what: &'static str,
    tensors: &[Tensor],
    names: impl ExactSizeIterator<Item = &'m str>,
) -> Result<(), OnnxError> {
    check_count(what, names.len(), tensors.len())?;
    for (index, (tensor, name)) in tensors.iter().zip(names).enumerate() {
        let path = folder.join(format!("{what}_{index}.pb"));
        tensor_proto::write_tensor_pb(name, tensor)
            .and_then(|bytes| std::fs::write(&path, bytes).map_err(OnnxError::from))
            .in_file(&path)?;
    }
    Ok(())
}
