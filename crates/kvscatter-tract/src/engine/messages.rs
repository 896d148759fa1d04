//! Conversion of tract's errors and panics to one readable line.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use tract_onnx::prelude::{TractError, TractResult};

use crate::error::NodeError;

/// The version of tract that this crate requires exactly.
pub(super) const VERSION: &str = "0.23.9";

/// The maximum length of a message, in characters.
const LONGEST: usize = 400;

/// Calls tract and turns a panic into an error.
///
/// Models are untrusted, and tract may panic on a model that it does not expect. If the closure panics, callers may use
/// the values that it borrowed only in ways that are valid after an interrupted run. Returns tract's message in one
/// line. It begins with the node that failed, if tract names one.
pub(super) fn catch_panics<T>(call: impl FnOnce() -> TractResult<T>) -> Result<T, String> {
    quieten();
    let outside = IS_CATCHING.replace(true);
    let called = catch_unwind(AssertUnwindSafe(call));
    IS_CATCHING.set(outside);
    match called {
        Ok(result) => result.map_err(|error| message(&error)),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(line(&format!("it panicked: {}", words.unwrap_or("no reason given"))))
        }
    }
}

thread_local! {
    /// Whether a panic of this thread becomes an error.
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Prevents panics that become errors from being printed. All other panics are passed to the hook that was
/// installed before.
fn quieten() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_CATCHING.get() {
                others(panic);
            }
        }));
    });
}

/// Returns the engine's name and version for errors.
pub(super) fn label() -> String {
    format!("tract {VERSION}")
}

fn message(error: &TractError) -> String {
    if let Some(node) = error.chain().find_map(|cause| cause.downcast_ref::<NodeError>()) {
        return line(&node.to_string());
    }
    let why = error.root_cause().to_string();
    // The root cause is followed by a dump of tract's data structures, which is removed.
    let why = why.split(" (TurnState(").next().unwrap_or_default().to_owned();
    let named = error.chain().map(ToString::to_string).filter_map(|cause| node(&cause)).last();
    line(&named.map_or(why.clone(), |node| format!("node {node}: {why}")))
}

/// Returns `"name" (operator)` from a message about a node, such as `Evaluating #12 "name" Operator` or
/// `Building node name (Operator)`.
fn node(message: &str) -> Option<String> {
    if let Some(built) = message.strip_prefix("Building node ") {
        let (name, operator) = built.rsplit_once(' ')?;
        return Some(format!("{name:?} {operator}"));
    }
    let (_, rest) = message.split_once('#')?;
    let (number, rest) = rest.split_once(" \"")?;
    number.parse::<usize>().ok()?;
    let (name, rest) = rest.split_once('"')?;
    let operator = rest.split_whitespace().next().unwrap_or_default().trim_end_matches(',');
    Some(if operator.is_empty() { format!("{name:?}") } else { format!("{name:?} ({operator})") })
}

fn line(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::TractError;

    use super::{catch_panics, node};

    #[test]
    fn the_node_is_named_and_the_way_to_it_is_not() {
        assert_eq!(
            node("Translating node #12 \"/model/Add\" Add ToTyped"),
            Some("\"/model/Add\" (Add)".to_owned())
        );
        assert_eq!(node("Building node rotate (Rotary)"), Some("\"rotate\" (Rotary)".to_owned()));
        assert_eq!(node("a file of #1"), None);
        let error =
            TractError::msg("rank 2,\n  not 3").context("Evaluating #3 \"sum\" Add").context("a plan");
        let Err(message) = catch_panics(|| Err::<(), _>(error)) else { panic!("an error") };
        assert_eq!(message, "node \"sum\" (Add): rank 2, not 3");
    }

    #[test]
    fn a_panic_is_an_error() {
        let Err(message) = catch_panics::<()>(|| panic!("index {} out of range", 7)) else {
            panic!("an error")
        };
        assert_eq!(message, "it panicked: index 7 out of range");
    }
}
