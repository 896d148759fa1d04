//! Labels that identify a node in a report or an error.

use std::fmt;

/// A label that identifies a node by its index, name, operator, domain and the domain's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLabel {
    /// The index among the graph's nodes, from 0.
    pub index: usize,
    /// The name of the node, which may be empty.
    pub name: String,
    /// The name of the operator.
    pub op_type: String,
    /// The operator's domain. The default domain is `ai.onnx`.
    pub domain: String,
    /// The version of the domain's operator set that the model imports, or `None` if the model does not
    /// import it.
    pub version: Option<i64>,
}

/// The alternate form (`{:#}`) is for use in a sentence. It has no domain and version.
impl fmt::Display for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.index)?;
        if !self.name.is_empty() {
            write!(f, " {:?}", self.name)?;
        }
        write!(f, " ({}", self.op_type.escape_debug())?;
        if !f.alternate() {
            write!(f, ", domain {}", self.domain.escape_debug())?;
            if let Some(version) = self.version {
                write!(f, ", version {version}")?;
            }
        }
        f.write_str(")")
    }
}
