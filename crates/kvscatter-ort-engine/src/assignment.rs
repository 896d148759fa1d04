//! Which kernels compute which nodes of a session.

use std::ffi::{CStr, c_char};
use std::{ptr, slice};

use kvscatter_session::GroupQueryNodes;
use ort::AsPointer;
use ort::session::Session;
use ort::sys::OrtStatusPtr;

use crate::plugin::PROVIDER;

/// The option of a session that lets it keep this.
pub(crate) const RECORDED: (&str, &str) = ("session.record_ep_graph_assignment_info", "1");

/// A function that sets a list of an object: the address of its first element, and the number of elements.
type ListFn<O, T> = unsafe extern "system" fn(*const O, *mut *const *const T, *mut usize) -> OrtStatusPtr;

/// A function that sets a string of an object.
type TextFn<O> = unsafe extern "system" fn(*const O, *mut *const c_char) -> OrtStatusPtr;

/// Returns which kernels compute the nodes of `GroupQueryAttention`, or `None` if there is no such node. The session
/// must have the option [`RECORDED`].
pub(crate) fn group_query_nodes(session: &Session) -> Result<Option<GroupQueryNodes>, ort::Error> {
    let api = ort::api();
    let mut of_session = GroupQueryNodes { nodes: 0, in_plugin: 0 };
    // SAFETY: The function is ONNX Runtime's, and the session exists.
    let parts = unsafe { list(api.Session_GetEpGraphAssignmentInfo, session.ptr()) }?;
    for &part in parts {
        // SAFETY: The function is ONNX Runtime's. `part` is a part of the session and lives as long.
        let provider = unsafe { text(api.EpAssignedSubgraph_GetEpName, part) }?;
        // SAFETY: The function is ONNX Runtime's. `part` is a part of the session and lives as long.
        let nodes = unsafe { list(api.EpAssignedSubgraph_GetNodes, part) }?;
        for &node in nodes {
            // SAFETY: The function is ONNX Runtime's. `node` is a part of the session and lives as long.
            let domain = unsafe { text(api.EpAssignedNode_GetDomain, node) }?;
            // SAFETY: The function is ONNX Runtime's. `node` is a part of the session and lives as long.
            let operator = unsafe { text(api.EpAssignedNode_GetOperatorType, node) }?;
            if (domain, operator) == (c"com.microsoft", c"GroupQueryAttention") {
                of_session.nodes += 1;
                of_session.in_plugin += usize::from(provider.to_bytes() == PROVIDER.as_bytes());
            }
        }
    }
    Ok((of_session.nodes > 0).then_some(of_session))
}

/// Returns a list of an object.
///
/// # Safety
/// `set` is a function of ONNX Runtime, whose list lives as long as the object. The object lives for `'o`.
unsafe fn list<'o, O, T>(set: ListFn<O, T>, object: *const O) -> Result<&'o [*const T], ort::Error> {
    let (mut first, mut len) = (ptr::null(), 0);
    // SAFETY: The object exists, by this function's contract. The two variables take the results.
    let status = unsafe { set(object, &raw mut first, &raw mut len) };
    // SAFETY: The call above returned `status`, and nothing else uses it.
    unsafe { ort::Error::result_from_status(status) }?;
    if first.is_null() {
        return Ok(&[]);
    }
    // SAFETY: The function has set the address of `len` elements, which live for `'o` by this function's contract.
    Ok(unsafe { slice::from_raw_parts(first, len) })
}

/// Returns a string of an object.
///
/// # Safety
/// `set` is a function of ONNX Runtime, whose string lives as long as the object. The object lives for `'o`.
unsafe fn text<'o, O>(set: TextFn<O>, object: *const O) -> Result<&'o CStr, ort::Error> {
    let mut text = ptr::null();
    // SAFETY: The object exists, by this function's contract. `text` takes the result.
    let status = unsafe { set(object, &raw mut text) };
    // SAFETY: The call above returned `status`, and nothing else uses it.
    unsafe { ort::Error::result_from_status(status) }?;
    if text.is_null() {
        return Ok(c"");
    }
    // SAFETY: The function has set a string, which ends in a zero byte and lives for `'o` by this function's contract.
    Ok(unsafe { CStr::from_ptr(text) })
}
