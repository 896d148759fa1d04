//! `.npz`, a zip archive of `.npy` files, stored or deflated.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{BufReader, Cursor, Write};
use std::path::Path;

use kvscatter::ElementType;
use kvscatter_onnx::Tensor;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::header::Header;
use super::{Location, Problem, npy, source};

/// The largest size of an array that is compressed. Deflate packs a gigabyte of zeros into a megabyte, so a
/// small file can contain a huge array.
const MAX_INFLATED: usize = 4 << 30;

pub(super) fn read(location: &Location, ty: Option<ElementType>) -> Result<Tensor, Problem> {
    let (file, _) = source::open(location.path())?;
    let mut archive = ZipArchive::new(BufReader::new(file))?;
    let name = entry(&archive, location.entry())?;
    let mut entry = archive.by_name(&name)?;
    let header = npy::read_header(&mut entry, ty)?;
    if entry.compression() != CompressionMethod::Stored && header.len > MAX_INFLATED {
        return Err(Problem::Inflates { limit: MAX_INFLATED });
    }
    // Reading one byte more shows whether the data is too long. Reading to the end also compares the
    // checksum.
    let data = source::at_most(&mut entry, header.len.saturating_add(1))?;
    let (element, shape, expected) = (header.element, header.shape.clone(), header.len);
    match data.len().cmp(&expected) {
        Ordering::Equal => header.tensor(data),
        Ordering::Greater => Err(Problem::MoreData { element, shape, expected }),
        Ordering::Less => {
            let got = u64::try_from(data.len()).unwrap_or(u64::MAX);
            Err(Problem::DataLength { element, shape, expected, got })
        }
    }
}

/// Reads the header of an array. The data is not expanded.
pub(super) fn describe(location: &Location, ty: Option<ElementType>) -> Result<Header, Problem> {
    let (file, _) = source::open(location.path())?;
    let mut archive = ZipArchive::new(BufReader::new(file))?;
    let name = entry(&archive, location.entry())?;
    let mut entry = archive.by_name(&name)?;
    let header = npy::read_header(&mut entry, ty)?;
    npy::check_len(&header, entry.size())?;
    Ok(header)
}

/// Returns the names of the arrays in an archive.
pub(super) fn names(path: &Path) -> Result<Vec<String>, Problem> {
    let (file, _) = source::open(path)?;
    let archive = ZipArchive::new(BufReader::new(file))?;
    archive.file_names().map(|name| Ok(array(&name?).to_owned())).collect()
}

/// Returns the bytes of an archive of these arrays.
pub(super) fn encode(entries: &[(&str, &Tensor)]) -> Result<Vec<u8>, Problem> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, tensor) in entries {
        let array = npy::encode(tensor)?;
        // As in numpy.savez, the data is stored so that it can be mapped. Sizes have 64 bits if they need
        // them.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(zip::DateTime::default())
            .large_file(u32::try_from(array.len()).is_err());
        archive.start_file(format!("{name}.npy"), options)?;
        archive.write_all(&array)?;
    }
    Ok(archive.finish()?.into_inner())
}

/// Returns the name of the given entry inside the zip, or of the only entry if none is given.
fn entry(archive: &ZipArchive<BufReader<File>>, asked: Option<&str>) -> Result<String, Problem> {
    let mut names = Vec::new();
    for name in archive.file_names() {
        names.push(name?.into_owned());
    }
    let have = || names.iter().map(|name| array(name).to_owned()).collect();
    match (asked, names.as_slice()) {
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(Problem::WhichEntry { have: have() }),
        (Some(asked), names) => names
            .iter()
            .find(|name| *name == asked || array(name) == asked)
            .cloned()
            .ok_or_else(|| Problem::NoEntry { entry: asked.to_owned(), have: have() }),
    }
}

/// Returns the name that NumPy gives the array in this file of the archive.
fn array(name: &str) -> &str {
    name.strip_suffix(".npy").unwrap_or(name)
}
