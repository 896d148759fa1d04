//! Tests that the decoder of a folder is found, and that its conversion is kept and used again.

use std::fs;
use std::path::{Path, PathBuf};

use kvscatter::ElementType::Float32;
use kvscatter_onnx::convert::{CacheType, ConvertError, ConvertRefusal};
use kvscatter_onnx::source::{FolderError, ModelSource, Preparation, PrepareOptions, Prepared};
use kvscatter_onnx::{Model, OnnxError};

use crate::support::{assert_refused, decoder, external, folder, testdata};

/// Creates a folder with empty files of these names.
fn empty_files(names: &str) -> tempfile::TempDir {
    folder(&names.split(' ').map(|name| (name, &b""[..])).collect::<Vec<_>>())
}

fn genai(decoder: &str) -> String {
    format!(r#"{{"model": {{"decoder": {{"filename": {decoder:?}}}}}}}"#)
}

#[test]
fn the_decoder_of_a_folder_is_found() {
    let optimum = "decoder_model.onnx decoder_with_past_model.onnx";
    let merged = format!("{optimum} decoder_model_merged.onnx");
    let several = "a.onnx b.onnx sub/c.onnx";
    for (files, configured, expected) in [
        ("model.onnx model.onnx.data tokenizer.json", None, "model.onnx"),
        ("static.ONNX README.md", None, "static.ONNX"),
        (several, Some("b.onnx"), "b.onnx"),
        (several, Some("sub/c.onnx"), "sub/c.onnx"),
        (&merged, None, "decoder_model_merged.onnx"),
        (optimum, None, "decoder_with_past_model.onnx"),
        ("config.json onnx/model.onnx", None, "onnx/model.onnx"),
        ("onnx/decoder_model.onnx", None, "onnx/decoder_model.onnx"),
        ("decoder/model.onnx vision/model.onnx", None, "decoder/model.onnx"),
    ] {
        let folder = empty_files(files);
        if let Some(decoder) = configured {
            fs::write(folder.path().join("genai_config.json"), genai(decoder)).unwrap();
        }
        let found = ModelSource::find(folder.path()).unwrap();
        let expected = ModelSource { model: folder.path().join(expected), folder: folder.path().to_owned() };
        assert_eq!(found, expected, "{files}");
    }
}

#[test]
fn the_tokenizer_of_a_file_is_beside_it_or_above_a_folder_onnx() {
    let folder = empty_files("a/onnx/m.onnx b/onnx/m.onnx b/onnx/tokenizer.json c/m.onnx");
    for (file, expected) in [("a/onnx/m.onnx", "a"), ("b/onnx/m.onnx", "b/onnx"), ("c/m.onnx", "c")] {
        let model = folder.path().join(file);
        let found = ModelSource::find(&model).unwrap();
        assert_eq!(found, ModelSource { model, folder: folder.path().join(expected) });
    }
    let bare = ModelSource::find(Path::new("Cargo.toml")).unwrap();
    assert_eq!(bare, ModelSource { model: "Cargo.toml".into(), folder: ".".into() });
}

#[test]
fn a_folder_without_one_decoder_is_refused_in_one_line() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let huge = " ".repeat(2 << 20);
    let encoder = r#"{"model": {"encoder": {"filename": "e.onnx"}, "decoder": {"filename": "d.onnx"}}}"#;
    let none = "contains no .onnx file, and neither do the folders onnx and decoder in it";
    let several = |models: &str| format!("contains 2 models ({models}): pass the path of one");
    let with_encoder = |file: &str| format!("contains an encoder ({file}): pass the file of its decoder");
    for (files, expected) in [
        ("README.md", none.to_owned()),
        ("model.safetensors", format!("{none}; export the model of model.safetensors to ONNX first")),
        ("b.onnx a.onnx", several("a.onnx, b.onnx")),
        ("onnx/model.onnx onnx/model_q4.onnx", several("model.onnx, model_q4.onnx")),
        ("encoder_model.onnx decoder_model.onnx", with_encoder("encoder_model.onnx")),
        ("encoder/model.onnx decoder/model.onnx", with_encoder("encoder/model.onnx")),
    ] {
        let folder = empty_files(files);
        let error = ModelSource::find(folder.path()).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {expected}", folder.path().display()));
    }
    let unnamed = "names no file of a decoder (model.decoder.filename)".to_owned();
    let outside = |decoder: &str| format!("the decoder {decoder:?} is out of the folder");
    for (config, expected) in [
        (encoder, with_encoder("e.onnx")),
        (
            &genai("model.onnx"),
            "names \"model.onnx\" as the decoder, but the folder does not contain this file".to_owned(),
        ),
        (&genai("../a.onnx"), outside("../a.onnx")),
        (&genai("/a.onnx"), outside("/a.onnx")),
        ("{}", unnamed.clone()),
        (&genai(""), unnamed),
        ("[]", "it is not an object".to_owned()),
        ("GGUF", "expected value at line 1 column 1".to_owned()),
        (&deep, "recursion limit exceeded at line 1 column 128".to_owned()),
        (&huge, "2097152 bytes exceed the limit of 1048576".to_owned()),
    ] {
        let folder = folder(&[("genai_config.json", config.as_bytes()), ("a.onnx", b"")]);
        let error = ModelSource::find(folder.path()).unwrap_err().to_string();
        assert_eq!(error, format!("{}/genai_config.json: {expected}", folder.path().display()));
    }
    let itself = folder(&[("genai_config.json", genai(".").as_bytes()), ("a.onnx", b"")]);
    let error = ModelSource::find(itself.path()).unwrap_err().to_string();
    assert_eq!(error, format!("{}/.: not a regular file", itself.path().display()));
    let many: Vec<_> = (10..30).map(|at| format!("{at}.onnx")).collect();
    let found = ModelSource::find(empty_files(&many.join(" ")).path());
    let text = found.as_ref().unwrap_err().to_string();
    assert!(text.ends_with("16.onnx, 17.onnx, ...): pass the path of one"), "{text}");
    assert_refused!(found, FolderError::SeveralModels { models } if models.len() == 20);
}

