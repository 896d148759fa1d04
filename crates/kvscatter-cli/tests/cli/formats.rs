//! Tests files that other libraries wrote, and reads our files back.

use crate::support::{Folder, npy, testdata};

/// Copies a tensor from one file to another with an update without rows, which writes nothing.
fn convert(folder: &Folder, from: &str, to: &str, descr: &str, ty: &str) {
    folder.write("nothing.npy", &npy(descr, &[2, 0, 5], &[]));
    let ty = if ty.is_empty() { String::new() } else { format!(" --type {ty}") };
    let line =
        format!("apply tensor-scatter --past-cache {from} --update nothing.npy --present-cache {to}{ty}");
    folder.run(&line).passed();
}

/// Checks that a `.npy` file that goes through every format has the bytes that NumPy wrote.
#[test]
fn npy_goes_through_every_format_and_back() {
    for (name, descr, ty) in [
        ("float32", "<f4", ""),
        ("float16", "<f2", ""),
        ("int64", "<i8", ""),
        ("uint8", "|u1", ""),
        ("bool", "|b1", ""),
        ("complex64", "<c8", ""),
        ("float8_e5m2", "<f1", "float8_e5m2"),
        ("bfloat16", "<V2", "bfloat16"),
        ("float8_e4m3fn", "<V1", "float8_e4m3fn"),
    ] {
        let folder = Folder::with_testdata();
        let original = format!("testdata/files/{name}.npy");
        convert(&folder, &original, "a.npz#k", descr, ty);
        convert(&folder, "a.npz", "b.safetensors", descr, ty);
        convert(&folder, "b.safetensors#present_cache", "c.pb", descr, ty);
        convert(&folder, "c.pb", "d.npy", descr, ty);
        let (got, expected) = (folder.read("d.npy"), folder.read(&original));
        assert_eq!(got.len(), expected.len(), "{name}");
        assert_eq!(got[128..], expected[128..], "{name}");
        if ty.is_empty() {
            assert_eq!(got, expected, "{name}: the header too");
        }
    }
}

/// Checks that 4-bit types have one value per byte in .npy, and two in .pb.
#[test]
fn four_bit_types_are_packed_and_unpacked() {
    for ty in ["int4", "uint4", "float4_e2m1fn"] {
        let folder = Folder::with_testdata();
        let original = format!("testdata/files/{ty}.npy");
        convert(&folder, &original, "a.pb", "<V1", ty);
        convert(&folder, "a.pb", "b.npz", "<V1", ty);
        convert(&folder, "b.npz", "c.npy", "<V1", ty);
        assert_eq!(folder.read("c.npy")[128..], folder.read(&original)[128..], "{ty}");
        if ty == "int4" {
            let theirs = std::fs::read(testdata("files/int4.pb")).unwrap();
            let packed = &theirs[theirs.len() - 15..];
            assert!(folder.read("a.pb").windows(15).any(|bytes| bytes == packed), "as onnx packs them");
        }
    }
}

#[test]
fn the_other_libraries_containers() {
    let folder = Folder::with_testdata();
    let original = folder.read("testdata/files/float32.npy");
    for from in
        ["version2.npy", "two.npz#k", "two.npz#k.npy", "compressed.npz", "two.safetensors#k", "typed.pb"]
    {
        convert(&folder, &format!("testdata/files/{from}"), "out.npy", "<f4", "");
        assert_eq!(folder.read("out.npy"), original, "{from}");
    }
    convert(&folder, "testdata/files/two.safetensors#v", "out.npy", "<V2", "bfloat16");
    assert_eq!(folder.read("out.npy")[128..], folder.read("testdata/files/bfloat16.npy")[128..]);
    convert(&folder, "testdata/files/float16.pb", "out.npy", "<f2", "");
    assert_eq!(folder.read("out.npy"), folder.read("testdata/files/float16.npy"));
}

#[test]
fn indices_come_from_every_container() {
    let folder = Folder::with_testdata();
    let line = "plan tensor-scatter --cache 2,8,1 --update 2,1,1 --write-indices testdata/files/two.npz#write_indices";
    let text = folder.run(line).passed();
    assert!(text.contains("     0              3  ") && text.contains("     1              0  "), "{text}");
}

#[test]
fn refusals() {
    let folder = Folder::with_testdata();
    std::fs::create_dir(folder.path("folder.npy")).unwrap();
    folder.write("two_bytes.npy", &npy("<V2", &[2], &[0; 4]));
    folder.write("big_nibble.npy", &npy("<V1", &[2, 1, 1], &[0x0f, 0x1f]));
    folder.check_transcript("formats");
}
