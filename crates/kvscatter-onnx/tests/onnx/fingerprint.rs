//! Tests which changes of a model change its fingerprint.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kvscatter_onnx::convert::{CacheType, ConvertOptions, WindowedCaches, convert};
use kvscatter_onnx::internal::proto::tensor_proto::DataLocation;
use kvscatter_onnx::internal::proto::{TensorProto, ValueInfoProto};
use kvscatter_onnx::{
    ExternalError, FileError, Fingerprint, LowerTarget, Model, WeightTransfer, lower, unmerge,
};

use crate::support::{assert_refused, entry, graph_mut, load, testdata};

const EXPORTED: &str = "mobius-llama-dynamic genai-llama-gqa optimum-llama decoders/genai-0.18-hunyuan \
    decoders/genai-0.18-llama-float16 decoders/mobius-0.1-gpt2 decoders/mobius-0.1-qwen3-float16 \
    decoders/onnxruntime-1.32-gpt2 decoders/optimum-0.1-mistral-window decoders/optimum-0.1-qwen3-float16 \
    decoders/optimum-0.1-qwen3-moe decoders/optimum-1.18-falcon decoders/optimum-1.18-gpt2 \
    decoders/optimum-1.18-gpt2-merged decoders/optimum-1.18-opt decoders/optimum-llama-4bit \
    decoders/torch-2.15-llama";

/// Writes the model into a new folder.
fn saved(model: &Model) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    (folder, path)
}

fn fingerprint_of(path: &Path) -> Fingerprint {
    Model::load(path).unwrap().file().unwrap().fingerprint().unwrap()
}

fn fingerprint(model: &Model) -> Fingerprint {
    let (_folder, path) = saved(model);
    fingerprint_of(&path)
}

/// The fingerprint of a model after a change of its message. The values in other files are the same.
fn changed(model: &Model, change: impl FnOnce(&mut Model)) -> Fingerprint {
    let mut model = model.clone();
    change(&mut model);
    fingerprint(&model)
}

fn ring(chunk: usize, rewind: usize) -> WindowedCaches {
    WindowedCaches::Ring { chunk: Some(chunk), rewind }
}

#[test]
fn sizes_of_a_conversion_do_not_count() {
    let mut seen = BTreeSet::new();
    for name in EXPORTED.split_whitespace() {
        let model = load(name);
        assert!(seen.insert(fingerprint(&model).to_bits()), "{name}");
        let mut prints = BTreeSet::new();
        for (max_seq, windowed) in [
            (16, WindowedCaches::Mask),
            (23, WindowedCaches::Mask),
            (24, WindowedCaches::default()),
            (16, ring(2, 0)),
            (24, ring(5, 3)),
        ] {
            let converted = convert(&model, ConvertOptions::new(max_seq).windowed(windowed)).unwrap().model;
            prints.insert(fingerprint(&converted).to_bits());
            for target in [LowerTarget::ScatterElements, LowerTarget::ScatterNd] {
                prints.insert(fingerprint(&lower(&converted, target).unwrap().model).to_bits());
            }
        }
        assert_eq!(prints.len(), 1, "{name}");
        assert!(seen.insert(*prints.first().unwrap()), "{name}");
    }
}

#[test]
fn a_merged_decoder_and_its_branch_are_converted_to_one_model() {
    let merged = load("decoders/optimum-1.18-gpt2-merged");
    let branch = unmerge(&merged).unwrap().unwrap().model;
    let [from_merged, from_branch] = [(&merged, 16), (&branch, 24)]
        .map(|(model, slots)| fingerprint(&convert(model, slots).unwrap().model));
    assert_eq!(from_merged, from_branch);
    assert_ne!(fingerprint(&merged), fingerprint(&branch));
}

#[test]
fn options_that_change_values_count() {
    let options = ConvertOptions::new(16);
    let [kept, fused] = [options.keep_attention(true), options]
        .map(|options| fingerprint(&convert(&load("optimum-llama"), options).unwrap().model));
    assert_ne!(kept, fused);
}

#[test]
fn the_type_of_the_caches_counts() {
    let print = |max_seq: usize, cache_type, rotation| {
        let options = ConvertOptions::new(max_seq).caches(cache_type, rotation);
        fingerprint(&convert(&load("mobius-llama-dynamic"), options).unwrap().model).to_bits()
    };
    let types = [CacheType::Float16, CacheType::BFloat16, CacheType::Int8].map(|narrow| (Some(narrow), true));
    let all = [(None, true), (Some(CacheType::Int8), false)].into_iter().chain(types);
    let prints: BTreeSet<_> = all.map(|(cache_type, rotation)| print(16, cache_type, rotation)).collect();
    assert_eq!(prints.len(), 5);
    assert!(prints.contains(&print(24, Some(CacheType::Int8), true)));
    // Float32 is the type of the export.
    assert_eq!(print(16, Some(CacheType::Float32), true), print(16, None, true));
}

