//! Tests files with false claims. Each is refused in one line, in bounded time and in bounded memory.
#![cfg(unix)]

use std::io::Write;

use kvscatter_onnx::internal::proto::tensor_shape_proto::Dimension;
use kvscatter_onnx::internal::proto::{GraphProto, ValueInfoProto};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::support::{Answer, Folder, dims, npy, testdata};

/// Reads a file as the cache of an operator that takes any type, in 256 MiB of address space. A command that allocates
/// the memory that a file claims would fail.
fn read(folder: &Folder, file: &str) -> Answer {
    folder.write("nothing.npy", &npy("<f4", &[2, 0, 5], &[]));
    let line =
        format!("apply tensor-scatter --past-cache {file} --update nothing.npy --present-cache out.pb");
    folder.run_with_limits("-v 262144", &line)
}

#[test]
fn claims_are_compared_with_the_file() {
    let folder = Folder::new();
    write_npy_files(&folder);
    write_safetensors_files(&folder);
    folder.write("empty.npz", b"");
    folder.write("text.npz", b"PK\x05\x06 not quite");
    folder.write("empty.pb", b"");
    // dims = 2^62, data_type = FLOAT, no data.
    folder.write("huge.pb", b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x40\x10\x01");
    folder.write("text.pb", b"hello");

    let refused = |name: String| format!("{name}\n  {}\n", read(&folder, &name).refused());
    insta::assert_snapshot!(folder.names("").into_iter().map(refused).collect::<String>());
}

fn write_npy_files(folder: &Folder) {
    let dims = |shape: &str| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        let len = u16::try_from(header.len()).unwrap().to_le_bytes();
        [b"\x93NUMPY\x01\x00".as_slice(), &len, header.as_bytes(), &[0; 64]].concat()
    };
    folder.write("huge.npy", &dims("(1099511627776, 1)"));
    folder.write("overflow.npy", &dims("(4611686018427387904, 4611686018427387904)"));
    folder.write("beyond_u64.npy", &dims("(99999999999999999999999999,)"));
    folder.write("negative.npy", &dims("(-1, 4)"));
    folder.write("long.npy", &dims("(2, 4)"));
    folder.write("header_4_gib.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{");
    let nested = format!("{{'descr': {}", "[".repeat(9000));
    let len = u16::try_from(nested.len()).unwrap().to_le_bytes();
    folder.write("nested.npy", &[b"\x93NUMPY\x01\x00".as_slice(), &len, nested.as_bytes()].concat());
    folder.write("empty.npy", b"");
    folder.write("text.npy", b"hello");
}

fn write_safetensors_files(folder: &Folder) {
    let safetensors = |header: &str, data: usize| {
        let len = u64::try_from(header.len()).unwrap().to_le_bytes();
        [len.as_slice(), header.as_bytes(), &vec![0; data]].concat()
    };
    let entry = |shape: &str, begin: u64, end: u64| {
        format!("{{\"k\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}}}")
    };
    folder.write("huge.safetensors", &safetensors(&entry("[1099511627776]", 0, 4_398_046_511_104), 8));
    folder.write("overflow.safetensors", &safetensors(&entry("[4611686018427387904,4]", 0, 8), 8));
    folder.write("hole.safetensors", &safetensors(&entry("[2]", 8, 16), 16));
    folder.write("short.safetensors", &safetensors(&entry("[4]", 0, 8), 8));
    folder.write("backwards.safetensors", &safetensors(&entry("[2]", 8, 0), 8));
    folder.write("long.safetensors", &safetensors(&entry("[2]", 0, 8), 9));
    folder.write("header_16_eib.safetensors", &[0xff; 64]);
    folder.write("header_90_mb.safetensors", &[90_000_000_u64.to_le_bytes().as_slice(), b"{"].concat());
    folder.write("nested.safetensors", &safetensors(&"[".repeat(100_000), 0));
    folder.write("six_bits.safetensors", &safetensors(&entry("[4]", 0, 3).replace("F32", "F6_E2M3"), 3));
    folder.write("empty.safetensors", b"");
    folder.write("none.safetensors", &safetensors("{}", 0));

    let twice = |name: &str| {
        let one =
            |key, end| format!("\"{key}\":{{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,{end}]}}");
        safetensors(&format!("{{{},{}}}", one("k", 8), one(name, 8)), 8)
    };
    folder.write("twice.safetensors", &twice("k"));
    folder.write("twice_escaped.safetensors", &twice("\\u006b"));
}

fn zip(folder: &Folder, name: &str, header: &[u8], zeros: usize) {
    let mut archive = ZipWriter::new(std::fs::File::create(folder.path(name)).unwrap());
    let options =
        SimpleFileOptions::default().compression_method(CompressionMethod::Deflated).large_file(true);
    archive.start_file("k.npy", options).unwrap();
    archive.write_all(header).unwrap();
    let block = vec![0; 1 << 20];
    for _ in 0..zeros >> 20 {
        archive.write_all(&block).unwrap();
    }
    archive.finish().unwrap();
}

