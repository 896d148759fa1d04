//! Reads a node of a graph that the runtime offers to the execution provider.
//!
//! The conditions R1 to R6 that comments cite are defined in the crate's documentation.

use core::ffi::CStr;
use core::marker::PhantomData;
use core::ptr::null;

use ort_sys::{OrtNode, OrtOpAttr, OrtOpAttrType, OrtStatusPtr, OrtValueInfo};

use crate::node::{Attributes, mistyped};
use crate::runtime::RuntimeApi;
use crate::status::Failure;
use crate::tensor_info::TensorInfo;

/// A node of a graph.
pub(crate) struct GraphNode<'a> {
    runtime: RuntimeApi,
    raw: *const OrtNode,
    call: PhantomData<&'a ()>,
}

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

    /// Returns the name of the operator.
    ///
    /// # Errors
    /// Returns the status of a function of the runtime that fails.
    pub(crate) fn operator(&self) -> Result<&'a CStr, Failure> {
        let mut name = null();
        // SAFETY: `self.raw` is valid by the contract of `new`, and `name` takes the result (R1).
        self.runtime.check(unsafe { (self.runtime.api.Node_GetOperatorType)(self.raw, &raw mut name) })?;
        // SAFETY: `name` is a string of the node, which ends in a zero byte and lives as long as the node (R5).
        Ok(unsafe { CStr::from_ptr(name) })
    }

    /// Returns the types and shapes of the inputs. They are unknown for an absent input.
    ///
    /// # Errors
    /// Returns the status of a function of the runtime that fails.
    pub(crate) fn inputs(&self) -> Result<Vec<TensorInfo>, Failure> {
        let Self { runtime, .. } = *self;
        let inputs = self.values(runtime.api.Node_GetNumInputs, runtime.api.Node_GetInputs)?;
        inputs.into_iter().map(|input| self.tensor_info(input)).collect()
    }

    /// Returns whether the node has each output.
    ///
    /// # Errors
    /// Returns the status of a function of the runtime that fails.
    pub(crate) fn outputs(&self) -> Result<Vec<bool>, Failure> {
        let Self { runtime, .. } = *self;
        let outputs = self.values(runtime.api.Node_GetNumOutputs, runtime.api.Node_GetOutputs)?;
        Ok(outputs.into_iter().map(|output| !output.is_null()).collect())
    }

    /// Returns the inputs or the outputs, with NULL for an absent one.
    fn values(&self, count_of: CountFn, list: ListFn) -> Result<Vec<*const OrtValueInfo>, Failure> {
        let mut count = 0;
        // SAFETY: `self.raw` is valid by the contract of `new`, and `count` takes the result (R1).
        self.runtime.check(unsafe { count_of(self.raw, &raw mut count) })?;
        let mut values = vec![null(); count];
        // SAFETY: `self.raw` is valid by the contract of `new`, and `values` has room for `count` results (R1).
        self.runtime.check(unsafe { list(self.raw, values.as_mut_ptr(), count) })?;
        Ok(values)
    }

    fn tensor_info(&self, value: *const OrtValueInfo) -> Result<TensorInfo, Failure> {
        let Self { runtime, .. } = *self;
        if value.is_null() {
            return Ok(TensorInfo::default());
        }
        let mut info = null();
        // SAFETY: `value` is a part of the node, which is valid (R2), and `info` takes the result (R1).
        runtime.check(unsafe { (runtime.api.GetValueInfoTypeInfo)(value, &raw mut info) })?;
        let mut tensor = null();
        // SAFETY: `info` is a part of `value` (R5), and `tensor` takes the result (R1).
        runtime.check(unsafe { (runtime.api.CastTypeInfoToTensorInfo)(info, &raw mut tensor) })?;
        if tensor.is_null() {
            return Ok(TensorInfo::default());
        }
        // SAFETY: `tensor` is a part of `info`, which lives as long as the node (R5).
        unsafe { TensorInfo::new(runtime, tensor) }
    }

    /// Reads the attribute of this name, which has `size_of::<T>()` bytes if it is of this type.
    fn attribute<T: Default>(
        &self,
        name: &CStr,
        kind: OrtOpAttrType,
        words: &str,
    ) -> Result<Option<T>, Failure> {
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
        Ok(Some(value))
    }
}

impl Attributes for GraphNode<'_> {
    fn integer(&self, name: &CStr) -> Result<Option<i64>, Failure> {
        self.attribute(name, OrtOpAttrType::ORT_OP_ATTR_INT, "an integer")
    }

    fn float(&self, name: &CStr) -> Result<Option<f32>, Failure> {
        self.attribute(name, OrtOpAttrType::ORT_OP_ATTR_FLOAT, "a number")
    }
}
