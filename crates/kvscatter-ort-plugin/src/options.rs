//! The options of the execution provider.

use core::ffi::{CStr, c_char};
use core::ptr::null;

use ort_sys::OrtSessionOptions;

use crate::graph_node::GraphNode;
use crate::operators::{Attention, GroupQueryAttention, Operator};
use crate::owned::Owned;
use crate::runtime::RuntimeApi;
use crate::status::CallError;

/// The name by which sessions request the execution provider.
pub(crate) const NAME: &CStr = c"KvscatterExecutionProvider";

/// What a session may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpOptions {
    /// Whether the provider takes `Attention` and `GroupQueryAttention` nodes. It is `on` if the session does not
    /// choose.
    pub(crate) takes_attention: bool,
    /// Whether the provider computes the writes and the attention of a layer as one node. It is `off` if the session
    /// does not choose, because the runtime cannot save a model with such nodes, and no function of the runtime returns
    /// whether a session will be saved.
    pub(crate) fuses: bool,
}

impl Default for EpOptions {
    fn default() -> Self {
        Self { takes_attention: true, fuses: false }
    }
}

/// Options of a session with which the runtime refuses nodes that a provider compiles, as layers are.
const WITHOUT_COMPILED_NODES: [&str; 2] = ["session.disable_model_compile", "ep.context_enable"];

impl EpOptions {
    /// Reads the options of a session. Returns an error for an option or a value that does not exist.
    ///
    /// # Safety
    /// `options` is an object of the runtime and valid until this returns.
    pub(crate) unsafe fn read(
        runtime: RuntimeApi,
        options: *const OrtSessionOptions,
    ) -> Result<Self, CallError> {
        // SAFETY: `options` is valid by this function's contract, and `out` takes the result (R1).
        let entries = Owned::new(runtime, runtime.api.ReleaseKeyValuePairs, |out| unsafe {
            (runtime.api.GetSessionOptionsConfigEntries)(options, out)
        })?;
        let (mut keys, mut values, mut count) = (null(), null(), 0);
        // SAFETY: `entries` is not released yet, and the three variables take the results (R1).
        unsafe {
            (runtime.api.GetKeyValuePairs)(entries.as_ptr(), &raw mut keys, &raw mut values, &raw mut count);
        }
        let text = |list: *const *const c_char, index: usize| {
            // SAFETY: `list` has `count` elements (R5), and `index` is below that.
            let entry = unsafe { list.add(index) };
            // SAFETY: `entry` points to an element of `list`, which lives as long as `entries` (R5).
            let text = unsafe { entry.read() };
            // SAFETY: `text` is a string of `entries`, which ends in a zero byte and lives as long as
            // `entries` (R5).
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        // The runtime keeps the options of a provider among those of the session, with this prefix.
        let prefix = format!("ep.{}.", NAME.to_string_lossy().to_lowercase());
        let entries = (0..count).map(|index| (text(keys, index), text(values, index)));
        Self::of_entries(&prefix, entries)
    }

    /// Reads the options among the entries of a session.
    fn of_entries(
        prefix: &str,
        entries: impl Iterator<Item = (impl AsRef<str>, impl AsRef<str>)>,
    ) -> Result<Self, CallError> {
        let (mut read, mut may_compile) = (Self::default(), true);
        for (key, value) in entries {
            let (key, value) = (key.as_ref(), value.as_ref());
            if let Some(option) = key.strip_prefix(prefix) {
                read.set(option, value)?;
            }
            may_compile &= !(WITHOUT_COMPILED_NODES.contains(&key) && value == "1");
        }
        read.fuses &= may_compile;
        Ok(read)
    }

    /// Returns `true` if the provider takes this node, which has a kernel.
    pub(crate) fn takes(self, node: &GraphNode<'_>) -> Result<bool, CallError> {
        let operator = node.operator()?;
        if operator == Attention::NAME {
            let takes = || Attention::check_node(node, &node.inputs()?, &node.outputs()?);
            return Ok(self.takes_attention && takes().is_ok());
        }
        if operator == GroupQueryAttention::NAME {
            return Ok(self.takes_attention && GroupQueryAttention::takes(node)?);
        }
        Ok(true)
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), CallError> {
        let provider = NAME.to_string_lossy();
        let chosen = match option {
            "attention" => &mut self.takes_attention,
            "fusion" => &mut self.fuses,
            _ => {
                return Err(CallError::invalid_argument(format!(
                    "{provider} has no option {option}, its options are attention and fusion"
                )));
            }
        };
        *chosen = match value {
            "on" => true,
            "off" => false,
            _ => {
                return Err(CallError::invalid_argument(format!(
                    "{provider}: {option} must be 'on' or 'off', got '{value}'"
                )));
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::EpOptions;

    #[test]
    fn options_are_on_or_off() {
        let read = |entries: &[(&str, &str)]| EpOptions::of_entries("ep.", entries.iter().copied()).ok();
        let is = |takes_attention, fuses| Some(EpOptions { takes_attention, fuses });
        assert_eq!(read(&[]), is(true, false));
        assert_eq!(read(&[("ep.attention", "off"), ("fusion", "on")]), is(false, false));
        assert_eq!(read(&[("ep.fusion", "on"), ("other", "1")]), is(true, true));
        assert_eq!(read(&[("ep.fusion", "on"), ("ep.attention", "maybe")]), None);
    }

    #[test]
    fn layers_are_not_fused_in_sessions_that_may_not_compile() {
        for key in ["session.disable_model_compile", "ep.context_enable"] {
            for (value, fuses) in [("1", false), ("0", true)] {
                let entries = [("kvscatter.fusion", "on"), (key, value)].into_iter();
                let read = EpOptions::of_entries("kvscatter.", entries).ok();
                assert_eq!(read, Some(EpOptions { takes_attention: true, fuses }), "{key} {value}");
            }
        }
    }

    #[test]
    fn errors_name_what_there_is() {
        let refused = |option, value| EpOptions::default().set(option, value).unwrap_err().to_string();
        assert_eq!(
            refused("attention", "On"),
            "KvscatterExecutionProvider: attention must be 'on' or 'off', got 'On'"
        );
        assert_eq!(
            refused("threads", "2"),
            "KvscatterExecutionProvider has no option threads, its options are attention and fusion"
        );
    }
}
