//! The options of the execution provider.
//!
//! The conditions R1 to R6 that comments cite are defined in the crate's documentation.

use core::ffi::{CStr, c_char};
use core::ptr::null;

use ort_sys::OrtSessionOptions;

use crate::graph_node::GraphNode;
use crate::operators::{Attention, Operator};
use crate::owned::Owned;
use crate::runtime::RuntimeApi;
use crate::status::Failure;

/// The name by which sessions request the execution provider.
pub(crate) const NAME: &CStr = c"KvscatterExecutionProvider";

/// What a session may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpOptions {
    /// Whether the provider takes `Attention` nodes. It is `on` if the session does not choose.
    pub(crate) takes_attention: bool,
}

impl Default for EpOptions {
    fn default() -> Self {
        Self { takes_attention: true }
    }
}

impl EpOptions {
    /// Reads the options of a session.
    ///
    /// # Errors
    /// Returns an error for an option or a value that does not exist.
    ///
    /// # Safety
    /// `options` is an object of the runtime and valid until this returns.
    pub(crate) unsafe fn read(
        runtime: RuntimeApi,
        options: *const OrtSessionOptions,
    ) -> Result<Self, Failure> {
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
        let mut read = Self::default();
        for index in 0..count {
            if let Some(option) = text(keys, index).strip_prefix(&prefix) {
                read.set(option, &text(values, index))?;
            }
        }
        Ok(read)
    }

    /// Returns `true` if the provider takes this node, which has a kernel.
    ///
    /// # Errors
    /// Returns the status of a function of the runtime that fails.
    pub(crate) fn takes(self, node: &GraphNode<'_>) -> Result<bool, Failure> {
        if node.operator()? != Attention::NAME {
            return Ok(true);
        }
        Ok(self.takes_attention && Attention::check_node(node, &node.inputs()?, &node.outputs()?).is_ok())
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), Failure> {
        let provider = NAME.to_string_lossy();
        match (option, value) {
            ("attention", "on") => self.takes_attention = true,
            ("attention", "off") => self.takes_attention = false,
            ("attention", _) => {
                return Err(Failure::invalid_argument(format!(
                    "{provider}: attention must be 'on' or 'off', got '{value}'"
                )));
            }
            _ => {
                return Err(Failure::invalid_argument(format!(
                    "{provider} has no option {option}, its only option is attention"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::EpOptions;

    #[test]
    fn attention_is_on_or_off() {
        let mut options = EpOptions::default();
        assert!(options.takes_attention);
        assert!(options.set("attention", "off").is_ok());
        assert!(!options.takes_attention);
        assert!(options.set("attention", "on").is_ok());
        assert!(options.takes_attention);
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
            "KvscatterExecutionProvider has no option threads, its only option is attention"
        );
    }
}
