//! tract as an engine of [`kvscatter_session`].

mod load;
mod memory;
mod prune;
mod says;
mod session;
mod weights;

use kvscatter_onnx::ModelFile;
use kvscatter_session::{Engine, Error, Options, Session};

/// tract, on the processor that runs this.
///
/// One thread computes, unless [`Options::threads`] asks for more: those share tract's matrix products, and nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tract;

/// The release that this crate is pinned to.
const VERSION: &str = "0.23.9";

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

    fn load(&self, model: &ModelFile, options: Options) -> Result<Box<dyn Session>, Error> {
        let loaded = says::fenced(|| load::load(model, options));
        let loaded =
            loaded.map_err(|says| Error::Load { path: model.path().to_owned(), engine: label(), says })?;
        Ok(Box::new(loaded))
    }
}

/// What errors call the engine.
fn label() -> String {
    format!("tract {VERSION}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_is_the_one_that_is_built() {
        let manifest = include_str!("../Cargo.toml");
        assert!(manifest.contains(&format!("tract-onnx = \"={}\"", super::VERSION)));
    }
}
