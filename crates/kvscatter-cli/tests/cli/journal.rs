//! Interrupts writes in place. The next command undoes them or finds them complete.
#![cfg(target_os = "linux")]

use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_128;

use crate::support::{Answer, BINARY, Folder, npy};

const JOURNAL: &str = ".cache.npy.kvscatter-journal";
/// The cache is `[2, 4, 3]` of bytes, and the interrupted write had rows 1 and 3.
const SHAPE: [usize; 3] = [2, 4, 3];
const WRITTEN: [(usize, [u8; 3]); 2] = [(3, [101, 102, 103]), (12 + 9, [104, 105, 106])];
const HEADER: usize = 128;

/// A command that writes other rows than the interrupted one.
const NEXT: &str =
    "apply tensor-scatter --past-cache cache.npy --update next.npy --axis 1 --write-indices 0,1 --in-place";

/// Returns a folder with a cache, and with the update of the next command.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("cache.npy", &old());
    folder.write("next.npy", &npy("|u1", &[2, 1, 3], &[201, 202, 203, 204, 205, 206]));
    folder
}

fn old() -> Vec<u8> {
    npy("|u1", &SHAPE, &(0..24).collect::<Vec<_>>())
}

/// Returns the cache after the first `count` bytes of the interrupted write.
fn after(count: usize) -> Vec<u8> {
    let mut file = old();
    for (at, byte) in WRITTEN.iter().flat_map(|(at, row)| (*at..).zip(row)).take(count) {
        file[HEADER + at] = *byte;
    }
    file
}

/// Returns a file after the next command.
fn next(mut file: Vec<u8>) -> Vec<u8> {
    file[HEADER..HEADER + 3].copy_from_slice(&[201, 202, 203]);
    file[HEADER + 15..HEADER + 18].copy_from_slice(&[204, 205, 206]);
    file
}

/// The fields of a journal, in their order in the file.
struct Journal {
    version: u32,
    element: i32,
    inode: u64,
    file_len: u64,
    offset: u64,
    len: u64,
    form: u128,
    pieces: Vec<(usize, Vec<u8>, Vec<u8>)>,
}

impl Journal {
    /// The journal of the interrupted write.
    fn new(folder: &Folder) -> Self {
        let meta = std::fs::metadata(folder.path("cache.npy")).unwrap();
        let old = old();
        let piece =
            |(at, row): &(usize, [u8; 3])| (*at, old[HEADER + at..HEADER + at + 3].to_vec(), row.to_vec());
        Self {
            version: 1,
            element: 2,
            inode: meta.ino(),
            file_len: meta.len(),
            offset: 128,
            len: 24,
            form: form(&SHAPE),
            pieces: WRITTEN.iter().map(piece).collect(),
        }
    }

    /// Returns the bytes as the source of the command documents them.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"kvscatterjournal".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.element.to_le_bytes());
        for number in [self.inode, self.file_len, self.offset, self.len] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.form.to_le_bytes());
        for (at, old, new) in &self.pieces {
            for number in [*at, old.len()] {
                bytes.extend(u64::try_from(number).unwrap().to_le_bytes());
            }
            bytes.extend(old.iter().chain(new));
        }
        let checksum = xxh3_128(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }
}

/// Returns the hash of a shape whose elements are stored as they are.
fn form(shape: &[usize]) -> u128 {
    let dims = shape.iter().flat_map(|dim| u64::try_from(*dim).unwrap().to_le_bytes());
    xxh3_128(&[0].into_iter().chain(dims).collect::<Vec<_>>())
}

