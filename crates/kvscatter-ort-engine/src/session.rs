//! Runs a model in ONNX Runtime with the session's tensors bound to its inputs and outputs.

use std::path::Path;

use ort::session::Session as RuntimeSession;

use kvscatter_onnx::RuntimeVersion;
use kvscatter_session::{GroupQueryNodes, LoadOptions, Session, SessionError, Step, StepOutput};

use crate::binding::Binding;
use crate::message::one_line;
use crate::{assignment, plugin};

/// A loaded model.
pub(super) struct OrtSession {
    binding: Binding,
    session: RuntimeSession,
    group_query_nodes: Option<GroupQueryNodes>,
    engine: String,
}

impl OrtSession {
    pub(super) fn load(
        environment: &ort::environment::Environment,
        model: &Path,
        options: LoadOptions,
        with_plugin: bool,
        version: RuntimeVersion,
        engine: String,
    ) -> Result<Self, SessionError> {
        let refused = |error: ort::Error| SessionError::Load {
            path: model.to_owned(),
            engine: engine.clone(),
            message: one_line(&error.to_string()),
        };
        let mut builder = RuntimeSession::builder(environment).map_err(refused)?;
        if let Some(threads) = options.threads {
            builder = builder.with_intra_threads(threads).map_err(|error| refused(error.into()))?;
        }
        let (option, value) = assignment::RECORDED;
        builder = builder.with_config_entry(option, value).map_err(|error| refused(error.into()))?;
        let devices = plugin::devices(environment, with_plugin);
        let provider = plugin::options();
        builder = builder.with_devices(devices, Some(&provider)).map_err(|error| refused(error.into()))?;
        let session = builder.commit_from_file(model).map_err(refused)?;
        // The plugin brings kernels, which are right in every version.
        if !with_plugin
            && let Some(least) = least_version(&session)
            && version < least
        {
            let message = format!(
                "its metadata names ONNX Runtime {least} as the oldest that computes it correctly without kvscatter's \
                 plugin"
            );
            return Err(SessionError::Load { path: model.to_owned(), engine, message });
        }
        let binding = Binding::new(&session).map_err(refused)?;
        let group_query_nodes = assignment::group_query_nodes(&session).map_err(refused)?;
        Ok(Self { binding, session, group_query_nodes, engine })
    }
}

/// Returns the oldest version that computes a converted model correctly, as its metadata names it.
fn least_version(session: &RuntimeSession) -> Option<RuntimeVersion> {
    let metadata = session.metadata().ok()?;
    metadata.custom("kvscatter.least_onnxruntime")?.parse().ok()
}

impl Session for OrtSession {
    fn takes_some_samples(&self) -> bool {
        true
    }

    fn group_query_nodes(&self) -> Option<GroupQueryNodes> {
        self.group_query_nodes
    }

    fn run(&mut self, step: Step<'_>) -> Result<StepOutput, SessionError> {
        self.binding.run(&mut self.session, step, &self.engine)
    }
}