/// A link of a stranger's folder could lead to any file.
#[cfg(unix)]
#[test]
fn no_link_leads_out_of_the_folder() {
    use std::os::unix::fs::symlink;
    let outside = folder(&[("model.onnx", b""), ("genai_config.json", genai("model.onnx").as_bytes())]);
    let is_refused = |folder: &tempfile::TempDir| {
        let error = ModelSource::find(folder.path()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("is a link that leads out of the "), "{text}");
    };
    let by_name = folder(&[]);
    symlink(outside.path().join("model.onnx"), by_name.path().join("model.onnx")).unwrap();
    is_refused(&by_name);
    let by_config = folder(&[("genai_config.json", genai("sub/model.onnx").as_bytes())]);
    symlink(outside.path(), by_config.path().join("sub")).unwrap();
    is_refused(&by_config);
    let config = folder(&[("model.onnx", b"")]);
    symlink(outside.path().join("genai_config.json"), config.path().join("genai_config.json")).unwrap();
    is_refused(&config);
    let inside = folder(&[("blobs/1", b"")]);
    symlink("blobs/1", inside.path().join("model.onnx")).unwrap();
    assert_eq!(ModelSource::find(inside.path()).unwrap().model, inside.path().join("model.onnx"));
}

/// The cache of the Hugging Face Hub has links from `snapshots` to `blobs`.
#[cfg(unix)]
#[test]
fn a_snapshot_of_the_hub_is_a_folder_of_a_model() {
    use std::os::unix::fs::symlink;
    let scene = Scene::gqa();
    let repository = scene.cache.path().join("models--owner--name");
    let snapshot = repository.join("snapshots/0123abc");
    fs::create_dir_all(snapshot.join("onnx")).unwrap();
    fs::create_dir(repository.join("blobs")).unwrap();
    for (blob, name) in [
        ("model.onnx", "onnx/model.onnx"),
        ("model.onnx.data", "onnx/model.onnx.data"),
        ("config.json", "config.json"),
    ] {
        fs::copy(scene.file(blob), repository.join("blobs").join(blob)).unwrap();
        let up = if name.starts_with("onnx/") { "../../../blobs" } else { "../../blobs" };
        symlink(format!("{up}/{blob}"), snapshot.join(name)).unwrap();
    }
    let prepare = || ModelSource::find(&snapshot).and_then(|source| source.prepare(&scene.options()));
    let prepared = prepare().unwrap();
    assert!(matches!(prepared.what, Preparation::Converted { max_seq: 32, .. }), "{prepared}");
    assert_eq!((capacity(&prepared.model), &prepared.folder), (Some(32), &snapshot));
    let weights = prepared.model.with_file_name("model.onnx.data");
    assert_eq!(fs::read(weights).unwrap(), fs::read(scene.file("model.onnx.data")).unwrap());
    assert_eq!(prepare().unwrap().what, Preparation::Reused { max_seq: 32 });
    Model::load(&snapshot.join("onnx/model.onnx")).unwrap().file().unwrap();
    // No link leads out of the repository.
    fs::remove_file(snapshot.join("onnx/model.onnx.data")).unwrap();
    symlink(scene.file("model.onnx.data"), snapshot.join("onnx/model.onnx.data")).unwrap();
    let error = prepare().unwrap_err().to_string();
    assert!(error.contains("model.onnx.data"), "{error}");
}

