//! Tests of files of saved samples: round trips, damaged and hostile files, and processes that are killed.

use std::io::Cursor;
use std::ops::Range;
use std::path::Path;
use std::{fs, io};

use kvscatter::ElementType;
use kvscatter_onnx::Fingerprint;
use kvscatter_oracle::cases::Random;
use safetensors::SafeTensors;
use xxhash_rust::xxh3::xxh3_128;

use super::{SavedError, SavedFile, SavedKind, SavedSample, SavedTensor, reader, write};

const RING: SavedKind = SavedKind::Ring { axis: 2, capacity: 6, window: 4, first: 3 };

/// A sample of 7 tokens with linear caches, a ring and a state.
fn sample() -> SavedSample {
    let tensor = |name: &str, element, shape: &[usize], kind| SavedTensor {
        name: name.to_owned(),
        element,
        shape: shape.to_vec(),
        kind,
    };
    SavedSample {
        model: Fingerprint::from_bits(0x0123_4567_89ab_cdef << 40),
        tokens: vec![1, -1, 1 << 40, 3, 2, 1, 0],
        tensors: vec![
            tensor("past.0.key", ElementType::Float16, &[1, 3, 7, 4], SavedKind::Linear { axis: 2 }),
            tensor("\"ring\" \u{e9}", ElementType::BFloat16, &[1, 2, 4, 3], RING),
            tensor("tokens first", ElementType::Float32, &[1, 7, 5], SavedKind::Linear { axis: 1 }),
            tensor("state", ElementType::Float8E4M3Fn, &[1, 2, 5], SavedKind::State),
        ],
    }
}

/// The values of a tensor, different in every tensor.
fn values(index: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 7 + index * 31 + at / 251) % 251).unwrap()).collect()
}

fn save(path: &Path, sample: &SavedSample) -> Result<(), SavedError> {
    write(path, sample, &|index, visit| {
        // The pieces have different lengths.
        let bytes = values(index, sample.tensors[index].len());
        let (one, rest) = bytes.split_at(bytes.len().min(3));
        visit(one)?;
        rest.chunks(300_000).try_for_each(visit)
    })
}

/// The bytes of a file of a sample.
fn saved(sample: &SavedSample) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    save(&path, sample).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    fs::read(path).unwrap()
}

fn open(bytes: &[u8]) -> Result<SavedFile<Cursor<&[u8]>>, SavedError> {
    SavedFile::from_reader(Cursor::new(bytes), bytes.len() as u64, Path::new("bytes"))
}

/// Opens a file and reads all of it.
fn checked(bytes: &[u8]) -> Result<SavedSample, SavedError> {
    let mut file = open(bytes)?;
    file.verify()?;
    Ok(file.sample().clone())
}

/// The header of a file, and the data after it.
fn parts(bytes: &[u8]) -> (&str, &[u8]) {
    let (len, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    (std::str::from_utf8(header).unwrap(), data)
}

/// A file with another header, whose checksum and length are made right.
fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    const BEFORE: &str = r#""kvscatter.checksum":""#;
    let mut header = header.as_bytes().to_vec();
    if let Some(at) = header.windows(BEFORE.len()).position(|bytes| bytes == BEFORE.as_bytes()) {
        let digits = at + BEFORE.len()..at + BEFORE.len() + 32;
        if header.len() >= digits.end {
            header[digits.clone()].fill(b'0');
            let checksum = format!("{:032x}", xxh3_128(&header));
            header[digits].copy_from_slice(checksum.as_bytes());
        }
    }
    [&(header.len() as u64).to_le_bytes()[..], &header, data].concat()
}

#[test]
fn a_sample_is_read_as_it_was_written() {
    let sample = sample();
    let bytes = saved(&sample);
    let mut file = open(&bytes).unwrap();
    file.verify().unwrap();
    let mut read = file.sample().clone();
    for (index, tensor) in read.tensors.iter().enumerate() {
        let mut target = vec![0; tensor.len() + 10];
        // Two ranges, of which the second is before the first.
        let ranges = [10 + 8..10 + tensor.len(), 2..10];
        file.read(index, 0, &mut target, ranges).unwrap();
        let got = [&target[18..], &target[2..10]].concat();
        let written = sample.tensors.iter().position(|other| other.name == tensor.name).unwrap();
        assert_eq!(got, values(written, tensor.len()), "{}", tensor.name);
        assert_eq!(target[..2], [0, 0]);
    }
    read.tensors.sort_by_key(|tensor| sample.tensors.iter().position(|other| other == tensor));
    assert_eq!(read, sample);
    assert_eq!((parts(&bytes).0.len() + 8) % 64, 0);
}

