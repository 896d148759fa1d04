//! Damaged, foreign and planted journals, and files at every point of an interrupted write.

use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use kvscatter::ElementType;
use kvscatter::spec::onnx::TensorScatter;
use tempfile::TempDir;

use super::{Beside, Interrupted, JournalProblem, Problem, Rows, Subject};

const OFFSET: usize = 10;
const LEN: usize = 60;
/// The bytes of the file that the plan writes.
const WRITTEN: [Range<usize>; 2] = [OFFSET + 12..OFFSET + 18, OFFSET + 30..OFFSET + 36];

/// A file of 80 bytes with a tensor `[2, 5, 6]` of bytes, and its journal.
struct Case {
    folder: TempDir,
    file: File,
    subject: Subject,
    old: Vec<u8>,
    new: Vec<u8>,
    journal: Vec<u8>,
}

impl Case {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("k.npy");
        let old: Vec<u8> = (0..80).collect();
        fs::write(&path, &old).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let subject = Subject {
            element: ElementType::UInt8.onnx_code(),
            inode: file.metadata().unwrap().ino(),
            file_len: 80,
            offset: OFFSET.try_into().unwrap(),
            len: LEN.try_into().unwrap(),
            form: 7,
        };
        let write = TensorScatter::new().axis(1).prepare(ElementType::UInt8, &[2, 5, 6], &[2, 1, 6]).unwrap();
        let update: Vec<u8> = (200..212).collect();
        let starts = [2, 0];
        let plan = write.plan(&starts).unwrap();
        let tensor = OFFSET..OFFSET + LEN;
        let rows = Rows::new(&plan, &update);
        Beside::of(&path).unwrap().write(&subject, &rows, &old[tensor.clone()]).unwrap();
        let mut new = old.clone();
        let _ = plan.write_bytes(&mut new[tensor], &update).unwrap();
        let journal = fs::read(folder.path().join(".k.npy.kvscatter-journal")).unwrap();
        Self { folder, file, subject, old, new, journal }
    }

    /// Ends the write of this journal on a file with these contents.
    fn end(&self, journal: &[u8], contents: &[u8]) -> Result<Option<Interrupted>, JournalProblem> {
        self.put(journal, contents);
        self.end_interrupted()
    }

    fn put(&self, journal: &[u8], contents: &[u8]) {
        let path = self.folder.path().join(".k.npy.kvscatter-journal");
        // File systems sync a file that is truncated and written again, which takes long.
        let _ = fs::remove_file(&path);
        fs::write(&path, journal).unwrap();
        self.file.write_all_at(contents, 0).unwrap();
    }

    fn end_interrupted(&self) -> Result<Option<Interrupted>, JournalProblem> {
        let beside = Beside::of(&self.folder.path().join("k.npy")).unwrap();
        match beside.end_interrupted(&self.file, |_| Some(self.subject)) {
            Ok(end) => Ok(end),
            Err(Problem::Journal { problem, .. }) => Err(problem),
            Err(problem) => panic!("{problem}"),
        }
    }

    fn contents(&self) -> Vec<u8> {
        fs::read(self.folder.path().join("k.npy")).unwrap()
    }

    fn has_journal(&self) -> bool {
        self.folder.path().join(".k.npy.kvscatter-journal").exists()
    }

    /// Returns a file in which only the first `count` planned bytes are new.
    fn after(&self, count: usize) -> Vec<u8> {
        let mut bytes = self.old.clone();
        for at in WRITTEN.into_iter().flatten().take(count) {
            bytes[at] = self.new[at];
        }
        bytes
    }
}

