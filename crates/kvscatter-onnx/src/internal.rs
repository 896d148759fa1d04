//! Items for kvscatter's own crates and tests. They are not part of the API and change without notice.

pub use crate::cache_path::{CachePath, CachePathError};
pub use crate::convert::mask_rule::{MaskRule, mask_rule};
pub use crate::encoder_model::EncoderValues;
pub use crate::external::ExternalData;
pub use crate::tensor::{DEFAULT_MEMORY_LIMIT, storage_len};

pub mod declared {
    pub use crate::declared::*;
}
pub mod eval {
    pub use crate::eval::*;
}
pub mod file {
    pub use crate::file::*;
}
pub mod fold {
    pub use crate::fold::outputs::floats;
}
pub mod proto {
    pub use crate::proto::*;
}
pub mod random_inputs {
    pub use crate::random_inputs::*;
}
pub mod tensor_proto {
    pub use crate::tensor_proto::*;
}
pub mod test_dir {
    pub use crate::test_dir::*;
}
pub mod text {
    pub use crate::text::*;
}