/// A folder with an export, and an empty folder for conversions.
struct Scene {
    export: tempfile::TempDir,
    cache: tempfile::TempDir,
}

impl Scene {
    fn new(testdata_folder: &str, config: &str) -> Self {
        let export = tempfile::tempdir().unwrap();
        for name in ["model.onnx", "model.onnx.data"] {
            let from = testdata(&format!("{testdata_folder}/{name}"));
            if from.exists() {
                fs::copy(from, export.path().join(name)).unwrap();
            }
        }
        fs::write(export.path().join("config.json"), config).unwrap();
        Self { export, cache: tempfile::tempdir().unwrap() }
    }

    fn gqa() -> Self {
        Self::new("genai-llama-gqa", r#"{"max_position_embeddings": 32}"#)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.export.path().join(name)
    }

    fn options(&self) -> PrepareOptions {
        PrepareOptions { cache: Some(self.cache.path().join("conversions")), ..PrepareOptions::default() }
    }

    fn prepare_with(&self, options: &PrepareOptions) -> Result<Prepared, OnnxError> {
        ModelSource::find(self.export.path())?.prepare(options)
    }

    fn prepare(&self) -> Prepared {
        self.prepare_with(&self.options()).unwrap()
    }

    /// Prepares the model and checks that this makes a conversion, which is the only one.
    #[track_caller]
    fn converts(&self) -> Prepared {
        let prepared = self.prepare();
        assert!(matches!(prepared.what, Preparation::Converted { .. }), "{prepared}");
        assert_eq!(self.conversions(), 1);
        prepared
    }

    /// Returns the number of folders with a conversion, or with an unfinished one.
    fn conversions(&self) -> usize {
        let entries = fs::read_dir(self.cache.path().join("conversions")).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_dir()).count()
    }

    #[track_caller]
    fn reuses(&self) {
        let prepared = self.prepare();
        assert!(matches!(prepared.what, Preparation::Reused { .. }), "{prepared}");
    }
}

fn capacity(path: &Path) -> Option<usize> {
    let model = Model::load(path).unwrap();
    model.file().unwrap();
    decoder(&model).caches[0].fixed_capacity()
}