/// Writes a journal that no other user can write.
fn plant(folder: &Folder, bytes: &[u8]) {
    use std::os::unix::fs::PermissionsExt;
    folder.write(JOURNAL, bytes);
    std::fs::set_permissions(folder.path(JOURNAL), std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns the standard error of a command that succeeded.
#[track_caller]
fn noted(answer: &Answer) -> &str {
    assert_eq!(answer.code, Some(0), "{answer}");
    &answer.stderr
}

#[track_caller]
fn has_no_other_files(folder: &Folder) {
    let names = std::fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let hidden: Vec<_> = names.filter(|name| name.as_encoded_bytes().starts_with(b".")).collect();
    assert!(hidden.is_empty(), "{hidden:?}");
}

#[test]
fn the_next_command_ends_the_write() {
    let undone = "note: cache.npy: an earlier write was interrupted and has been undone\n";
    let complete = "note: cache.npy: an earlier write was interrupted after its last byte, and is complete\n";
    for count in 0..=6 {
        for option in ["", " --no-journal"] {
            let folder = folder();
            plant(&folder, &Journal::new(&folder).bytes());
            std::fs::write(folder.path("cache.npy"), after(count)).unwrap();
            let answer = folder.run(&format!("{NEXT}{option}"));
            let (note, state) = if count == 6 { (complete, after(6)) } else { (undone, old()) };
            assert_eq!(noted(&answer), note);
            assert_eq!(answer.stdout, "cache.npy: 6 bytes written in place, in 2 blocks for 2 samples\n");
            assert!(folder.read("cache.npy") == next(state), "{count}");
            has_no_other_files(&folder);
            folder.run(NEXT).passed();
        }
    }
}

/// Checks that `--json` has the note as a field, and that standard error is empty.
#[test]
fn with_json() {
    for (count, interrupted) in [(4, "undone"), (6, "complete")] {
        let folder = folder();
        plant(&folder, &Journal::new(&folder).bytes());
        std::fs::write(folder.path("cache.npy"), after(count)).unwrap();
        let document = folder.run(&format!("--json {NEXT}")).passed();
        let field = format!("\"interrupted\": \"{interrupted}\"");
        assert!(document.contains(&field), "{document}");
        let document = folder.run(&format!("--json {NEXT}")).passed();
        assert!(!document.contains("interrupted"), "{document}");
    }
}

/// Checks that the write is undone also if the command then refuses its own arguments.
#[test]
fn before_anything_else() {
    for line in [
        NEXT.replace("0,1", "4,1"),
        NEXT.replace("next.npy", "absent.npy"),
        format!("{NEXT} --type int8"),
        // The update is the cache after the write was undone.
        NEXT.replace("next.npy", "cache.npy").replace("0,1", "0,0"),
    ] {
        let folder = folder();
        plant(&folder, &Journal::new(&folder).bytes());
        std::fs::write(folder.path("cache.npy"), after(4)).unwrap();
        assert!(folder.run(&line).stderr.starts_with("note: "), "{line}");
        assert!(folder.read("cache.npy") == old(), "{line}");
        has_no_other_files(&folder);
    }
}

/// Checks that a journal of one entry is used by a command for another entry.
#[test]
fn of_another_entry() {
    let folder = Folder::with_testdata();
    let path = "testdata/files/two.safetensors";
    let file = folder.read(path);
    let data = 8 + u64::from_le_bytes(file[..8].try_into().unwrap());
    let at = usize::try_from(data).unwrap() + 20;
    let journal = Journal {
        version: 1,
        element: 1,
        inode: std::fs::metadata(folder.path(path)).unwrap().ino(),
        file_len: u64::try_from(file.len()).unwrap(),
        offset: data,
        len: 120,
        form: form(&[2, 3, 5]),
        pieces: vec![(20, file[at..at + 20].to_vec(), vec![0xee; 20])],
    };
    folder.write("update.npy", &npy("<V2", &[2, 1, 5], &[7; 20]));
    let line = format!(
        "apply tensor-scatter --past-cache {path}#v --update update.npy --write-indices 2,0 --in-place --type bfloat16"
    );
    folder.run(&line).passed();
    let expected = folder.read(path);
    let mut torn = file;
    torn[at..at + 9].fill(0xee);
    std::fs::write(folder.path(path), torn).unwrap();
    folder.write("testdata/files/.two.safetensors.kvscatter-journal", &journal.bytes());
    assert!(noted(&folder.run(&line)).ends_with("has been undone\n"));
    assert!(folder.read(path) == expected);
}

/// Checks that links lead to the journal of their file.
#[test]
fn through_a_link() {
    let folder = folder();
    plant(&folder, &Journal::new(&folder).bytes());
    std::fs::write(folder.path("cache.npy"), after(4)).unwrap();
    std::fs::create_dir(folder.path("links")).unwrap();
    std::os::unix::fs::symlink("../cache.npy", folder.path("links/k.npy")).unwrap();
    let answer = folder.run(&NEXT.replace("cache.npy", "links/k.npy"));
    assert!(noted(&answer).contains("has been undone"));
    assert!(folder.read("cache.npy") == next(old()));
    has_no_other_files(&folder);
}

#[test]
fn journals_that_cannot_be_used_change_nothing() {
    let folder = folder();
    std::fs::write(folder.path("cache.npy"), after(4)).unwrap();
    let journal = || Journal::new(&folder);
    let good = journal().bytes();
    let flipped = |at: usize| good.iter().enumerate().map(|(n, byte)| byte ^ u8::from(n == at)).collect();
    let planted: [(&str, Vec<u8>); 12] = [
        ("empty", Vec::new()),
        ("cut", good[..good.len() - 1].to_vec()),
        ("flipped", flipped(100)),
        ("zeros", vec![0; 4096]),
        ("version", Journal { version: 2, ..journal() }.bytes()),
        ("inode", Journal { inode: 1, ..journal() }.bytes()),
        ("length", Journal { file_len: u64::MAX, ..journal() }.bytes()),
        ("shape", Journal { form: form(&[24]), ..journal() }.bytes()),
        ("element", Journal { element: 3, ..journal() }.bytes()),
        ("outside", Journal { pieces: vec![(22, vec![0; 3], vec![1; 3])], ..journal() }.bytes()),
        ("overlap", Journal { pieces: [journal().pieces, journal().pieces].concat(), ..journal() }.bytes()),
        ("contents", Journal { pieces: vec![(3, vec![1; 3], vec![2; 3])], ..journal() }.bytes()),
    ];
    let mut answers = String::new();
    let mut refused = |name: &str| {
        let line = folder.run(NEXT).refused();
        assert!(folder.read("cache.npy") == after(4), "{name}");
        assert!(folder.path(JOURNAL).symlink_metadata().is_ok(), "{name}");
        answers += &format!("{name}\n  {line}\n");
    };
    for (name, bytes) in planted {
        plant(&folder, &bytes);
        refused(name);
    }
    plant(&folder, &good);
    std::fs::rename(folder.path(JOURNAL), folder.path("good")).unwrap();
    std::os::unix::fs::symlink("good", folder.path(JOURNAL)).unwrap();
    refused("link");
    std::fs::remove_file(folder.path(JOURNAL)).unwrap();
    std::fs::create_dir(folder.path(JOURNAL)).unwrap();
    refused("folder");
    std::fs::remove_dir(folder.path(JOURNAL)).unwrap();
    assert!(Command::new("mkfifo").arg(folder.path(JOURNAL)).status().unwrap().success());
    refused("pipe");
    std::fs::remove_file(folder.path(JOURNAL)).unwrap();
    insta::assert_snapshot!(answers);

    // A sparse file claims a gigabyte of pieces. Its first piece is refused before more is read.
    let sparse = std::fs::File::create(folder.path(JOURNAL)).unwrap();
    std::io::Write::write_all(&mut &sparse, &good[..72]).unwrap();
    sparse.set_len(1 << 40).unwrap();
    std::fs::set_permissions(folder.path(JOURNAL), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let begun = Instant::now();
    assert!(folder.run_in_1_gib(NEXT).refused().contains("is damaged"));
    assert!(begun.elapsed() < Duration::from_secs(10));

    plant(&folder, &good);
    assert!(noted(&folder.run(NEXT)).contains("has been undone"));
}

/// Checks that a journal which was not completed is removed without a note, because its write had not begun.
#[test]
fn an_unfinished_journal_is_removed() {
    let folder = folder();
    let unfinished = format!("{JOURNAL}.new");
    for option in ["", " --no-journal"] {
        folder.write(&unfinished, &Journal::new(&folder).bytes()[..50]);
        folder.run(&format!("{NEXT}{option}")).passed();
        has_no_other_files(&folder);
    }
    assert!(folder.read("cache.npy") == next(old()));
    folder.write(&format!("{unfinished}/file"), b"");
    let refused = folder.run(NEXT).refused();
    assert!(refused.contains("cannot write the journal"), "{refused}");
}

/// Limits the size of files, so that no journal can be written.
#[test]
fn a_journal_that_cannot_be_written_is_an_error() {
    let folder = folder();
    let limited = |line: &str| folder.run_with_limits("-f 0", line);
    let refused = limited(NEXT).refused();
    insta::assert_snapshot!(refused, @"error: cache.npy: cannot write the journal .cache.npy.kvscatter-journal: file too large; --no-journal writes without one");
    assert!(folder.read("cache.npy") == old());
    has_no_other_files(&folder);
    // A write of no rows needs no journal.
    folder.write("nothing.npy", &npy("|u1", &[2, 0, 3], &[]));
    limited(&NEXT.replace("next.npy", "nothing.npy")).passed();
    limited(&format!("{NEXT} --no-journal")).passed();
    assert!(folder.read("cache.npy") == next(old()));
}

/// Writes in a folder that does not allow new files.
#[test]
fn a_folder_that_is_read_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let allow = |mode| {
        std::fs::set_permissions(folder.path(""), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    allow(0o555);
    if std::fs::File::create(folder.path("new")).is_err() {
        assert!(folder.run(NEXT).refused().contains("permission denied; --no-journal writes without one"));
        assert!(folder.read("cache.npy") == old());
        folder.run(&format!("{NEXT} --no-journal")).passed();
        assert!(folder.read("cache.npy") == next(old()));
    } // Otherwise this user may ignore permissions.
    allow(0o755);
}

#[test]
fn inputs_of_a_write_that_has_not_ended_are_noted() {
    let folder = folder();
    plant(&folder, &Journal::new(&folder).bytes());
    let note = "note: cache.npy: a write into this file is running or was interrupted, so the file may contain a part of it\n";
    let functional = NEXT.replace("--in-place", "--present-cache out.npy");
    assert_eq!(noted(&folder.run(&functional)), note);
    assert!(folder.read("out.npy")[HEADER..] == next(old())[HEADER..]);
    std::fs::copy(folder.path("cache.npy"), folder.path("other.npy")).unwrap();
    let update = "apply tensor-scatter --past-cache other.npy --update cache.npy --axis 1 --in-place";
    assert_eq!(noted(&folder.run(update)), note);
    folder.run(&format!("--json {functional}")).passed();
    assert!(folder.path(JOURNAL).exists());
}

/// Kills 200 writes while the journal is written, while the rows are written, and at any time. After each, the
/// next command finds the old or the new state.
#[test]
fn killed_at_any_time() {
    const KILLS: u32 = 200;
    // Each update writes 3 of 4 rows of the cache, with another value than the last one.
    let (rows, width) = (2048, 512);
    let folder = Folder::in_memory();
    let shape = [4, rows, width];
    let written = rows / 4 * 3;
    folder.write("cache.npy", &npy("|u1", &shape, &vec![0; 4 * rows * width]));
    let update = |value: u8| npy("|u1", &[4, written, width], &vec![value; 4 * written * width]);
    for value in [1, 2] {
        folder.write(&format!("{value}.npy"), &update(value));
    }
    folder.write("next.npy", &npy("|u1", &[4, 1, width], &vec![9; 4 * width]));
    let line = |update: &str, at: usize| {
        let at = [at; 4].map(|at| at.to_string()).join(",");
        format!(
            "apply tensor-scatter --past-cache cache.npy --update {update} --axis 1 --write-indices {at} --in-place"
        )
    };
    let start = |update: &str| {
        let mut command = Command::new(BINARY);
        command.args(line(update, 0).split(' ')).current_dir(folder.path(""));
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    // Each part of the command begins with the start, with the journal under its first name, and with the
    // journal. The threads spin, because the last part takes less time than a sleep.
    let wait_for = |child: &mut Child, part: usize| {
        let names = [".", ".cache.npy.kvscatter-journal.new", JOURNAL];
        while !folder.path(names[part]).exists() && child.try_wait().unwrap().is_none() {}
        Instant::now()
    };
    let parts = || {
        let mut child = start("1.npy");
        let begun = [0, 1, 2].map(|part| wait_for(&mut child, part));
        while folder.path(JOURNAL).exists() {}
        let ended = Instant::now();
        assert!(child.wait().unwrap().success());
        [begun[1] - begun[0], begun[2] - begun[1], ended - begun[2]]
    };
    let measured = [parts(), parts(), parts()];
    let parts = [0, 1, 2].map(|part| measured.iter().map(|parts| parts[part]).max().unwrap());
    let mut ends = [0, 0, 0];
    let mut state = 1_u8;
    for kill in 0..KILLS {
        let value = 3 - state;
        let mut child = start(&format!("{value}.npy"));
        let part = [0, 1, 2, 2][usize::try_from(kill % 4).unwrap()];
        let begun = wait_for(&mut child, part);
        // In an order without a pattern, the times cover the part.
        let delay = parts[part] * (kill * 89 % KILLS) / KILLS;
        while begun.elapsed() < delay {}
        child.kill().unwrap();
        child.wait().unwrap();
        let answer = folder.run(&line("next.npy", rows - 1));
        let file = folder.read("cache.npy");
        let found = file[HEADER];
        assert!(found == state || found == value, "{kill}: {answer}");
        for sample in file[HEADER..].chunks(rows * width) {
            let (rows, last) = sample.split_at((rows - 1) * width);
            let (rows, between) = rows.split_at(written * width);
            let is_whole = rows.iter().all(|&byte| byte == found);
            let is_kept = between.iter().all(|&byte| byte == 0) && last.iter().all(|&byte| byte == 9);
            assert!(is_whole && is_kept, "{kill}: {answer}");
        }
        match noted(&answer) {
            "" => ends[0] += 1,
            note if note.contains("undone") => {
                assert_eq!(found, state);
                ends[1] += 1;
            }
            _ => {
                assert_eq!(found, value);
                ends[2] += 1;
            }
        }
        state = found;
    }
    has_no_other_files(&folder);
    println!("{KILLS} kills: without a journal, undone, complete: {ends:?}, the parts took {parts:?}");
    assert!(ends[1] > 0, "no kill has interrupted a write: {ends:?}");
}
