//! A graph whose nodes are connected by the names of their values.
//!
//! The conditions R1 to R6 that comments cite are defined in the crate's documentation.

use core::ptr::null;
use std::collections::{HashMap, HashSet};

use ort_sys::{OrtGraph, OrtStatusPtr, OrtValueInfo};

use crate::graph_node::{GraphNode, NamedValue};
use crate::runtime::RuntimeApi;
use crate::status::CallError;

/// A function of the runtime that counts the inputs or the outputs of a graph.
type CountFn = unsafe extern "system" fn(*const OrtGraph, *mut usize) -> OrtStatusPtr;

/// A function of the runtime that lists the inputs or the outputs of a graph.
type ListFn = unsafe extern "system" fn(*const OrtGraph, *mut *const OrtValueInfo, usize) -> OrtStatusPtr;

/// The nodes of a graph, and which of them write and read each value.
pub(crate) struct NamedGraph<'a> {
    /// Whether all values have different names. Otherwise names say nothing about them.
    pub(crate) has_unique_names: bool,
    pub(crate) nodes: Vec<NamedNode<'a>>,
    producers: HashMap<String, usize>,
    /// The nodes that read each value. A node that reads it twice is there twice.
    readers: HashMap<String, Vec<usize>>,
    pub(crate) inputs: HashSet<String>,
    pub(crate) outputs: HashSet<String>,
}

/// A node, and the names of its inputs and outputs.
pub(crate) struct NamedNode<'a> {
    pub(crate) node: GraphNode<'a>,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
}

impl NamedNode<'_> {
    /// Returns the name of an input, if the node has it.
    pub(crate) fn input(&self, index: usize) -> Option<&String> {
        self.inputs.get(index).filter(|name| !name.is_empty())
    }

    /// Returns the name of the only output.
    pub(crate) fn output(&self) -> Option<&String> {
        match &*self.outputs {
            [name] if !name.is_empty() => Some(name),
            _ => None,
        }
    }
}

impl<'a> NamedGraph<'a> {
    /// Reads a graph.
    ///
    /// # Errors
    /// Returns the status of a function of the runtime that fails.
    ///
    /// # Safety
    /// `graph` is an object of the runtime that is valid for `'a`.
    pub(crate) unsafe fn read(runtime: RuntimeApi, graph: *const OrtGraph) -> Result<Self, CallError> {
        let api = runtime.api;
        let mut count = 0;
        // SAFETY: `graph` is valid by this function's contract, and `count` takes the result (R1).
        runtime.check(unsafe { (api.Graph_GetNumNodes)(graph, &raw mut count) })?;
        let mut raw = vec![null(); count];
        // SAFETY: `graph` is valid by this function's contract, and `raw` has room for `count` results (R1).
        runtime.check(unsafe { (api.Graph_GetNodes)(graph, raw.as_mut_ptr(), count) })?;
        let (mut nodes, mut producers) = (Vec::with_capacity(count), HashMap::new());
        let mut readers: HashMap<String, Vec<usize>> = HashMap::new();
        let (mut addresses, mut has_unique_names) = (HashMap::new(), true);
        let mut name_of = |NamedValue { name, address }: NamedValue| {
            has_unique_names &= *addresses.entry(name.clone()).or_insert(address) == address;
            name
        };
        for (index, raw) in raw.into_iter().enumerate() {
            // SAFETY: `raw` is a part of `graph`, which is valid for `'a` by this function's contract.
            let node = unsafe { GraphNode::new(runtime, raw) };
            let mut names = |values: Vec<NamedValue>| values.into_iter().map(&mut name_of).collect();
            let (inputs, implicit): (Vec<_>, Vec<_>) =
                (names(node.named_inputs()?), names(node.named_implicit_inputs()?));
            let outputs: Vec<String> = names(node.named_outputs()?);
            for name in inputs.iter().chain(&implicit) {
                readers.entry(name.clone()).or_default().push(index);
            }
            producers.extend(outputs.iter().map(|name| (name.clone(), index)));
            nodes.push(NamedNode { node, inputs, outputs });
        }
        let mut names = |count_of: CountFn, list: ListFn| -> Result<HashSet<String>, CallError> {
            let mut count = 0;
            // SAFETY: `graph` is valid by this function's contract, and `count` takes the result (R1).
            runtime.check(unsafe { count_of(graph, &raw mut count) })?;
            let mut values = vec![null(); count];
            // SAFETY: `graph` is valid by this function's contract, and `values` has room for `count` results (R1).
            runtime.check(unsafe { list(graph, values.as_mut_ptr(), count) })?;
            // SAFETY: The values are parts of `graph`, which is valid by this function's contract.
            let values = values.into_iter().map(|value| unsafe { NamedValue::read(runtime, value) });
            values.map(|value| value.map(&mut name_of)).collect()
        };
        let inputs = names(api.Graph_GetNumInputs, api.Graph_GetInputs)?;
        let outputs = names(api.Graph_GetNumOutputs, api.Graph_GetOutputs)?;
        Ok(Self { has_unique_names, nodes, producers, readers, inputs, outputs })
    }

    /// Returns the number of the node that computes a value.
    pub(crate) fn producer(&self, name: &str) -> Option<usize> {
        self.producers.get(name).copied()
    }

    /// Returns the number of the only node that reads a value, if the value is no output of the graph.
    pub(crate) fn only_reader(&self, name: &str) -> Option<usize> {
        match self.readers.get(name).map(Vec::as_slice) {
            Some(&[reader]) if !self.outputs.contains(name) => Some(reader),
            _ => None,
        }
    }

    /// Returns whether a value is read once.
    pub(crate) fn is_read_once(&self, name: &str) -> bool {
        self.readers.get(name).is_some_and(|readers| readers.len() == 1)
    }
}