#[test]
fn every_point_of_the_write_ends_in_one_of_two_states() {
    let case = Case::new();
    for count in 0..=12 {
        let end = case.end(&case.journal, &case.after(count)).unwrap();
        let is_complete = count == 12;
        assert_eq!(end, Some(if is_complete { Interrupted::Complete } else { Interrupted::Undone }));
        assert!(case.contents() == if is_complete { &case.new } else { &case.old }[..], "{count}");
        assert!(!case.has_journal());
    }
    // The operating system can have stored any of the bytes before a power loss.
    for mask in (1..(1 << 12) - 1_u32).step_by(17) {
        let mut bytes = case.old.clone();
        for (_, at) in (0..).zip(WRITTEN.into_iter().flatten()).filter(|(bit, _)| mask >> bit & 1 == 1) {
            bytes[at] = case.new[at];
        }
        assert_eq!(case.end(&case.journal, &bytes).unwrap(), Some(Interrupted::Undone));
        assert!(case.contents() == case.old, "{mask:#b}");
    }
}

#[test]
fn no_damaged_journal_changes_the_file() {
    let case = Case::new();
    let torn = case.after(7);
    let mut damaged = 0;
    let mut check = |journal: &[u8]| {
        let end = case.end(journal, &torn);
        assert!(end.is_err(), "{end:?}: {journal:02x?}");
        assert!(case.contents() == torn && case.has_journal(), "{journal:02x?}");
        damaged += 1;
    };
    for at in 0..case.journal.len() {
        check(&case.journal[..at]);
        for flip in 1..=255 {
            let mut journal = case.journal.clone();
            journal[at] ^= flip;
            check(&journal);
        }
    }
    let other = Case::new();
    for at in 1..case.journal.len() {
        // The start of one journal and the end of another one.
        let joined = [&other.journal[..at], &case.journal[at..]].concat();
        if joined != case.journal {
            check(&joined);
        }
        check(&[&case.journal[at..], &case.journal[..at]].concat());
        check(&[&case.journal[..], &vec![0; at]].concat());
    }
    assert!(damaged > 30_000, "{damaged}");
    assert_eq!(case.end(&case.journal, &torn).unwrap(), Some(Interrupted::Undone));
    assert!(case.contents() == case.old);
}

/// Returns a journal with a right checksum.
fn sealed(body: &[u8]) -> Vec<u8> {
    [body, &xxhash_rust::xxh3::xxh3_128(body).to_le_bytes()].concat()
}

/// The bytes before the first piece.
const HEADER: usize = 72;

#[test]
fn journals_with_a_right_checksum_are_checked_too() {
    let case = Case::new();
    let torn = case.after(7);
    let body = &case.journal[..case.journal.len() - 16];
    let piece = |start: u64, len: u64, bytes: usize| {
        let bytes = vec![0; bytes];
        [&start.to_le_bytes()[..], &len.to_le_bytes(), &bytes].concat()
    };
    let with = |pieces: &[Vec<u8>]| sealed(&[&body[..HEADER], &pieces.concat()].concat());
    let header = |at: usize, value: u64| {
        let mut body = body.to_vec();
        body[at..at + 8].copy_from_slice(&value.to_le_bytes());
        sealed(&body)
    };
    let changed = |at: usize, by: u8| {
        let mut body = body.to_vec();
        body[at] ^= by;
        sealed(&body)
    };
    let damaged = [
        with(&[piece(55, 6, 12)]),
        with(&[piece(60, 1, 2)]),
        with(&[piece(u64::MAX, 1, 2)]),
        with(&[piece(u64::MAX - 5, 6, 12)]),
        with(&[piece(0, 0, 0)]),
        with(&[piece(0, u64::MAX, 12)]),
        with(&[piece(0, 1 << 40, 12)]),
        with(&[piece(0, 65_537, 2 * 65_537)]),
        with(&[piece(12, 6, 12), piece(17, 6, 12)]),
        with(&[piece(30, 6, 12), piece(12, 6, 12)]),
        with(&[piece(0, 6, 11)]),
        changed(0, 1),
        b"not a journal".to_vec(),
        Vec::new(),
    ];
    for journal in damaged {
        let end = case.end(&journal, &torn);
        assert!(matches!(end, Err(JournalProblem::Damaged)), "{end:?}: {journal:02x?}");
        assert!(case.contents() == torn && case.has_journal());
    }
    let version = case.end(&changed(16, 3), &torn);
    assert!(matches!(version, Err(JournalProblem::Version { version: 2, known: 1 })), "{version:?}");
    for journal in [header(24, case.subject.inode + 1), header(32, 81), header(32, u64::MAX)] {
        assert!(matches!(case.end(&journal, &torn), Err(JournalProblem::OtherFile)));
    }
    let tensors =
        [header(40, 11), header(40, u64::MAX), header(48, 61), header(48, u64::MAX), changed(20, 1)];
    for journal in tensors.into_iter().chain([changed(56, 1)]) {
        let end = case.end(&journal, &torn);
        assert!(matches!(end, Err(JournalProblem::OtherTensor)), "{end:?}");
    }
    assert!(case.contents() == torn);
}