#[test]
fn a_conversion_is_made_once_and_keeps_the_place_of_the_tokenizer() {
    let scene = Scene::gqa();
    let converted = scene.converts();
    assert_eq!(converted.folder, scene.export.path());
    assert_eq!(capacity(&converted.model), Some(32));
    let reused = scene.prepare();
    assert_eq!(reused, Prepared { what: Preparation::Reused { max_seq: 32 }, ..converted.clone() });
    let kept = converted.model.parent().unwrap().display();
    assert_eq!(reused.to_string(), format!("using the conversion to static caches of 32 slots in {kept}"));
    let weights = converted.model.with_file_name("model.onnx.data");
    assert_eq!(fs::read(weights).unwrap(), fs::read(scene.file("model.onnx.data")).unwrap());
    let (text, end) = (converted.to_string(), " to static caches of 32 slots, kept in ");
    assert!(text.contains(&format!("{end}{kept} with a copy of ")), "{text}");

    // Other options have another conversion, and both stay.
    let longer = PrepareOptions { max_seq: Some(40), ..scene.options() };
    let prepared = scene.prepare_with(&longer).unwrap();
    assert_eq!(capacity(&prepared.model), Some(40));
    scene.reuses();
    assert_eq!(scene.prepare_with(&longer).unwrap().what, Preparation::Reused { max_seq: 40 });

    let exported = scene.prepare_with(&PrepareOptions { convert: false, ..scene.options() }).unwrap();
    assert_eq!((exported.model, exported.what), (scene.file("model.onnx"), Preparation::AsItIs));
}

#[test]
fn a_static_model_runs_as_it_is_and_needs_no_folder_for_conversions() {
    let scene = Scene::new("mobius-llama-static", "not JSON");
    let options = PrepareOptions { cache: Some("/dev/null/none".into()), ..PrepareOptions::default() };
    let prepared = scene.prepare_with(&options).unwrap();
    assert_eq!((&prepared.model, prepared.what), (&scene.file("model.onnx"), Preparation::AsItIs));
    assert!(prepared.to_string().ends_with("/model.onnx runs as it was exported"));
}

#[test]
fn a_model_whose_caches_scatters_write_is_converted_to_its_own_slots() {
    let scene = Scene::new("decoders/torch-2.15-llama-static", "{}");
    let prepared = scene.prepare();
    assert!(matches!(prepared.what, Preparation::Converted { max_seq: 16, .. }), "{:?}", prepared.what);
    assert_eq!(capacity(&prepared.model), Some(16));
    scene.reuses();
    let exported = scene.prepare_with(&PrepareOptions { convert: false, ..scene.options() }).unwrap();
    assert_eq!(exported.what, Preparation::AsItIs);
    let other = scene.prepare_with(&PrepareOptions { max_seq: Some(32), ..scene.options() }).unwrap_err();
    let text = other.to_string();
    assert!(text.contains("has a fixed length of 16, which differs from max_seq = 32"), "{text}");
}

#[test]
fn each_type_of_caches_has_a_conversion() {
    let scene = Scene::gqa();
    let plain = scene.converts();
    let mut models = vec![plain.model];
    for (cache_type, rotation) in
        [(CacheType::Float16, true), (CacheType::Int8, true), (CacheType::Int8, false)]
    {
        let options = PrepareOptions { cache_type: Some(cache_type), rotation, ..scene.options() };
        let prepared = scene.prepare_with(&options).unwrap();
        assert!(matches!(prepared.what, Preparation::Converted { max_seq: 32, .. }), "{prepared}");
        let model = Model::load(&prepared.model).unwrap();
        assert_eq!(decoder(&model).caches[0].element, cache_type.element());
        let reused = scene.prepare_with(&options).unwrap();
        assert_eq!(reused, Prepared { what: Preparation::Reused { max_seq: 32 }, ..prepared.clone() });
        models.push(prepared.model);
    }
    models.sort();
    models.dedup();
    assert_eq!((models.len(), scene.conversions()), (4, 4));
    scene.reuses();
}

#[test]
fn a_static_model_is_converted_to_another_type_alone() {
    let scene = Scene::new("mobius-llama-static", "{}");
    let to = |cache_type| PrepareOptions { cache_type: Some(cache_type), ..scene.options() };
    let prepared = scene.prepare_with(&to(CacheType::BFloat16)).unwrap();
    assert!(matches!(prepared.what, Preparation::Converted { max_seq: 64, .. }), "{prepared}");
    let error = scene.prepare_with(&to(CacheType::Int8)).unwrap_err();
    let Some(ConvertError::NotConverted { cause }) = error.cause() else { panic!("{error}") };
    assert!(matches!(cause.cause(), Some(ConvertRefusal::CacheForm { .. })), "{error}");
    // Nothing but the first conversion is kept.
    assert_eq!(scene.conversions(), 1);
}

