//! A graph whose nodes are connected by the names of their values. Each name has a number.

use core::ptr::null;
use std::collections::{HashMap, HashSet};

use ort_sys::{OrtGraph, OrtStatusPtr, OrtValueInfo};

use crate::graph_node::{GraphNode, NamedValue};
use crate::input::{InputTensor, Named};
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
    /// The numbers of the values by their names.
    pub(crate) values: HashMap<String, usize>,
    /// The runtime's objects of the values.
    raw: Vec<*const OrtValueInfo>,
    runtime: RuntimeApi,
    producers: HashMap<usize, usize>,
    /// The nodes that read each value. A node that reads it twice is there twice.
    readers: HashMap<usize, Vec<usize>>,
    pub(crate) inputs: HashSet<usize>,
    pub(crate) outputs: HashSet<usize>,
}

/// A node, and the numbers of its inputs and outputs, of which some may be absent.
pub(crate) struct NamedNode<'a> {
    pub(crate) node: GraphNode<'a>,
    inputs: Vec<Option<usize>>,
    pub(crate) outputs: Vec<Option<usize>>,
}

impl NamedNode<'_> {
    /// Returns an input, if the node has it.
    pub(crate) fn input(&self, index: usize) -> Option<usize> {
        self.inputs.get(index).copied().flatten()
    }

    /// Returns the only output.
    pub(crate) fn output(&self) -> Option<usize> {
        match *self.outputs {
            [output] => output,
            _ => None,
        }
    }
}

impl<'a> NamedGraph<'a> {
    /// Reads a graph.
    ///
    /// # Safety
    /// `graph` is an object of the runtime that is valid for `'a`.
    pub(crate) unsafe fn read(runtime: RuntimeApi, graph: *const OrtGraph) -> Result<Self, CallError> {
        let api = runtime.api;
        // SAFETY: `graph` is valid by this function's contract, and `out` takes the result (R1).
        let count = |out| unsafe { (api.Graph_GetNumNodes)(graph, out) };
        // SAFETY: `graph` is valid by this function's contract, and `out` has room for `count` results (R1).
        let raw =
            runtime.addresses(count, |out, count| unsafe { (api.Graph_GetNodes)(graph, out, count) })?;
        let (mut nodes, mut producers) = (Vec::with_capacity(raw.len()), HashMap::new());
        let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
        let (mut values, mut objects, mut has_unique_names) = (HashMap::new(), Vec::new(), true);
        let mut number = |NamedValue { name, raw }: NamedValue| {
            if name.is_empty() {
                return None;
            }
            let number = *values.entry(name).or_insert(objects.len());
            if number == objects.len() {
                objects.push(raw);
            }
            has_unique_names &= objects.get(number) == Some(&raw);
            Some(number)
        };
        for (index, raw) in raw.into_iter().enumerate() {
            // SAFETY: `raw` is a part of `graph`, which is valid for `'a` by this function's contract.
            let node = unsafe { GraphNode::new(runtime, raw) };
            let mut numbers = |values: Vec<NamedValue>| values.into_iter().map(&mut number).collect();
            let (inputs, implicit): (Vec<_>, Vec<_>) =
                (numbers(node.named_inputs()?), numbers(node.named_implicit_inputs()?));
            let outputs: Vec<_> = numbers(node.named_outputs()?);
            for value in inputs.iter().chain(&implicit).flatten() {
                readers.entry(*value).or_default().push(index);
            }
            producers.extend(outputs.iter().flatten().map(|value| (*value, index)));
            nodes.push(NamedNode { node, inputs, outputs });
        }
        let mut numbers = |count_of: CountFn, list: ListFn| -> Result<HashSet<usize>, CallError> {
            // SAFETY: `graph` is valid by this function's contract, and `out` takes the result (R1).
            let count = |out| unsafe { count_of(graph, out) };
            // SAFETY: `graph` is valid by this function's contract, and `out` has room for `count` results (R1).
            let raw = runtime.addresses(count, |out, count| unsafe { list(graph, out, count) })?;
            // SAFETY: The values are parts of `graph`, which is valid by this function's contract.
            let named = raw.into_iter().map(|value| unsafe { NamedValue::read(runtime, value) });
            named.filter_map(|value| value.map(&mut number).transpose()).collect()
        };
        let inputs = numbers(api.Graph_GetNumInputs, api.Graph_GetInputs)?;
        let outputs = numbers(api.Graph_GetNumOutputs, api.Graph_GetOutputs)?;
        Ok(Self {
            has_unique_names,
            nodes,
            values,
            raw: objects,
            runtime,
            producers,
            readers,
            inputs,
            outputs,
        })
    }

    /// Returns the tensor of a value that is a constant of the model.
    pub(crate) fn constant(&self, value: usize) -> Result<Option<InputTensor<'a, Named>>, CallError> {
        let Self { runtime, raw, .. } = self;
        let Some(&raw) = raw.get(value) else { return Ok(None) };
        // SAFETY: `raw` is a part of the graph, which is valid for `'a` by the contract of `read`, and `out` takes the
        // result (R1).
        let is_constant = |out| unsafe { (runtime.api.ValueInfo_IsConstantInitializer)(raw, out) };
        if !runtime.result(false, is_constant)? {
            return Ok(None);
        }
        // SAFETY: As before.
        let tensor = |out| unsafe { (runtime.api.ValueInfo_GetInitializerValue)(raw, out) };
        let tensor = runtime.result(null(), tensor)?;
        if tensor.is_null() {
            return Ok(None);
        }
        // SAFETY: `tensor` is a part of `raw`, which lives as long as the graph (R5).
        unsafe { InputTensor::new(*runtime, Named("a constant"), tensor) }.map(Some)
    }

    /// Returns the number of the node that computes a value.
    pub(crate) fn producer(&self, value: usize) -> Option<usize> {
        self.producers.get(&value).copied()
    }

    /// Returns whether each of these nodes reads a value once, nothing else reads it, and it is no output of the graph.
    pub(crate) fn is_read_only_by(&self, value: usize, nodes: &[usize]) -> bool {
        let readers = self.readers.get(&value).map_or(&[][..], Vec::as_slice);
        !self.outputs.contains(&value)
            && readers.len() == nodes.len()
            && nodes.iter().all(|node| readers.contains(node))
    }

    /// Returns the number of the only node that reads a value, if the value is no output of the graph.
    pub(crate) fn only_reader(&self, value: usize) -> Option<usize> {
        match self.readers.get(&value).map(Vec::as_slice) {
            Some(&[reader]) if !self.outputs.contains(&value) => Some(reader),
            _ => None,
        }
    }

    /// Returns whether a value is read once.
    pub(crate) fn is_read_once(&self, value: usize) -> bool {
        self.readers.get(&value).is_some_and(|readers| readers.len() == 1)
    }
}
