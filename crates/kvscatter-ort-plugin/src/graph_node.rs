//! Reads a node of a graph that the runtime offers to the execution provider.

use core::ffi::{CStr, c_char};
use core::marker::PhantomData;
use core::ptr::null;

use kvscatter_attention::{AttributeValue, GroupQuery};
use ort_sys::{OrtNode, OrtOpAttr, OrtOpAttrType, OrtStatusPtr, OrtValueInfo};

use crate::node::{Attributes, decode, mistyped};
use crate::runtime::RuntimeApi;
use crate::status::CallError;
use crate::sys::ONNX_DOMAIN;
use crate::tensor_info::TensorInfo;

/// A node of a graph.
pub(crate) struct GraphNode<'a> {
    runtime: RuntimeApi,
    raw: *const OrtNode,
    call: PhantomData<&'a ()>,
}

/// A function of the runtime that returns a string of a node.
type TextFn = unsafe extern "system" fn(*const OrtNode, *mut *const c_char) -> OrtStatusPtr;

/// A function of the runtime that counts the inputs or the outputs of a node.
type CountFn = unsafe extern "system" fn(*const OrtNode, *mut usize) -> OrtStatusPtr;

/// A function of the runtime that lists the inputs or the outputs of a node.
type ListFn = unsafe extern "system" fn(*const OrtNode, *mut *const OrtValueInfo, usize) -> OrtStatusPtr;

impl<'a> GraphNode<'a> {
    /// Creates a node from that of the runtime.
    ///
    /// # Safety
    /// `raw` is valid for `'a` (R2).
    pub(crate) unsafe fn new(runtime: RuntimeApi, raw: *const OrtNode) -> Self {
        Self { runtime, raw, call: PhantomData }
    }

    /// Returns the node of the runtime.
    pub(crate) fn as_ptr(&self) -> *const OrtNode {
        self.raw
    }

    /// Returns whether the operator is this one of ONNX's domain.
    pub(crate) fn is(&self, operator: &CStr) -> Result<bool, CallError> {
        // SAFETY: The function returns a string of the node (R5).
        let domain = unsafe { self.text(self.runtime.api.Node_GetDomain) }?;
        Ok(self.operator()? == operator && (domain == ONNX_DOMAIN || domain == c"ai.onnx"))
    }

