//! tract as an engine of [`kvscatter_session`].

mod fuse;
mod load;
mod memory;
mod messages;
mod prune;
mod rotary;
mod session;
mod weights;

use kvscatter_onnx::ModelFile;
use kvscatter_session::{Engine, LoadOptions, Session, SessionError};

use messages::{VERSION, label};

/// The engine tract, which computes on the CPU.
///
/// tract uses one thread unless [`LoadOptions::threads`] requests more. Several threads share only its matrix
/// products and large calls of attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tract;

impl Engine for Tract {
    fn name(&self) -> &'static str {
        "tract"
    }

    fn version(&self) -> &str {
        VERSION
    }

    fn device(&self) -> &'static str {
        "CPU"
    }

    fn load(&self, model: &ModelFile, options: LoadOptions) -> Result<Box<dyn Session>, SessionError> {
        let loaded = messages::catch_panics(|| load::load(model, options));
        let loaded = loaded.map_err(|message| SessionError::Load {
            path: model.path().to_owned(),
            engine: label(),
            message,
        })?;
        Ok(Box::new(loaded))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_is_the_one_that_is_built() {
        let manifest = include_str!("../Cargo.toml");
        assert!(manifest.contains(&format!("tract-onnx = \"={}\"", super::VERSION)));
    }
}
