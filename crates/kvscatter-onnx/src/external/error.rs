//! Errors about external data.

/// An error about external data.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case", prefix = "external_")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum ExternalError {
    /// The tensor has external data, but the folder of the data is not known.
    #[error("external data in {location:?}, but the folder of the data is not known")]
    WithoutFolder { location: String },
    /// Strings cannot be external data.
    #[error("strings cannot be external data")]
    Strings,
    /// `external_data` has no `location`.
    #[error("external data without a location")]
    LocationMissing,
    /// A key of `external_data` occurs twice.
    #[error("external data gives {key:?} twice")]
    KeyTwice { key: String },
    /// `offset` or `length` is not a number.
    #[error("external data's {key} = {value:?} is not a whole number of bytes")]
    Number { key: &'static str, value: String },
    /// The location is absolute, contains `..`, or is a symbolic link that leads out of the folder.
    #[error(
        "external data's location {location:?} {}",
        if *.is_link {
            "is a link that leads out of the model's folder: copy the folder with its link targets (cp -rL)"
        } else {
            "leads out of the model's folder"
        }
    )]
    Escape { location: String, is_link: bool },
    /// `length` does not match the shape.
    #[error("external data's length = {got}, the shape takes {expected} bytes")]
    Length { expected: u64, got: u64 },
    /// The file does not contain all of the bytes.
    #[error("external data's bytes {offset}..{offset} + {length} are not in {location:?} of {size} bytes")]
    Range { location: String, offset: u64, length: u64, size: u64 },
    /// The file's checksum does not match.
    #[error("external data's checksum is {expected}, the SHA1 of {location:?} is {got}")]
    Checksum { location: String, expected: String, got: String },
    /// Reading this tensor would exceed the limit on all external data together.
    #[error("external data of {wanted} bytes exceeds the {left} bytes left of the limit")]
    Limit { wanted: u64, left: u64 },
}

crate::cause!(ExternalError, Into::into);
