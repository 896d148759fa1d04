//! Generates `crates/kvscatter-onnx/src/proto/` from `onnx.proto`.
//!
//! `onnx.proto` is an unchanged copy of `onnx-ml.proto` from ONNX 1.23.2. Neither this program nor its users
//! need `protoc`.

use std::error::Error;
use std::path::Path;

use protox::prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = here.join("../src/proto");
    let descriptors = std::env::temp_dir().join(format!("onnx-{}.binpb", std::process::id()));
    std::fs::write(&descriptors, protox::compile(["onnx.proto"], [here])?.encode_to_vec())?;
    let generated = buffa_build::Config::new()
        .descriptor_set(&descriptors)
        .files(&["onnx.proto"])
        // Only owned messages are generated. Nested messages are boxed, because an attribute has fields for a
        // dozen of them and contains one.
        .generate_views(false)
        .generate_with_setters(false)
        .idiomatic_enum_aliases(false)
        .box_type(buffa_build::PointerRepr::Box)
        .file_per_package(true)
        .out_dir(&out)
        .compile();
    std::fs::remove_file(&descriptors)?;
    generated
}