#[test]
fn other_programs_can_read_the_file() {
    let sample = sample();
    let bytes = saved(&sample);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), sample.tensors.len() + 1);
    for (index, tensor) in sample.tensors.iter().enumerate() {
        let view = file.tensor(&tensor.name).unwrap();
        assert_eq!((view.shape(), view.data()), (&tensor.shape[..], &values(index, tensor.len())[..]));
        assert_eq!(Some(view.dtype().to_string().as_str()), tensor.element.safetensors_name());
    }
    let tokens = file.tensor("kvscatter.tokens").unwrap();
    assert_eq!((tokens.shape(), &tokens.data()[16..24]), (&[7][..], &(1_u64 << 40).to_le_bytes()[..]));
}

#[test]
fn a_part_of_the_rows_is_read_of_every_head() {
    let bytes = saved(&sample());
    let mut file = open(&bytes).unwrap();
    let ring = file.sample().tensors.iter().position(|tensor| tensor.kind == RING).unwrap();
    // 2 heads of 4 rows of 3 elements of 2 bytes.
    let all = values(1, 48);
    let mut target = [0; 24];
    file.read(ring, 2, &mut target, [0..1, 1..13, 13..24]).unwrap();
    assert_eq!(target[..], [&all[12..24], &all[36..48]].concat());
    file.read(ring, 4, &mut target, []).unwrap();
    file.read(ring, usize::MAX, &mut target, []).unwrap();
    let wrong: [&[Range<usize>]; 3] = [&[0..9, 9..23], &[0..9, 9..25], &[0..24, 0..1]];
    for ranges in wrong {
        let refused = file.read(ring, 2, &mut target, ranges.iter().cloned());
        assert!(matches!(refused.unwrap_err().root(), SavedError::ByteCount { expected: 24, .. }));
    }
}

#[test]
fn a_sample_without_tokens() {
    let mut sample = sample();
    sample.tokens.clear();
    sample.tensors.remove(1);
    sample.tensors[0].shape[2] = 0;
    sample.tensors[1].shape[1] = 0;
    let bytes = saved(&sample);
    assert_eq!(checked(&bytes).unwrap().tokens, [0_i64; 0]);
    let mut file = open(&bytes).unwrap();
    let empty = file.sample().tensors.iter().position(|tensor| tensor.shape == [1, 3, 0, 4]).unwrap();
    file.read(empty, 0, &mut [], []).unwrap();
}

#[test]
fn a_sample_that_the_format_cannot_contain() {
    type Change = fn(&mut SavedSample);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let changes: [(Change, &str); 12] = [
        (|sample| sample.tensors[1].name = "state".to_owned(), "saved_name"),
        (|sample| sample.tensors[1].name = "__metadata__".to_owned(), "saved_name"),
        (|sample| sample.tensors[1].name = "kvscatter.tokens".to_owned(), "saved_name"),
        (|sample| sample.tensors[0].element = ElementType::Int4, "saved_element"),
        (|sample| sample.tensors[0].element = ElementType::Float4E2M1, "saved_element"),
        (|sample| sample.tensors[0].element = ElementType::Complex128, "saved_element"),
        (|sample| sample.tensors[0].element = ElementType::String, "saved_element"),
        (|sample| sample.tensors[3].shape[0] = 2, "saved_shape"),
        (|sample| sample.tensors[0].shape[3] = usize::MAX, "saved_shape"),
        (|sample| sample.tensors[0].kind = SavedKind::Linear { axis: 4 }, "saved_axis"),
        (|sample| sample.tensors[0].shape[2] = 6, "saved_rows"),
        (
            |sample| sample.tensors[1].kind = SavedKind::Ring { axis: 2, capacity: 3, window: 4, first: 3 },
            "saved_ring",
        ),
    ];
    for (change, kind) in changes {
        let mut sample = sample();
        change(&mut sample);
        let error = save(&path, &sample).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
    }
    let short = write(&path, &sample(), &|_, visit| visit(&[0; 3])).unwrap_err();
    assert!(matches!(short.root(), SavedError::ByteCount { got: 3, .. }), "{short}");
    let failed = write(&path, &sample(), &|_, _| Err(io::Error::other("no more"))).unwrap_err();
    assert_eq!((failed.kind(), fs::read_dir(folder.path()).unwrap().count()), ("io", 0));
}

