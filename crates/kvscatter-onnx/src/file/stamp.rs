//! Detects that a file was changed or replaced.

use std::fs::File;
use std::time::SystemTime;

use crate::OnnxError;

/// The length, the times of the last change and the inode of a file.
///
/// The file system sets the time of change (`ctime`), which no program can set back as it can the time of modification.
/// So an edit in place is also detected if it keeps the length and the time of modification. Changes of links,
/// permissions and the owner count, too. Systems other than Unix have no such time.
///
/// Two stamps of one path are equal if the file was not changed. They may also be equal if the file was overwritten
/// with as many bytes within the resolution of the file system's times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    inode: (u64, u64),
    #[cfg(unix)]
    changed: (i64, i64),
}

impl Stamp {
    /// Reads the stamp of an open file.
    pub(crate) fn read(file: &File) -> Result<Self, OnnxError> {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        let meta = file.metadata()?;
        Ok(Self {
            len: meta.len(),
            modified: meta.modified().ok(),
            #[cfg(unix)]
            inode: (meta.dev(), meta.ino()),
            #[cfg(unix)]
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// Returns the stamp as a text that a later process can compare. It has no number of the device, which may change
    /// when the system starts.
    pub(crate) fn text(&self) -> String {
        let modified = match self.modified.map(|time| time.duration_since(SystemTime::UNIX_EPOCH)) {
            None => "unknown".to_owned(),
            Some(Ok(after)) => after.as_nanos().to_string(),
            Some(Err(before)) => format!("-{}", before.duration().as_nanos()),
        };
        #[cfg_attr(not(unix), expect(unused_mut, reason = "only Unix has more"))]
        let mut text = format!("{} bytes, modified {modified}", self.len);
        #[cfg(unix)]
        {
            let (seconds, nanoseconds) = self.changed;
            text.push_str(&format!(", inode {}, changed {seconds}.{nanoseconds:09}", self.inode.1));
        }
        text
    }

    /// Returns the number of bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}