/// Checks that a file which another program has changed since then is left as it is.
#[test]
fn a_file_that_has_other_bytes_is_not_undone() {
    let case = Case::new();
    for at in WRITTEN.into_iter().flatten() {
        let mut bytes = case.after(7);
        bytes[at] = 99;
        let end = case.end(&case.journal, &bytes);
        assert!(matches!(end, Err(JournalProblem::Changed)), "{end:?}");
        assert!(case.contents() == bytes && case.has_journal());
    }
}

#[test]
fn only_regular_files_of_trusted_owners() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let case = Case::new();
    let torn = case.after(7);
    case.file.write_all_at(&torn, 0).unwrap();
    let journal = case.folder.path().join(".k.npy.kvscatter-journal");
    let end = || case.end_interrupted().unwrap_err();
    for mode in [0o620, 0o602, 0o666] {
        fs::set_permissions(&journal, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(end(), JournalProblem::OtherUsers), "{mode:o}");
    }
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&journal, case.folder.path().join("elsewhere")).unwrap();
    symlink("elsewhere", &journal).unwrap();
    assert!(matches!(end(), JournalProblem::NotAFile));
    fs::remove_file(&journal).unwrap();
    fs::create_dir(&journal).unwrap();
    assert!(matches!(end(), JournalProblem::NotAFile));
    fs::remove_dir(&journal).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&journal).status().unwrap().success());
    assert!(matches!(end(), JournalProblem::NotAFile));
    fs::remove_file(&journal).unwrap();
    assert!(case.contents() == torn);
    fs::rename(case.folder.path().join("elsewhere"), &journal).unwrap();
    assert_eq!(case.end_interrupted().unwrap(), Some(Interrupted::Undone));
    assert!(case.contents() == case.old);
}

/// Checks that a journal of another owner is refused. Only root can make one.
#[test]
fn a_journal_of_another_user_is_refused() {
    let case = Case::new();
    let journal = case.folder.path().join(".k.npy.kvscatter-journal");
    case.put(&case.journal, &case.after(7));
    if std::os::unix::fs::chown(&journal, Some(12_345), None).is_err() {
        return;
    }
    assert!(matches!(case.end_interrupted(), Err(JournalProblem::OtherUsers)));
    assert!(case.contents() == case.after(7));
    // The owner of the cache file may change it without a journal.
    std::os::unix::fs::fchown(&case.file, Some(12_345), None).unwrap();
    assert_eq!(case.end_interrupted().unwrap(), Some(Interrupted::Undone));
}

/// Checks that a journal that was not completed is removed, because its write had not begun.
#[test]
fn an_unfinished_journal_is_removed() {
    let case = Case::new();
    let journal = case.folder.path().join(".k.npy.kvscatter-journal");
    let unfinished = case.folder.path().join(".k.npy.kvscatter-journal.new");
    fs::remove_file(&journal).unwrap();
    for len in 0..case.journal.len() {
        fs::write(&unfinished, &case.journal[..len]).unwrap();
        assert_eq!(case.end_interrupted().unwrap(), None);
        assert!(!unfinished.exists());
    }
    assert!(case.contents() == case.old);
}