#[test]
fn every_weight_in_another_file_counts() {
    let model = convert(&load("mobius-llama-dynamic"), 16).unwrap().model;
    let (folder, path) = saved(&model);
    let data = folder.path().join("model.onnx.data");
    let bytes = fs::read(&data).unwrap();
    let mut seen = BTreeSet::from([fingerprint_of(&path).to_bits()]);
    let mut tensors = 0;
    let is_external = |tensor: &&TensorProto| tensor.data_location == Some(DataLocation::EXTERNAL);
    for tensor in model.proto().graph.initializer.iter().filter(is_external) {
        let number = |key: &str| {
            let entry = tensor.external_data.iter().find(|entry| entry.key.as_deref() == Some(key));
            entry.unwrap().value.as_ref().unwrap().parse::<usize>().unwrap()
        };
        let (offset, len) = (number("offset"), number("length"));
        for at in [offset, offset + len / 2, offset + len - 1] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            fs::write(&data, other).unwrap();
            assert!(seen.insert(fingerprint_of(&path).to_bits()), "byte {at}");
        }
        tensors += 1;
    }
    assert!(tensors > 10, "{tensors}");
    fs::write(&data, bytes).unwrap();
    assert_eq!(fingerprint_of(&path), fingerprint(&model));
}

#[test]
fn every_edit_of_a_graph_counts_also_in_a_converted_model() {
    let exported = load("optimum-llama");
    for model in [exported.clone(), convert(&exported, 16).unwrap().model, load("mobius-llama-static")] {
        let mut seen = BTreeSet::from([fingerprint(&model).to_bits()]);
        let mut different = |what: &str, change: &dyn Fn(&mut Model)| {
            assert!(seen.insert(changed(&model, change).to_bits()), "{what}");
        };
        for (at, tensor) in model.proto().graph.initializer.iter().enumerate().step_by(7) {
            if tensor.raw_data.as_ref().is_some_and(|bytes| !bytes.is_empty()) {
                different("a weight in the model", &|model| {
                    let tensor = &mut graph_mut(model).initializer[at];
                    Arc::make_mut(tensor.raw_data.as_mut().unwrap())[0] ^= 1;
                });
            }
        }
        for (at, node) in model.proto().graph.node.iter().enumerate().step_by(11) {
            different("an operator", &|model| {
                graph_mut(model).node[at].domain = Some("other".to_owned());
            });
            if let Some(number) = node.attribute.iter().position(|attribute| attribute.i.is_some()) {
                different("an attribute", &|model| {
                    let node = &mut graph_mut(model).node[at];
                    *node.attribute[number].i.as_mut().unwrap() += 1;
                });
            }
        }
        different("an operator set", &|model| {
            *model.proto_mut().opset_import[0].version.as_mut().unwrap() += 1;
        });
        different("an unused input", &|model| {
            let inputs = &mut graph_mut(model).input;
            let input = inputs[0].clone();
            inputs.push(ValueInfoProto { name: Some("more".to_owned()), ..input });
        });
        different("the name of an output", &|model| {
            let graph = graph_mut(model);
            let old = graph.output[0].name.replace("renamed".to_owned()).unwrap();
            for name in graph.node.iter_mut().flat_map(|node| &mut node.output).filter(|name| **name == old) {
                "renamed".clone_into(name);
            }
        });
    }
}

#[test]
fn descriptions_do_not_count() {
    let exported = load("optimum-llama");
    for model in [exported.clone(), convert(&exported, 16).unwrap().model, load("mobius-llama-static")] {
        let print = fingerprint(&model);
        let text = || Some("other".to_owned());
        let same = changed(&model, |model| {
            let proto = model.proto_mut();
            (proto.producer_name, proto.producer_version, proto.doc_string) = (text(), text(), text());
            proto.ir_version = Some(13);
            proto.metadata_props.push(entry("other", "other"));
            proto.opset_import.reverse();
            let graph = proto.graph.get_or_insert_default();
            (graph.name, graph.doc_string) = (text(), text());
            graph.value_info.clear();
            for (at, node) in graph.node.iter_mut().enumerate() {
                (node.name, node.doc_string) = (Some(format!("node {at}")), text());
                node.metadata_props.push(entry("other", "other"));
                node.attribute.iter_mut().for_each(|attribute| attribute.doc_string = text());
            }
            graph.input.iter_mut().for_each(|input| input.doc_string = text());
            graph.initializer.iter_mut().for_each(|tensor| tensor.doc_string = text());
        });
        assert_eq!(same, print);
    }
}

