//! Detects that a file was changed or replaced.

use std::fs::File;
use std::time::SystemTime;

use crate::OnnxError;

/// The length, the time of the last change and the inode of a file.
///
/// Two stamps of one path are equal if the file was not changed. They may also be equal if the file was overwritten
/// with as many bytes within the resolution of the file system's times, or if its time was set back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    inode: (u64, u64),
}

impl Stamp {
    /// Reads the stamp of an open file.
    pub(crate) fn of(file: &File) -> Result<Self, OnnxError> {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        let meta = file.metadata().map_err(OnnxError::Io)?;
        Ok(Self {
            len: meta.len(),
            modified: meta.modified().ok(),
            #[cfg(unix)]
            inode: (meta.dev(), meta.ino()),
        })
    }

    /// Returns the number of bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}