/// Without a number of slots, the configuration and the tables of the graph limit it.
#[test]
fn the_default_number_of_slots_is_what_the_model_supports() {
    let slots = |export: &str, config: &str| match Scene::new(export, config).prepare().what {
        Preparation::Converted { max_seq, .. } => max_seq,
        other => panic!("{other:?}"),
    };
    assert_eq!(slots("optimum-llama", r#"{"max_position_embeddings": 131072}"#), 4096);
    // Fields that the conversion does not use may have any type.
    let config = r#"{"n_positions": 48, "sliding_window": "none", "layer_types": 1, "alibi": "no"}"#;
    assert_eq!(slots("optimum-llama", config), 48);
    // The table of positions has fewer rows.
    assert_eq!(slots("decoders/optimum-1.18-gpt2", "{}"), 32);
}

#[test]
fn a_changed_export_is_converted_again() {
    let scene = Scene::gqa();
    scene.converts();
    let weights = scene.file("model.onnx.data");
    let with_time = |path: &Path, seconds: u64| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
    };
    // The weights are changed in place.
    let mut bytes = fs::read(&weights).unwrap();
    bytes[0] ^= 1;
    fs::write(&weights, &bytes).unwrap();
    with_time(&weights, 1_000_000);
    let converted = scene.converts();
    scene.reuses();
    assert!(fs::read(converted.model.with_file_name("model.onnx.data")).unwrap() == bytes);
    // Another file takes the place of the weights, with the same length and time.
    let other = scene.file("other");
    fs::write(&other, &bytes).unwrap();
    with_time(&other, 1_000_000);
    fs::rename(&other, &weights).unwrap();
    scene.converts();
    scene.reuses();
    // The graph changes, and its time does not.
    let mut model = Model::load(&scene.file("model.onnx")).unwrap();
    model.proto_mut().producer_name = Some("another".to_owned());
    model.save(&scene.file("model.onnx")).unwrap();
    scene.converts();
    scene.reuses();
}

#[test]
fn a_damaged_conversion_is_made_again() {
    let scene = Scene::gqa();
    let kept = scene.converts().model.parent().unwrap().to_owned();
    let damages: [fn(&Path); 7] = [
        |kept| fs::write(kept.join("model.onnx"), b"").unwrap(),
        |kept| fs::remove_file(kept.join("model.onnx")).unwrap(),
        |kept| fs::remove_file(kept.join("model.onnx.data")).unwrap(),
        |kept| {
            fs::remove_file(kept.join("model.onnx.data")).unwrap();
            fs::write(kept.join("model.onnx.data"), b"other").unwrap();
        },
        |kept| fs::write(kept.join("source.json"), b"{\"converter\": 1}").unwrap(),
        |kept| fs::write(kept.join("source.json"), "[".repeat(1000)).unwrap(),
        |kept| {
            fs::remove_dir_all(kept).unwrap();
            fs::write(kept, b"a file").unwrap();
        },
    ];
    for damage in damages {
        damage(&kept);
        scene.converts();
        scene.reuses();
    }
    // Other versions of the converter may make another model.
    let record = fs::read_to_string(kept.join("source.json")).unwrap();
    fs::write(kept.join("source.json"), record.replace("form 1", "form 0")).unwrap();
    scene.converts();
}

/// The description of this conversion is longer than 1 MiB.
#[test]
fn a_conversion_of_a_model_with_many_files_of_weights_is_used_again() {
    let scene = Scene::gqa();
    let inside = vec!["d".repeat(250); 12].join("/");
    fs::create_dir_all(scene.file(&inside)).unwrap();
    let mut model = Model::load(&scene.file("model.onnx")).unwrap();
    let graph = model.proto_mut().graph.get_or_insert_default();
    for number in 0..380 {
        let location = format!("{inside}/{number}");
        fs::write(scene.file(&location), [0; 4]).unwrap();
        let entries = [("location", &*location), ("length", "4")];
        graph.initializer.push(external(&format!("unused {number}"), Float32, &[1], &entries));
    }
    model.save(&scene.file("model.onnx")).unwrap();
    let record = scene.converts().model.with_file_name("source.json");
    assert!(fs::metadata(record).unwrap().len() > 1 << 20);
    scene.reuses();
}

#[cfg(target_os = "linux")]
#[test]
fn the_name_of_an_export_need_not_be_utf_8() {
    use std::os::unix::ffi::OsStringExt;

    let scene = Scene::gqa();
    let named = scene.export.path().join(std::ffi::OsString::from_vec(b"\xff".to_vec()));
    fs::create_dir(&named).unwrap();
    for name in ["model.onnx", "model.onnx.data", "config.json"] {
        fs::copy(scene.file(name), named.join(name)).unwrap();
    }
    let prepare = || ModelSource::find(&named).unwrap().prepare(&scene.options()).unwrap().what;
    assert!(matches!(prepare(), Preparation::Converted { .. }));
    assert_eq!(prepare(), Preparation::Reused { max_seq: 32 });
    // The next conversion removes those whose export is gone.
    scene.prepare();
    assert_eq!(prepare(), Preparation::Reused { max_seq: 32 });
}

#[test]
fn threads_that_prepare_one_model_get_one_conversion() {
    let scene = Scene::gqa();
    for damage in [false, true] {
        if damage {
            let kept = scene.prepare().model;
            fs::write(kept.with_file_name("source.json"), "{").unwrap();
        }
        let prepared: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| scene.prepare())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(
            prepared.iter().all(|one| one.model == prepared[0].model && capacity(&one.model) == Some(32))
        );
        assert_eq!(scene.conversions(), 1);
        scene.reuses();
    }
}

