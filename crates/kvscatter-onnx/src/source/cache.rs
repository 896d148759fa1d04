//! The folder of conversions.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use crate::convert::{ConvertError, ConvertOptions};
use crate::external::Folder;
use crate::file::{self, Stamp, UnfinishedFiles, folder_of};
use crate::{
    DataFile, DataFileOrigin, ErrorPlace, FileError, Fingerprint, Model, OnnxError, WeightTransfer,
    config_file, proto,
};

/// The names of the converted model and of its description.
const MODEL: &str = "model.onnx";
const RECORD: &str = "source.json";

/// The name of the file that a process locks while it installs a conversion.
const LOCK: &str = ".lock";

/// The prefix of the names of unfinished conversions.
const UNFINISHED: &str = ".tmp-";

/// The age of an unfinished conversion whose process must have ended.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// The version of the converter and of the description. Other versions are converted again.
const CONVERTER: &str = concat!(env!("CARGO_PKG_VERSION"), ", form 1");

/// Returns the default of [`PrepareOptions::cache`](super::PrepareOptions::cache).
pub(super) fn default_cache() -> Result<PathBuf, OnnxError> {
    let set = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let in_cache =
        || set("XDG_CACHE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("kvscatter"));
    let in_home =
        || std::env::home_dir().filter(|path| path.is_absolute()).map(|path| path.join(".cache/kvscatter"));
    set("KVSCATTER_CACHE").or_else(in_cache).or_else(in_home).ok_or(ConvertError::NoCacheFolder.into())
}

/// The folder of conversions.
pub(super) struct Cache<'a> {
    pub(super) root: &'a Path,
}

/// An exported model, and what is asked of its conversion.
pub(super) struct Request {
    /// The absolute path of the model.
    path: PathBuf,
    /// The hash of the model's bytes.
    hash: Fingerprint,
    asked: Asked,
}

/// The options of a conversion, and whether the number of slots may be smaller if the model supports fewer tokens.
pub(super) type Asked = (ConvertOptions, bool);

/// A conversion that is kept.
pub(super) struct Kept {
    pub(super) model: PathBuf,
    pub(super) max_seq: usize,
    /// The bytes of weights that were copied.
    pub(super) copied: u64,
}

/// Describes a conversion.
#[derive(Deserialize, Serialize)]
struct Record {
    converter: String,
    /// The path of the exported model, or `None` if it is not UTF-8.
    model: Option<String>,
    /// The hashes of the exported and the converted model.
    exported: String,
    converted: String,
    max_seq: usize,
    weights: Vec<Weights>,
}

/// A file of weights.
#[derive(Deserialize, Serialize)]
struct Weights {
    location: String,
    /// The stamp of the exported file.
    exported: String,
    /// The stamp of its copy. `None` if the converted model has no values in the file.
    copy: Option<String>,
}

impl Request {
    /// Describes a request for the model of this path and these bytes.
    pub(super) fn new(path: &Path, bytes: &[u8], asked: Asked) -> Result<Self, OnnxError> {
        // If the file is a link, its weights are in the folder of the link.
        let folder = folder_of(path).canonicalize().in_file(path)?;
        let path = folder.join(path.file_name().unwrap_or_default());
        Ok(Self { path, hash: hash(bytes), asked })
    }

    /// Returns the name of the conversion's folder.
    fn name(&self) -> String {
        let (ConvertOptions { max_seq, cache_type, rotation, .. }, is_most) = self.asked;
        let caches = cache_type.map(|cache_type| format!(" {cache_type} {rotation}")).unwrap_or_default();
        let mut bytes = self.path.as_os_str().as_encoded_bytes().to_vec();
        bytes.extend(format!("\0{max_seq} {is_most}{caches}").into_bytes());
        hash(&bytes).to_string()
    }
}