/// Tests archives of a megabyte that expand to more than the memory of the command.
#[test]
fn archives_that_expand() {
    let folder = Folder::new();
    let header = |bytes: usize| npy("|u1", &[bytes], &[]);
    // The header claims 4 bytes and 300 MiB follow. Reading stops after the fifth byte.
    zip(&folder, "more.npz", &header(4), 300 << 20);
    // The header correctly claims 5 GiB. The file is refused before anything is expanded.
    zip(&folder, "honest.npz", &header(5 << 30), 1 << 20);
    // The header claims 3 GiB and a megabyte follows. Memory grows with the data, not with the claim.
    zip(&folder, "less.npz", &header(3 << 30), 1 << 20);
    let answers = ["more.npz", "honest.npz", "less.npz"]
        .map(|name| format!("{name}\n  {}\n", read(&folder, name).refused()));
    insta::assert_snapshot!(answers.concat());
}

/// Checks that `plan` reads only the header of a file. It does not expand 256 MiB of zeros to get their
/// shape.
#[test]
fn a_plan_expands_no_more_than_the_header() {
    let folder = Folder::new();
    let bytes = 256 << 20;
    zip(&folder, "k.npz", &npy("|u1", &[2, bytes / 2], &[]), bytes);
    let line = "plan tensor-scatter --cache k.npz --update 2,1 --type uint8 --axis 1";
    let text = folder.run_with_limits("-v 131072", line).passed();
    assert!(text.starts_with("uint8 cache [2, 134217728]"), "{text}");
    zip(&folder, "less.npz", &npy("|u1", &[2, bytes / 2], &[]), 1 << 20);
    folder.run(&line.replace("k.npz", "less.npz")).refused();
}

#[test]
fn an_archive_with_a_wrong_checksum() {
    let folder = Folder::new();
    let mut file = std::fs::read(testdata("files/two.npz")).unwrap();
    let data = file.windows(6).position(|bytes| bytes == b"\x93NUMPY").unwrap() + 128;
    file[data] ^= 1;
    folder.write("flipped.npz", &file);
    assert!(read(&folder, "flipped.npz#k").refused().to_lowercase().contains("checksum"));
}

#[test]
fn pipes_and_devices_are_no_files() {
    let folder = Folder::new();
    let made = std::process::Command::new("mkfifo").arg(folder.path("pipe.npy")).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("/dev/zero", folder.path("zero.npy")).unwrap();
    for name in ["pipe.npy", "zero.npy"] {
        assert_eq!(read(&folder, name).refused(), format!("error: {name}: not a regular file"));
        let line = format!("apply tensor-scatter --past-cache {name} --update nothing.npy --in-place");
        assert_eq!(folder.run(&line).refused(), format!("error: {name}: not a regular file"));
    }
}

#[test]
fn names_cannot_speak_to_the_terminal() {
    let folder = Folder::new();
    let args = ["plan", "tensor-scatter", "--cache", "a\u{1b}[31m\nb.npy", "--update", "1,1,1"];
    assert_eq!(folder.run_args(&args).refused(), "error: a\\u{1b}[31m\\nb.npy: no such file or directory");
}

/// Runs every command on decoders with as many inputs as fit into a megabyte, and with almost as many writes as
/// `lower` takes. Every command must end within the time of linear passes. One quadratic pass takes minutes here.
#[test]
fn many_inputs_and_writes_take_no_more_time_than_a_few() {
    const MANY: usize = 10_000;
    const WRITES: usize = 4_300;
    let folder = Folder::with_testdata();
    for (model, copy) in [("optimum-llama", "growing.onnx"), ("mobius-llama-static", "fixed.onnx")] {
        folder.change(&format!("testdata/{model}/model.onnx"), copy, |graph| {
            let mut like = graph.input[0].clone();
            *dims(&mut like) = vec![Dimension::default(); 2];
            let extra = |at| ValueInfoProto { name: Some(format!("extra{at}")), ..like.clone() };
            graph.input.extend((0..MANY).map(extra));
        });
    }
    let write = "testdata/onnx-node/test_tensorscatter/model.onnx";
    folder.change(write, "writes.onnx", |graph| chain_writes(graph, WRITES));
    for (line, code) in [
        ("run fixed.onnx --dim batch=1 --dim sequence_len=1", 2),
        ("generate fixed.onnx --prompt-ids 1", 2),
        ("certify fixed.onnx", 2),
        ("inspect fixed.onnx", 0),
        ("run growing.onnx --dim batch_size=1 --dim sequence_length=1 --dim past_sequence_length=1", 2),
        ("convert growing.onnx -o out.onnx --max-seq 64", 0),
        ("inspect growing.onnx", 0),
        ("lower writes.onnx -o lowered.onnx --to scatter-elements", 0),
        ("lower writes.onnx -o lowered.onnx --to scatter-nd", 0),
        ("inspect writes.onnx", 2),
        ("run writes.onnx", 0),
    ] {
        let answer = folder.run_with_limits(&format!("-t {SECONDS}"), line);
        assert_eq!(answer.code, Some(code), "{line}: {}", answer.stderr);
    }
}

/// The most processor time of a command in an unoptimised build, on any machine. Commands take a tenth of
/// this time.
const SECONDS: u32 = 60;

/// Turns a model of one write into one of several. Each writes into the output of the previous one.
fn chain_writes(graph: &mut GraphProto, count: usize) {
    let write = graph.node[0].clone();
    let cache = |at: usize| match at {
        0 => write.input[0].clone(),
        last if last == count => write.output[0].clone(),
        link => format!("link{link}"),
    };
    let linked = |at: usize| {
        let mut node = write.clone();
        (node.input[0], node.output[0]) = (cache(at), cache(at + 1));
        node
    };
    graph.node = (0..count).map(linked).collect();
}
