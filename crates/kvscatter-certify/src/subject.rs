//! Identifies a model by the contents of its files.

use std::io::{self, Read};
use std::path::Path;

use kvscatter_onnx::{Model, ModelFile};
use sha2::{Digest, Sha256};

use crate::CertifyError;
use crate::certificate::{FileIdentity, Opset, Subject};

/// Hashes a model's file and its external data, and reads its format, operator sets and producer.
///
/// # Errors
/// Returns [`CertifyError::Io`] or [`CertifyError::Onnx`] if one of the files cannot be read.
pub(crate) fn identify(file: &ModelFile, model: &Model) -> Result<Subject, CertifyError> {
    let path = file.path();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let in_file = |path: &Path| {
        let path = path.to_owned();
        move |cause| CertifyError::Io { path, cause }
    };
    let mut external_data = Vec::new();
    for location in file.locations() {
        let data = file.open(Path::new(location))?;
        external_data.push(hash(location, data).map_err(in_file(location.as_ref()))?);
    }
    let program: Vec<&str> = model.producer().into_iter().filter(|part| !part.is_empty()).collect();
    Ok(Subject {
        file: hash(&name, kvscatter_onnx::internal::file::open(path)?.0).map_err(in_file(path))?,
        external_data,
        ir_version: model.ir_version(),
        opsets: model
            .opsets()
            .map(|(domain, version)| Opset { domain: domain.to_owned(), version })
            .collect(),
        producer: producer(&program.join(" "), model),
        compared: model.metadata("kvscatter.compared").map(str::to_owned),
    })
}

/// Returns the program that wrote the model and the one that converted it: `pytorch 2.15.0, converted by
/// kvscatter 0.1.0`. Conversion keeps the producer, and adds the version of kvscatter to the metadata.
fn producer(program: &str, model: &Model) -> String {
    match model.metadata("kvscatter.version") {
        None => program.to_owned(),
        Some(version) if program.is_empty() => format!("converted by kvscatter {version}"),
        Some(version) => format!("{program}, converted by kvscatter {version}"),
    }
}

/// Returns `true` if two models have the same file contents. Names are ignored.
pub(crate) fn is_same(one: &Subject, other: &Subject) -> bool {
    let hashes = |subject: &Subject| {
        let mut data: Vec<_> = subject.external_data.iter().map(|data| data.sha256.clone()).collect();
        data.sort();
        (subject.file.sha256.clone(), data)
    };
    hashes(one) == hashes(other)
}

/// Hashes the rest of a file and counts its bytes.
fn hash(name: &str, mut file: impl Read) -> io::Result<FileIdentity> {
    let mut hasher = Sha256::new();
    let mut bytes = 0_u64;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(buffer.get(..read).unwrap_or_default());
        bytes += u64::try_from(read).unwrap_or_default();
    }
    let digest = hasher.finalize();
    Ok(FileIdentity {
        name: name.to_owned(),
        bytes,
        sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
    })
}

#[cfg(test)]
mod tests {
    use kvscatter_onnx::Model;
    use kvscatter_onnx::internal::proto::{ModelProto, StringStringEntryProto};

    #[test]
    fn a_converted_model_names_both_who_wrote_it_and_what_converted_it() {
        let mut proto = ModelProto::default();
        assert_eq!(
            super::producer("pytorch 2.15.0", &Model::from_proto(ModelProto::default())),
            "pytorch 2.15.0"
        );
        proto.metadata_props.push(StringStringEntryProto {
            key: Some("kvscatter.version".to_owned()),
            value: Some("0.1.0".to_owned()),
            ..StringStringEntryProto::default()
        });
        let model = Model::from_proto(proto);
        assert_eq!(super::producer("pytorch 2.15.0", &model), "pytorch 2.15.0, converted by kvscatter 0.1.0");
        assert_eq!(super::producer("", &model), "converted by kvscatter 0.1.0");
    }

    #[test]
    fn the_hash_is_the_one_that_everybody_computes() {
        let identity = super::hash("abc", b"abc".as_slice()).unwrap();
        assert_eq!((identity.name.as_str(), identity.bytes), ("abc", 3));
        assert_eq!(identity.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
