//! Tests `--in-place`. Either exactly the planned bytes of the cache file change, or no byte changes.

use crate::support::{Folder, contents, npy, npy_f32, npy_i32};

/// The write indices. The cache is [2, 3, 5] and the update is [2, 1, 5].
const WRITE: &str = "--write-indices 2,0";
const ROW: usize = 5;
/// The first element in the cache of each written row.
const WRITTEN: [usize; 2] = [2 * ROW, 3 * ROW];

/// Runs a write in place and checks every byte of the file. `planned` has the offsets and the new bytes.
#[track_caller]
fn check(folder: &Folder, file: &str, arguments: &str, planned: &[(usize, Vec<u8>)]) -> String {
    let path = file.split('#').next().unwrap();
    let mut expected = folder.read(path);
    for (at, bytes) in planned {
        assert_ne!(expected[*at..at + bytes.len()], bytes[..], "the write is visible");
        expected[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    let same_file = std::fs::File::open(folder.path(path)).unwrap();
    let line = format!("apply tensor-scatter --past-cache {file} --in-place {WRITE} {arguments}");
    let answer = folder.run(&line).passed();
    assert!(folder.read(path) == expected, "{file}: bytes outside the plan changed, or planned ones did not");
    // The file was opened before the write and has the new bytes, so the file was updated and not replaced.
    let mut seen = Vec::new();
    std::io::Read::read_to_end(&mut { same_file }, &mut seen).unwrap();
    assert!(seen == expected);
    answer
}

/// Returns the planned rows, with elements of `width` bytes, for a file whose data begins at `data`.
fn rows(data: usize, width: usize, update: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let rows = update.chunks(ROW * width).map(<[u8]>::to_vec);
    WRITTEN.iter().map(|row| data + row * width).zip(rows).collect()
}

/// Returns ten elements of `width` bytes that no fixture contains.
fn update(width: usize) -> Vec<u8> {
    (0..10 * width).map(|n| 0xe0 | u8::try_from(n % 16).unwrap()).collect()
}

#[test]
fn npy_files() {
    for (name, descr, width, ty) in [
        ("float32", "<f4", 4, ""),
        ("int64", "<i8", 8, ""),
        ("complex64", "<c8", 8, ""),
        ("bfloat16", "<V2", 2, "--type bfloat16"),
        ("float8_e4m3fn", "<V1", 1, "--type float8_e4m3fn"),
        ("version2", "<f4", 4, ""),
    ] {
        let folder = Folder::with_testdata();
        folder.write("update.npy", &npy_of(descr, &update(width)));
        let file = format!("testdata/files/{name}.npy");
        let answer =
            check(&folder, &file, &format!("--update update.npy {ty}"), &rows(128, width, &update(width)));
        let bytes = 10 * width;
        assert_eq!(answer, format!("{file}: {bytes} bytes written in place, in 2 blocks for 2 samples\n"));
    }
}

fn npy_of(descr: &str, data: &[u8]) -> Vec<u8> {
    npy(descr, &[2, 1, ROW], data)
}

/// Checks that a .npy cache keeps one 4-bit value per byte, with an update in this form and a packed update.
#[test]
fn npy_files_of_4_bit_types() {
    let values: Vec<u8> = (0..10).map(|n| 8 + n % 8).collect();
    for name in ["int4", "uint4", "float4_e2m1fn"] {
        let folder = Folder::with_testdata();
        folder.write("update.npy", &npy_of("|V1", &values));
        let file = format!("testdata/files/{name}.npy");
        let arguments = format!("--update update.npy --type {name}");
        check(&folder, &file, &arguments, &rows(128, 1, &values));
    }
    let folder = Folder::with_testdata();
    folder.write("nothing.npy", &npy("|V1", &[2, 0, 5], &[]));
    folder.write("values.npy", &npy_of("|V1", &values));
    let pack = "apply tensor-scatter --past-cache values.npy --update nothing.npy --type int4 --present-cache packed.pb";
    folder.run(pack).passed();
    let arguments = "--update packed.pb --type int4";
    check(&folder, "testdata/files/int4.npy", arguments, &rows(128, 1, &values));
}

#[test]
fn safetensors_entries() {
    for (entry, descr, width, ty, offset) in
        [("k", "<f4", 4, "", 0), ("v", "<V2", 2, "--type bfloat16", 30 * 4)]
    {
        let folder = Folder::with_testdata();
        folder.write("update.npy", &npy_of(descr, &update(width)));
        let file = folder.read("testdata/files/two.safetensors");
        let header = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
        let planned = rows(8 + header + offset, width, &update(width));
        let arguments = format!("--update update.npy {ty}");
        check(&folder, &format!("testdata/files/two.safetensors#{entry}"), &arguments, &planned);
    }
}

#[test]
fn pb_raw_data() {
    let folder = Folder::with_testdata();
    folder.write("update.npy", &npy_of("<f2", &update(2)));
    let data = folder.read("testdata/files/float16.pb").len() - 60;
    check(&folder, "testdata/files/float16.pb", "--update update.npy", &rows(data, 2, &update(2)));
}

/// Writes packed rows of five elements, which share bytes with their neighbours. The nibbles of the
/// neighbours must not change.
#[test]
fn pb_of_4_bit_elements() {
    let folder = Folder::with_testdata();
    let values = [9, 10, 11, 12, 13, 14, 15, 9, 10, 11];
    folder.write("update.npy", &npy_of("|V1", &values));
    let before = folder.read("testdata/files/int4.pb");
    let data = before.len() - 15;
    let mut nibbles: Vec<u8> = before[data..].iter().flat_map(|byte| [byte & 15, byte >> 4]).collect();
    for (row, values) in WRITTEN.iter().zip(values.chunks(ROW)) {
        nibbles[*row..row + ROW].copy_from_slice(values);
    }
    let after: Vec<u8> = nibbles.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
    let arguments = "--update update.npy --type int4";
    let line =
        format!("apply tensor-scatter --past-cache testdata/files/int4.pb --in-place {WRITE} {arguments}");
    folder.run(&line).passed();
    assert_eq!(folder.read("testdata/files/int4.pb"), [&before[..data], &after].concat());
}

#[test]
fn the_other_two_operators() {
    let folder = Folder::new();
    folder.write("cache.npy", &npy_f32(&[2, 1, 4, 1], [0.0; 8]));
    folder.write("update.npy", &npy_f32(&[2, 1, 1, 1], [1.0, 2.0]));
    folder.write("at.npy", &npy_i32(&[3, 0]));
    let line =
        "apply kv-cache-update --cache cache.npy --update update.npy --write-indices at.npy --in-place";
    folder.run(line).passed();
    assert_eq!(folder.read("cache.npy"), npy_f32(&[2, 1, 4, 1], [0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0]));

    folder.write("past.npy", &npy("|i1", &[2, 1, 4, 2], &[0; 16]));
    folder.write("new.npy", &npy("|i1", &[2, 2], &[1, 2, 3, 4]));
    let line = "apply kv-cache-operation --past past.npy --new-kv new.npy --layer-id 1 --token-offset 4 --seq-len 2 --in-place";
    folder.run(line).passed();
    let expected = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    assert_eq!(folder.read("past.npy"), npy("|i1", &[2, 1, 4, 2], &expected));
}

#[test]
fn an_empty_cache_is_left_alone() {
    let folder = Folder::new();
    let empty = npy_f32(&[0, 4, 1], []);
    folder.write("cache.npy", &empty);
    folder.write("update.npy", &npy_f32(&[0, 1, 1], []));
    folder.run("apply tensor-scatter --past-cache cache.npy --update update.npy --in-place").passed();
    assert_eq!(folder.read("cache.npy"), empty);
}

/// Uses the cache file as its update. The update is read before the first byte is written.
#[test]
fn a_cache_may_be_its_own_update() {
    let folder = Folder::new();
    folder.write("cache.npy", &npy_f32(&[1, 4], [1.0, 2.0, 3.0, 4.0]));
    let line = "apply tensor-scatter --past-cache cache.npy --update cache.npy --axis 1 --mode circular --write-indices 1 \
                --in-place";
    folder.run(line).passed();
    assert_eq!(folder.read("cache.npy"), npy_f32(&[1, 4], [4.0, 1.0, 2.0, 3.0]));
}

#[test]
fn after_any_refusal_the_file_is_unchanged() {
    let folder = Folder::with_testdata();
    folder.write("update.npy", &npy_of("<f4", &update(4)));
    folder.write("half.npy", &npy_of("<f2", &update(2)));
    folder.write("short.npy", &npy_of("<f4", &update(3)));
    folder.write("wide.npy", &npy("<f4", &[2, 1, 6], &[0; 48]));
    folder.write("bytes.npy", &npy_of("|V1", &[0x10; 10]));
    folder.write("cut.npy", &folder.read("testdata/files/float32.npy")[..247]);
    let before = contents(&folder.path(""));
    folder.check_transcript("in_place");
    assert!(contents(&folder.path("")) == before);
}

#[test]
fn a_file_that_is_being_updated_is_refused() {
    let folder = Folder::with_testdata();
    folder.write("update.npy", &npy_of("<f4", &update(4)));
    let file = std::fs::File::open(folder.path("testdata/files/float32.npy")).unwrap();
    file.lock().unwrap();
    let line = format!(
        "apply tensor-scatter --past-cache testdata/files/float32.npy --update update.npy --in-place {WRITE}"
    );
    insta::assert_snapshot!(folder.run(&line).refused());
    file.unlock().unwrap();
    folder.run(&line).passed();
}

/// Writes a sparse cache on a full disk. The first of two rows is in a page that exists, and the second is in
/// a hole.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_nothing_changes() {
    use std::io::Write;
    use std::process::Command;

    let folder = Folder::new();
    let cache = npy_f32(&[2, 4096, 1], [0.0; 8192]);
    folder.write("cache.npy", &cache);
    folder.write("update.npy", &npy_f32(&[2, 1, 1], [1.0, 2.0]));
    std::fs::create_dir(folder.path("disk")).unwrap();
    // A file system of 16 pages in a separate name space. This needs no privilege if the system allows user
    // name spaces.
    let on_a_small_disk = |script: &str| {
        let script = format!("mount -t tmpfs -o size=64k none disk || exit 77\n{script}");
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &script, crate::support::BINARY]);
        command.current_dir(folder.path("")).output()
    };
    match on_a_small_disk("exit 0") {
        Ok(output) if output.status.success() => {}
        tried => {
            // Writes to standard error itself, because the harness hides what a passing test prints.
            let why =
                "skipped: --in-place on a full disk, since this user cannot mount one with `unshare -rm`";
            std::io::stderr().write_all(format!("{why}: {tried:?}\n").as_bytes()).unwrap();
            return;
        }
    }
    let script = format!(
        "head -c 128 cache.npy > disk/cache.npy && truncate -s {} disk/cache.npy || exit 78
         dd if=/dev/zero of=disk/rest bs=4096 2>/dev/null
         \"$0\" apply tensor-scatter --past-cache disk/cache.npy --update update.npy --write-indices 0,4000 --in-place
         code=$?
         cp disk/cache.npy after.npy || exit 78
         rm disk/rest
         \"$0\" apply tensor-scatter --past-cache disk/cache.npy --update update.npy --write-indices 0,4000 --in-place >&2 || exit 78
         cp disk/cache.npy written.npy || exit 78
         exit $code",
        cache.len()
    );
    let output = on_a_small_disk(&script).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let mut lines = stderr.lines();
    let refused =
        "error: disk/cache.npy: cannot reserve space for the 8 bytes to be written: no space left on device";
    assert_eq!(lines.next(), Some(refused));
    assert!(lines.next().is_some_and(|line| line.contains("8 bytes written in place")), "{stderr}");
    assert!(folder.read("after.npy") == cache, "bytes changed");
    let mut expected = vec![0.0; 8192];
    (expected[0], expected[4096 + 4000]) = (1.0, 2.0);
    assert!(folder.read("written.npy") == npy_f32(&[2, 4096, 1], expected));
}

#[cfg(unix)]
#[test]
fn a_read_only_file_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::with_testdata();
    folder.write("update.npy", &npy_of("<f4", &update(4)));
    let path = folder.path("testdata/files/float32.npy");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    if std::fs::OpenOptions::new().write(true).open(&path).is_ok() {
        return; // This user may ignore permissions.
    }
    let line = format!(
        "apply tensor-scatter --past-cache testdata/files/float32.npy --update update.npy --in-place {WRITE}"
    );
    assert!(folder.run(&line).refused().contains("permission denied"));
}