    /// Returns the name of the operator.
    pub(crate) fn operator(&self) -> Result<&'a CStr, CallError> {
        // SAFETY: The function returns a string of the node (R5).
        unsafe { self.text(self.runtime.api.Node_GetOperatorType) }
    }

    /// Returns whether the runtime has given the node to another provider than `ours`.
    pub(crate) fn is_of_another_provider(&self, ours: &CStr) -> Result<bool, CallError> {
        // SAFETY: The function returns NULL or a string of the node (R5).
        let name = unsafe { self.text(self.runtime.api.Node_GetEpName) }?;
        Ok(!name.is_empty() && name != ours)
    }

    /// Returns a string of the node, which is empty if the runtime has none.
    ///
    /// # Safety
    /// `read` is a function of the runtime that returns NULL or a string of a node.
    unsafe fn text(&self, read: TextFn) -> Result<&'a CStr, CallError> {
        // SAFETY: `self.raw` is valid by the contract of `new`, and `out` takes the result (R1).
        let text = self.runtime.result(null(), |out| unsafe { read(self.raw, out) })?;
        if text.is_null() {
            return Ok(c"");
        }
        // SAFETY: `text` is a string of the node, which ends in a zero byte and lives as long as the node (R5).
        Ok(unsafe { CStr::from_ptr(text) })
    }

    /// Returns the types and shapes of the inputs. They are unknown for an absent input.
    pub(crate) fn inputs(&self) -> Result<Vec<TensorInfo>, CallError> {
        let Self { runtime, .. } = *self;
        let inputs = self.values(runtime.api.Node_GetNumInputs, runtime.api.Node_GetInputs)?;
        inputs.into_iter().map(|input| self.tensor_info(input)).collect()
    }

    /// Returns whether the node has each output.
    pub(crate) fn outputs(&self) -> Result<Vec<bool>, CallError> {
        let Self { runtime, .. } = *self;
        let outputs = self.values(runtime.api.Node_GetNumOutputs, runtime.api.Node_GetOutputs)?;
        Ok(outputs.into_iter().map(|output| !output.is_null()).collect())
    }

    /// Returns the inputs, which have an empty name if they are absent.
    pub(crate) fn named_inputs(&self) -> Result<Vec<NamedValue>, CallError> {
        let api = self.runtime.api;
        self.named(api.Node_GetNumInputs, api.Node_GetInputs)
    }

    /// Returns the values that the node's subgraphs read.
    pub(crate) fn named_implicit_inputs(&self) -> Result<Vec<NamedValue>, CallError> {
        let api = self.runtime.api;
        self.named(api.Node_GetNumImplicitInputs, api.Node_GetImplicitInputs)
    }

    /// Returns the outputs, which have an empty name if they are absent.
    pub(crate) fn named_outputs(&self) -> Result<Vec<NamedValue>, CallError> {
        let api = self.runtime.api;
        self.named(api.Node_GetNumOutputs, api.Node_GetOutputs)
    }

    fn named(&self, count_of: CountFn, list: ListFn) -> Result<Vec<NamedValue>, CallError> {
        // SAFETY: The values are parts of the node, which is valid by the contract of `new`.
        self.values(count_of, list)?
            .into_iter()
            .map(|value| unsafe { NamedValue::read(self.runtime, value) })
            .collect()
    }

    /// Returns the string attribute of this name, if the node has it and it is short. Returns an error if the attribute
    /// is not a string, or longer than 15 bytes.
    pub(crate) fn short_string(&self, name: &CStr) -> Result<Option<String>, CallError> {
        let read =
            self.sized_attribute::<[u8; 16]>(name, OrtOpAttrType::ORT_OP_ATTR_STRING, "a short string")?;
        Ok(read.map(|(bytes, size)| decode(bytes.get(..size).unwrap_or(&bytes))))
    }

    /// Returns the first four integers of the attribute of this name, if the node has it and it has no more. Returns an
    /// error if the attribute has another type or more integers.
    pub(crate) fn four_integers(&self, name: &CStr) -> Result<Option<[i64; 4]>, CallError> {
        self.attribute(name, OrtOpAttrType::ORT_OP_ATTR_INTS, "four integers")
    }

    /// Returns the inputs or the outputs, with NULL for an absent one.
    fn values(&self, count_of: CountFn, list: ListFn) -> Result<Vec<*const OrtValueInfo>, CallError> {
        // SAFETY: `self.raw` is valid by the contract of `new`, and `out` takes the result (R1).
        let count = |out| unsafe { count_of(self.raw, out) };
        // SAFETY: `self.raw` is valid by the contract of `new`, and `out` has room for `count` results (R1).
        self.runtime.addresses(count, |out, count| unsafe { list(self.raw, out, count) })
    }

    /// Returns the names and values of all attributes. A string that is longer than 15 bytes has no value.
    pub(crate) fn attributes(&self) -> Result<Vec<(String, AttributeValue<'static>)>, CallError> {
        let Self { runtime, raw, .. } = *self;
        let api = runtime.api;
        // SAFETY: `raw` is valid by the contract of `new`, and `out` takes the result (R1).
        let count = |out| unsafe { (api.Node_GetNumAttributes)(raw, out) };
        // SAFETY: `raw` is valid by the contract of `new`, and `out` has room for `count` results (R1).
        let list = |out, count| unsafe { (api.Node_GetAttributes)(raw, out, count) };
        let attributes: Vec<*const OrtOpAttr> = runtime.addresses(count, list)?;
        let read = |attribute: *const OrtOpAttr| {
            // SAFETY: `attribute` is a part of the node, which is valid (R2), and `out` takes the result (R1).
            let name = runtime.result(null(), |out| unsafe { (api.OpAttr_GetName)(attribute, out) })?;
            // SAFETY: `name` is a string of the attribute, which ends in a zero byte and lives as long (R5).
            let name = unsafe { CStr::from_ptr(name) };
            let value = match (self.integer(name), self.float(name), self.short_string(name)) {
                (Ok(Some(value)), ..) => AttributeValue::Int(value),
                (_, Ok(Some(value)), _) => AttributeValue::Float(value),
                (.., Ok(Some(value))) => {
                    // These are the only strings that a node that is taken may have.
                    let known = GroupQuery::QUANT_TYPES.into_iter().find(|known| *known == value);
                    known.map_or(AttributeValue::Other, AttributeValue::String)
                }
                _ => AttributeValue::Other,
            };
            Ok((name.to_string_lossy().into_owned(), value))
        };
        attributes.into_iter().map(read).collect()
    }

    fn tensor_info(&self, value: *const OrtValueInfo) -> Result<TensorInfo, CallError> {
        let Self { runtime, .. } = *self;
        if value.is_null() {
            return Ok(TensorInfo::default());
        }
        // SAFETY: `value` is a part of the node, which is valid (R2), and `out` takes the result (R1).
        let info = runtime.result(null(), |out| unsafe { (runtime.api.GetValueInfoTypeInfo)(value, out) })?;
        // SAFETY: `info` is a part of `value`, which lives as long as the node (R5).
        unsafe { TensorInfo::from_type(runtime, info) }
    }

    /// Reads the attribute of this name, which has `size_of::<T>()` bytes if it is of this type.
    fn attribute<T: Default>(
        &self,
        name: &CStr,
        kind: OrtOpAttrType,
        words: &str,
    ) -> Result<Option<T>, CallError> {
        Ok(self.sized_attribute(name, kind, words)?.map(|(value, _)| value))
    }

    /// Reads the attribute of this name, which has at most `size_of::<T>()` bytes if it is of this type. Also returns
    /// their number, which includes the NUL after a string.
    fn sized_attribute<T: Default>(
        &self,
        name: &CStr,
        kind: OrtOpAttrType,
        words: &str,
    ) -> Result<Option<(T, usize)>, CallError> {
        let Self { runtime, raw, .. } = *self;
        let mut attribute: *const OrtOpAttr = null();
        // SAFETY: `raw` is valid by the contract of `new`, and `attribute` takes the result (R1).
        let status = unsafe { (runtime.api.Node_GetAttributeByName)(raw, name.as_ptr(), &raw mut attribute) };
        // The runtime returns an error for an attribute that the operator does not have.
        if runtime.check(status).is_err() || attribute.is_null() {
            return Ok(None);
        }
        let (mut value, mut bytes) = (T::default(), 0);
        // SAFETY: `attribute` is a part of the node. `value` has the size that is given beside its address, and
        // `bytes` takes the size of the attribute (R1).
        let status = unsafe {
            (runtime.api.ReadOpAttr)(attribute, kind, (&raw mut value).cast(), size_of::<T>(), &raw mut bytes)
        };
        runtime.check(status).map_err(|_| mistyped(name, words))?;
        Ok(Some((value, bytes)))
    }
}

