//! Formats messages of ONNX Runtime and of the system for our errors.

use std::io;

/// Formats a message of ONNX Runtime in one line, without the source position and the failed condition.
pub(crate) fn one_line(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some((node, message)) = line.split_once(" Status Message: ") else { return line };
    let node = node.trim_start_matches("Non-zero status code returned while running ");
    let message = message.split_once(" was false. ").map_or(message, |(_, message)| message);
    format!("{node}: {message}")
}

/// Formats an error in lower case, without `(os error 2)`.
pub(crate) fn lowercase_message(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    text.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn messages_keep_the_cause_without_the_place_in_the_source() {
        let message = "Non-zero status code returned while running TensorScatter node. Name:'write' Status Message: \
                       /src/tensorscatter.cc:83 virtual Status Compute() wi <= max was false. index 64 is too large\n";
        assert_eq!(one_line(message), "TensorScatter node. Name:'write': index 64 is too large");
        assert_eq!(one_line("Missing Input:\n k"), "Missing Input: k");
    }
}