impl Cache<'_> {
    /// Returns the conversion that answers a request, if it is whole and the exported model has not changed.
    pub(super) fn find(&self, request: &Request) -> Option<Kept> {
        let folder = self.root.join(request.name());
        let record = Record::read(&folder)?;
        let model = folder.join(MODEL);
        let is_whole = || {
            Some(hash(&file::read(&model, proto::MAX_MESSAGE_BYTES).ok()?).to_string() == record.converted)
        };
        let is_current = record.converter == CONVERTER
            && record.exported == request.hash.to_string()
            && record.weights_match(folder_of(&request.path), &folder)?
            && is_whole()?;
        is_current.then_some(Kept { model, max_seq: record.max_seq, copied: 0 })
    }

    /// Keeps a conversion. `stamps` are those of the exported weights before the conversion.
    ///
    /// If another thread or process has kept the same conversion meanwhile, that one is used.
    pub(super) fn keep(
        &self,
        request: &Request,
        stamps: BTreeMap<String, Stamp>,
        converted: &Model,
        max_seq: usize,
    ) -> Result<Kept, OnnxError> {
        let mut made = UnfinishedFiles::new();
        made.folders(self.root)?;
        self.clean();
        let new = made.folder_in(self.root, UNFINISHED)?;
        let files = converted.save_with_weights(&new.join(MODEL), WeightTransfer::Copy)?;
        let record = Record::new(request, stamps, &new, max_seq)?;
        let text = serde_json::to_vec_pretty(&record).map_err(std::io::Error::from)?;
        file::write(&new.join(RECORD), &text)?;
        let target = self.root.join(request.name());
        let installed = made.complete(|| self.install(&new, &target, request));
        let copied_bytes =
            |file: &DataFile| if file.origin == DataFileOrigin::Copied { file.bytes } else { 0 };
        let copied = files.iter().map(copied_bytes).fold(0, u64::saturating_add);
        match (installed, self.find(request)) {
            (_, Some(kept)) => Ok(Kept { copied, ..kept }),
            (Err(error), None) => Err(error.into()),
            (Ok(()), None) => Err(FileError::FileChanged).in_file(&request.path),
        }
    }

    /// Renames a conversion to its final name. A conversion that is damaged or out of date makes room for it.
    ///
    /// One process at a time does this, so that none moves away what another one has just kept. File systems without
    /// locks do not order them.
    fn install(&self, new: &Path, target: &Path, request: &Request) -> io::Result<()> {
        let lock = File::create(self.root.join(LOCK))?;
        let _ = lock.lock();
        if self.find(request).is_some() {
            // An error, so that the caller removes `new`.
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if target.symlink_metadata().is_ok() {
            let aside = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(self.root)?;
            fs::rename(target, aside.path().join("old"))?;
        }
        fs::rename(new, target)
    }

    /// Removes conversions of models that no longer exist, and what killed processes have left. Errors are ignored,
    /// because these folders do not prevent a conversion.
    fn clean(&self) {
        for entry in fs::read_dir(self.root).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_old = || {
                entry
                    .metadata()
                    .and_then(|meta| meta.modified())
                    .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ABANDONED))
            };
            let name = entry.file_name();
            let is_garbage = match name.to_str() {
                Some(name) if name.starts_with(UNFINISHED) => is_old(),
                Some(name) if name.parse::<Fingerprint>().is_ok() => {
                    let model = Record::read(&path).and_then(|record| record.model);
                    model.is_some_and(|model| !Path::new(&model).exists())
                }
                _ => false,
            };
            if is_garbage {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

impl Record {
    /// Describes a conversion that was written to the folder `new`.
    fn new(
        request: &Request,
        stamps: BTreeMap<String, Stamp>,
        new: &Path,
        max_seq: usize,
    ) -> Result<Self, OnnxError> {
        let kept = Folder::open(new)?;
        let mut weights = Vec::with_capacity(stamps.len());
        for (location, stamp) in stamps {
            let path = Path::new(&location);
            let copy = match kept.size(path)? {
                None => None,
                Some(_) => Some(kept.stamp(path)?.text()),
            };
            weights.push(Weights { exported: stamp.text(), location, copy });
        }
        let converted = file::read(&new.join(MODEL), proto::MAX_MESSAGE_BYTES)?;
        Ok(Self {
            converter: CONVERTER.to_owned(),
            model: request.path.to_str().map(str::to_owned),
            exported: request.hash.to_string(),
            converted: hash(&converted).to_string(),
            max_seq,
            weights,
        })
    }

    /// Reads the description of the conversion in a folder. Returns `None` if there is no valid one.
    fn read(folder: &Path) -> Option<Self> {
        // It lists the files of weights, and a model may have any number of them.
        let object = config_file::read_within(folder, RECORD, proto::MAX_MESSAGE_BYTES).ok()??;
        serde_json::from_value(Value::Object(object)).ok()
    }

    /// Returns `true` if the files of weights are those that were there when the conversion was made. Returns `None` if
    /// one is missing.
    fn weights_match(&self, exported: &Path, kept: &Path) -> Option<bool> {
        let (exported, kept) = (Folder::open(exported).ok()?, Folder::open(kept).ok()?);
        for weights in &self.weights {
            let location = Path::new(&weights.location);
            let stamp = exported.stamp(location).ok()?;
            let is_same = stamp.text() == weights.exported
                && match &weights.copy {
                    Some(copy) => kept.stamp(location).ok()?.text() == *copy,
                    None => true,
                };
            if !is_same {
                return Some(false);
            }
        }
        Some(true)
    }
}

fn hash(bytes: &[u8]) -> Fingerprint {
    Fingerprint::from_bits(xxh3_128(bytes))
}