/// A value of a graph.
pub(crate) struct NamedValue {
    /// The name, which ends before the first zero byte and has U+FFFD in place of what is not UTF-8. So two values may
    /// have the same.
    pub(crate) name: String,
    /// The runtime's object, whose address differs from those of the other values of the graph.
    pub(crate) raw: *const OrtValueInfo,
}

impl NamedValue {
    /// Reads a value, which has an empty name if it is NULL.
    ///
    /// # Safety
    /// `value` is NULL, or an object of the runtime that is valid until this returns.
    pub(crate) unsafe fn read(runtime: RuntimeApi, value: *const OrtValueInfo) -> Result<Self, CallError> {
        if value.is_null() {
            return Ok(Self { name: String::new(), raw: value });
        }
        // SAFETY: `value` is valid by this function's contract, and `out` takes the result (R1).
        let name = runtime.result(null(), |out| unsafe { (runtime.api.GetValueInfoName)(value, out) })?;
        // SAFETY: `name` is a string of `value`, which ends in a zero byte and lives as long as `value` (R5).
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        Ok(Self { name, raw: value })
    }
}

impl Attributes for GraphNode<'_> {
    fn integer(&self, name: &CStr) -> Result<Option<i64>, CallError> {
        self.attribute(name, OrtOpAttrType::ORT_OP_ATTR_INT, "an integer")
    }

    fn float(&self, name: &CStr) -> Result<Option<f32>, CallError> {
        self.attribute(name, OrtOpAttrType::ORT_OP_ATTR_FLOAT, "a number")
    }
}