#[test]
fn a_conversion_goes_when_its_export_is_gone() {
    let scene = Scene::gqa();
    let first = scene.converts();
    let moved = Scene { export: Scene::gqa().export, cache: scene.cache };
    drop(scene.export);
    let second = moved.converts();
    assert_ne!(first.model, second.model);
}

#[test]
fn a_model_that_cannot_be_converted_names_the_reason() {
    let scene = Scene::gqa();
    let error =
        scene.prepare_with(&PrepareOptions { max_seq: Some(1 << 40), ..scene.options() }).unwrap_err();
    let Some(ConvertError::NotConverted { cause }) = error.cause() else { panic!("{error}") };
    assert!(matches!(cause.cause(), Some(ConvertRefusal::MaxSeq { .. })), "{cause}");
    let start = format!("{}: its caches cannot be made static: ", scene.file("model.onnx").display());
    assert!(error.to_string().starts_with(&start), "{error}");

    fs::write(scene.file("config.json"), r#"{"n_positions": "many"}"#).unwrap();
    let error = scene.prepare_with(&scene.options()).unwrap_err().to_string();
    assert!(error.ends_with("/config.json: n_positions is a string, expected a whole number"), "{error}");
    fs::remove_file(scene.file("config.json")).unwrap();

    let cache = scene.file("model.onnx").join("cache");
    let options = PrepareOptions { cache: Some(cache), max_seq: Some(8), ..PrepareOptions::default() };
    let error = scene.prepare_with(&options).unwrap_err();
    assert!(matches!(error.cause(), Some(ConvertError::NotKept { .. })), "{error}");
    let start = format!("cannot keep the converted model in {}/cache: ", scene.file("model.onnx").display());
    assert!(error.to_string().starts_with(&start), "{error}");

    fs::remove_file(scene.file("model.onnx.data")).unwrap();
    let error = scene.prepare_with(&scene.options()).unwrap_err().to_string();
    assert!(error.contains("model.onnx.data: No such file"), "{error}");
    let error = ModelSource::find(Path::new("absent")).unwrap_err();
    assert!(error.to_string().starts_with("absent: No such file"), "{error}");
    assert!(!scene.cache.path().join("conversions").exists());
}