#[test]
fn an_entry_of_another_model_has_no_effect() {
    let model = load("mobius-llama-static");
    let converted = convert(&load("mobius-llama-dynamic"), 16).unwrap().model;
    let key = "kvscatter.source";
    let source = converted.metadata(key).unwrap().to_owned();
    for value in [source.as_str(), "", "exported= converted=", &source.to_uppercase(), &format!("{source} ")]
    {
        let changed = changed(&model, |model| model.proto_mut().metadata_props.push(entry(key, value)));
        assert_eq!(changed, fingerprint(&model));
    }
}

#[test]
fn the_place_of_values_in_another_file_does_not_count() {
    let model = load("mobius-llama-static");
    let (folder, path) = saved(&model);
    let print = fingerprint_of(&path);
    fs::rename(folder.path().join("model.onnx.data"), folder.path().join("moved")).unwrap();
    let mut moved = model.clone();
    let graph = graph_mut(&mut moved);
    let entries = graph.initializer.iter_mut().flat_map(|tensor| &mut tensor.external_data);
    for entry in entries.filter(|entry| entry.key.as_deref() == Some("location")) {
        entry.value = Some("moved".to_owned());
    }
    moved.save(&path).unwrap();
    assert_eq!(fingerprint_of(&path), print);
}

#[test]
fn a_file_that_changed_after_the_model_was_read_is_an_error() {
    let model = load("mobius-llama-static");
    let (folder, path) = saved(&model);
    let data = folder.path().join("model.onnx.data");
    let later = SystemTime::now() + Duration::from_secs(10);
    let with_time = |path: &Path, time| {
        fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    };
    // The time of modification stays.
    let with_bytes = |path: &Path, change: fn(&mut Vec<u8>)| {
        let modified = fs::metadata(path).unwrap().modified().unwrap();
        let mut bytes = fs::read(path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
        with_time(path, modified);
    };
    let rewritten: &dyn Fn(&Path) = &|path| with_time(path, later);
    let longer: &dyn Fn(&Path) = &|path| with_bytes(path, |bytes| bytes.push(0));
    let replaced: &dyn Fn(&Path) = &|path| {
        let copy = path.with_extension("copy");
        fs::copy(path, &copy).unwrap();
        with_time(&copy, fs::metadata(path).unwrap().modified().unwrap());
        fs::rename(copy, path).unwrap();
    };
    // The length and the inode stay as well. Only Unix has another time.
    let edited: &dyn Fn(&Path) = &|path| with_bytes(path, |bytes| *bytes.last_mut().unwrap() ^= 1);
    let edited = cfg!(unix).then_some(edited);
    let restore = || {
        model.save(&path).unwrap();
        fs::copy(testdata("mobius-llama-static/model.onnx.data"), &data).unwrap();
    };
    for file in [&path, &data] {
        for change in [rewritten, replaced, longer].into_iter().chain(edited) {
            let [opened, known] = [(); 2].map(|()| Model::load(&path).unwrap().file().unwrap());
            let print = known.fingerprint().unwrap();
            change(file);
            assert_refused!(opened.fingerprint(), FileError::FileChanged);
            assert_eq!(known.clone().fingerprint().unwrap(), print);
            restore();
        }
        let opened = Model::load(&path).unwrap().file().unwrap();
        fs::remove_file(file).unwrap();
        assert_refused!(opened.fingerprint(), std::io::Error { .. });
        restore();
    }
}

#[test]
fn tensors_that_overlap_do_not_multiply_the_work() {
    let mut model = load("mobius-llama-static");
    let (folder, path) = saved(&model);
    let graph = graph_mut(&mut model);
    let at =
        graph.initializer.iter().position(|it| it.data_location == Some(DataLocation::EXTERNAL)).unwrap();
    let shared = graph.initializer[at].clone();
    for copy in 0..2000 {
        let mut tensor = shared.clone();
        tensor.name = Some(format!("copy {copy}"));
        graph.initializer.push(tensor);
    }
    model.save(&path).unwrap();
    fingerprint_of(&path);
    let graph = graph_mut(&mut model);
    for (copy, tensor) in graph.initializer.iter_mut().rev().take(2000).enumerate() {
        let offset = tensor.external_data.iter_mut().find(|it| it.key.as_deref() == Some("offset")).unwrap();
        offset.value = Some(copy.to_string());
    }
    model.save(&path).unwrap();
    assert_refused!(Model::load(&path).unwrap().file().unwrap().fingerprint(), ExternalError::Limit { .. });
    drop(folder);
}