#[test]
fn only_a_saved_sample_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for (contents, is_replaced) in [(&b""[..], true), (b"notes", false), (&saved(&sample())[..100], true)] {
        fs::write(&path, contents).unwrap();
        match save(&path, &sample()) {
            Ok(()) => assert!(is_replaced),
            Err(error) => {
                assert!(!is_replaced && matches!(error.root(), SavedError::NotReplaced), "{error}");
                assert_eq!(fs::read(&path).unwrap(), contents);
            }
        }
    }
    SavedFile::open(&path).unwrap().verify().unwrap();
    assert_eq!(save(folder.path(), &sample()).unwrap_err().kind(), "not_regular_file");
    assert_eq!(SavedFile::open(folder.path()).unwrap_err().kind(), "not_regular_file");
    assert_eq!(SavedFile::open(&folder.path().join("absent")).unwrap_err().kind(), "io");
}

#[test]
#[cfg(unix)]
fn a_pipe_or_a_device_is_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&pipe, Path::new("/dev/null"), Path::new("/dev/full")] {
        assert_eq!(save(path, &sample()).unwrap_err().kind(), "not_regular_file");
        assert_eq!(SavedFile::open(path).unwrap_err().kind(), "not_regular_file");
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let bytes = saved(&sample());
    assert!(checked(&bytes).is_ok());
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(checked(&damaged).is_err(), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn files_that_are_cut_or_longer_or_mixed() {
    let bytes = saved(&sample());
    let mut other = sample();
    other.tokens[3] += 1;
    let other = saved(&other);
    for len in 0..bytes.len() {
        assert!(checked(&bytes[..len]).is_err(), "{len}");
    }
    let mut longer = bytes.clone();
    for _ in 0..300 {
        longer.push(0);
        assert!(matches!(checked(&longer), Err(SavedError::Length { .. })));
    }
    let start = parts(&bytes).0.len() + 8;
    for mixed in [[&bytes[..start], &other[start..]], [&other[..start], &bytes[start..]]] {
        assert!(matches!(checked(&mixed.concat()), Err(SavedError::TensorChecksum { .. })));
    }
}

#[test]
fn a_hundred_thousand_damaged_files() {
    let bytes = saved(&sample());
    let (header, data) = parts(&bytes);
    let mut random = Random::new(0x2545_f491_4f6c_dd1d, 0);
    for _ in 0..60_000 {
        let mut damaged = bytes.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(damaged.len());
            damaged[at] = damaged[at].wrapping_add(u8::try_from(1 + random.below(255)).unwrap());
        }
        if random.below(3) == 0 {
            damaged.truncate(random.below(damaged.len()));
        }
        assert!(damaged == bytes || checked(&damaged).is_err());
    }
    // The checksum of the header is right here. What is accepted must describe exactly the bytes of the file.
    let pieces = "{|}|[|]|,|:|\"|0|9|-1|1e9|18446744073709551615|18446744073709551616|\"past.0.key\"|\"state\"|\
                  \"dtype\"|\"F16\"|\"shape\"|\"data_offsets\"|[0,0]|null| |\\u0000|[1,3,7,4]|first=3|axis=2|linear|\
                  state|ring|\u{e9}|checksum=";
    let pieces: Vec<_> = pieces.split('|').collect();
    let (mut accepted, fixed) = (0, header.find("kvscatter.model").unwrap());
    for _ in 0..60_000 {
        let mut text = header.to_owned();
        for _ in 0..=random.below(2) {
            let mut place = || {
                let at = fixed + random.below(text.len() - fixed);
                (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap()
            };
            let (begin, other) = (place(), place());
            let end =
                if random.below(2) == 0 { begin } else { other.clamp(begin, text.len().min(begin + 12)) };
            let end = (end..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap();
            text.replace_range(begin..end, pieces[random.below(pieces.len())]);
        }
        let file = with_header(&text, data);
        if let Ok(sample) = checked(&file) {
            accepted += 1;
            let len: usize = sample.tensors.iter().map(SavedTensor::len).sum();
            assert_eq!(len + sample.tokens.len() * 8, data.len(), "{text}");
        }
    }
    assert!(accepted < 20_000, "{accepted}");
}

#[test]
fn hostile_headers_with_right_checksums() {
    let bytes = saved(&sample());
    let (header, data) = parts(&bytes);
    let refused = |from: &str, to: &str, kind: &str| {
        assert!(header.contains(from), "{from}");
        let error = checked(&with_header(&header.replacen(from, to, 1), data)).unwrap_err();
        assert_eq!(error.kind(), kind, "{to}: {error}");
        assert!(!error.to_string().contains('\n'));
    };
    assert!(checked(&with_header(header, data)).is_ok());
    refused(r#"saved":"1""#, r#"saved":"2""#, "saved_version");
    refused(r#"saved":"1""#, &format!(r#"saved":"{}""#, "1".repeat(1 << 20)), "saved_version");
    refused("kvscatter.checksum", "kvscatter.sum", "saved_entry_missing");
    refused("kvscatter.model", "kvscatter.modem", "saved_entry_missing");
    refused(r#""kvscatter.position""#, r#""x":"","kvscatter.position""#, "saved_entry_unknown");
    refused(
        r#""kvscatter.position""#,
        r#""kvscatter.tensor.x":"","kvscatter.position""#,
        "saved_entry_unknown",
    );
    refused(r#""kvscatter.position":"7""#, r#""kvscatter.position":7"#, "saved_json");
    for number in ["-7", "+7", "07", "7 ", "7.0", "99999999999999999999", ""] {
        refused(r#"position":"7""#, &format!(r#"position":"{number}""#), "saved_entry_value");
    }
    refused(r#"position":"7""#, r#"position":"8""#, "saved_tokens");
    refused("axis=2 checksum", "axis=3 checksum", "saved_rows");
    refused("axis=2 checksum", "axis=0 checksum", "saved_axis");
    refused("axis=2 checksum", "axis=18446744073709551615 checksum", "saved_axis");
    refused("first=3", "first=2", "saved_rows");
    refused("first=3", "first=18446744073709551615", "saved_rows");
    refused("first=3", "first=3 x=1", "saved_entry_value");
    refused("capacity=6", "capacity=3", "saved_ring");
    refused("window=4", "window=0", "saved_ring");
    refused("\":\"state checksum", "\":\"tokens checksum", "saved_tokens");
    refused("\":\"tokens checksum", "\":\"state checksum", "saved_tokens");
    refused(r#""dtype":"F16""#, r#""dtype":"F17""#, "saved_json");
    refused(r#""dtype":"F16""#, r#""dtype":"F4""#, "saved_offsets");
    refused(r#""dtype":"F16""#, r#""dtype":"F6_E2M3""#, "saved_element");
    refused("[1,3,7,4]", "[1,3,7,-4]", "saved_json");
    refused("[1,3,7,4]", "[1,3,7,4e0]", "saved_json");
    refused("[1,3,7,4]", "[1,3,7,18446744073709551615]", "saved_shape");
    refused("[1,3,7,4]", "[1,3,7,4294967296,4294967296]", "saved_shape");
    refused("[1,3,7,4]", "[1,3,7,5]", "saved_offsets");
    refused("[1,3,7,4]", "[]", "saved_offsets");
    refused("[1,7,5]", "[7,1,5]", "saved_shape");
    refused("[0,56]", "[0,57]", "saved_offsets");
    refused("[0,56]", "[8,56]", "saved_offsets");
    refused("[0,56]", "[56,0]", "saved_offsets");
    refused("[0,56]", "[0,18446744073709551615]", "saved_offsets");
    refused(r#""state":{"#, r#""past.0.key":{"#, "saved_json");
    refused(r#""state":{"#, r#""__metadata__":{"#, "saved_json");
    let tensor = r#"{"dtype":"F8_E4M3","shape":[1,2,5],"data_offsets":"#;
    refused(tensor, &format!("{{\"dtype\":\"U8\",{}", &tensor[1..]), "saved_json");
    refused(tensor, &format!("{}{tensor}", "[".repeat(100_000)), "saved_json");
    refused(tensor, &format!("{{\"x\":{}{}", "[".repeat(1_000_000), &tensor[1..]), "saved_json");
    for text in ["", "{", "{}", "[]", "null", "\u{0}", &" ".repeat(1000)] {
        assert!(matches!(checked(&with_header(text, data)), Err(SavedError::NotSaved)));
    }
}

#[test]
fn claimed_lengths_allocate_nothing() {
    let bytes = saved(&sample());
    for claimed in [4 << 20 | 1, 1 << 32, 1 << 62, u64::MAX - 8, u64::MAX] {
        let mut file = bytes.clone();
        file[..8].copy_from_slice(&claimed.to_le_bytes());
        assert!(matches!(checked(&file), Err(SavedError::HeaderTooLong { .. })), "{claimed}");
    }
    let mut file = bytes.clone();
    file[..8].copy_from_slice(&(4_u64 << 20).to_le_bytes());
    assert!(matches!(checked(&file), Err(SavedError::Length { .. })));
    // A file with a hole has the length that its header claims.
    let bytes = saved(&SavedSample { tensors: Vec::new(), ..sample() });
    let tokens = 1_usize << 50;
    let mut header = parts(&bytes).0.to_owned();
    for (from, to) in [
        (r#"position":"7""#, format!(r#"position":"{tokens}""#)),
        ("[7]", format!("[{tokens}]")),
        ("[0,56]", format!("[0,{}]", tokens * 8)),
    ] {
        header = header.replacen(from, &to, 1);
    }
    let file = with_header(&header, &[0; 100]);
    let len = (file.len() - 100 + tokens * 8) as u64;
    let opened = SavedFile::from_reader(Cursor::new(&file[..]), len, Path::new("hole"));
    assert!(matches!(opened, Err(SavedError::Io(_))), "{opened:?}");
}

/// A larger sample, so that processes are killed while they write.
fn large(serial: i64) -> SavedSample {
    let mut sample = sample();
    sample.tokens[0] = serial;
    sample.tensors[3].shape = vec![1, 4 << 20];
    sample
}

/// The path that another process saves to, and the first serial number of its samples.
const KILLED: [&str; 2] = ["KVSCATTER_SAVED_KILLED", "KVSCATTER_SAVED_FIRST"];

#[test]
#[ignore = "the next test runs it in other processes"]
fn saves_until_it_is_killed() {
    let [path, first] = KILLED.map(|name| std::env::var(name).unwrap());
    let bytes = vec![7; 4 << 20];
    for serial in first.parse::<i64>().unwrap().. {
        let sample = large(serial);
        write(Path::new(&path), &sample, &|index, visit| visit(&bytes[..sample.tensors[index].len()]))
            .unwrap();
    }
}

#[test]
fn a_killed_process_leaves_the_old_or_the_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    save(&path, &large(-1)).unwrap();
    let serial = || SavedFile::open(&path).unwrap().sample().tokens[0];
    let mut random = Random::new(77, 0);
    for first in (0..200).map(|round| round << 32) {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "saved::tests::saves_until_it_is_killed"])
            .env(KILLED[0], &path)
            .env(KILLED[1], first.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Waits for the first save, and kills the process in a later one.
        while serial() < first {
            assert_eq!(child.try_wait().unwrap(), None);
            std::thread::sleep(std::time::Duration::from_micros(500));
        }
        std::thread::sleep(std::time::Duration::from_micros(random.below(8_000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut file = SavedFile::open(&path).unwrap();
        file.verify().unwrap();
        assert!(fs::read_dir(folder.path()).unwrap().count() <= 2);
    }
    save(&path, &large(-2)).unwrap();
    assert_eq!((fs::read_dir(folder.path()).unwrap().count(), serial()), (1, -2));
}

#[test]
fn tokens_of_several_pieces_are_read() {
    let mut sample = sample();
    sample.tensors.clear();
    for tokens in [reader::PIECE / 8 - 1, reader::PIECE / 8, reader::PIECE / 8 + 1, reader::PIECE / 4 + 5] {
        sample.tokens = (0..i64::try_from(tokens).unwrap()).collect();
        assert!(checked(&saved(&sample)).unwrap() == sample, "{tokens} tokens");
    }
}

#[test]
fn a_path_through_a_file_is_no_place_for_a_sample() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "text").unwrap();
    assert!(super::check_target(&folder.path().join("new")).is_ok());
    assert!(super::check_target(&file).is_err());
    assert!(super::check_target(&file.join("new")).is_err());
}

#[test]
fn a_header_beyond_the_limit_is_not_written() {
    let mut sample = sample();
    sample.tensors[0].name = "x".repeat(4 << 20);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let refused = save(&path, &sample).unwrap_err();
    assert!(refused.to_string().contains("header"), "{refused}");
    assert!(!path.exists());
}
