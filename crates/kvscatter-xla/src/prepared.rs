//! Keeps the last writes that each thread has prepared. XLA makes the same calls at each step of a program.
//!
//! The plugin of ONNX Runtime (`recent.rs` in `kvscatter-ort`) knows which operator a call is for, and has a list for
//! each. A handler of XLA knows only the call.

use core::cell::RefCell;
use core::ffi::c_int;
use std::rc::Rc;

use kvscatter::Prepared;

use crate::status::Failure;

/// What the preparation of a write depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form<'f> {
    /// The number that XLA gives the element type.
    pub(crate) element: c_int,
    pub(crate) past: &'f [i64],
    pub(crate) update: &'f [i64],
    pub(crate) axis: i64,
    pub(crate) mode: &'f str,
    pub(crate) skips: bool,
}

/// A form that owns its lists.
struct Owned {
    element: c_int,
    past: Box<[i64]>,
    update: Box<[i64]>,
    axis: i64,
    mode: Box<str>,
    skips: bool,
}

impl Owned {
    fn form(&self) -> Form<'_> {
        let Self { element, ref past, ref update, axis, ref mode, skips } = *self;
        Form { element, past, update, axis, mode, skips }
    }
}

/// A program has a few forms: keys and values of full and of sliding layers, a prompt and a token. More are
/// prepared again.
const KEPT: usize = 16;

thread_local! {
    /// The form that was prepared last is at the end.
    static LAST: RefCell<Vec<(Owned, Rc<Prepared>)>> = const { RefCell::new(Vec::new()) };
}

/// Returns what an earlier call of this thread has prepared, or prepares it.
pub(crate) fn prepared(
    form: Form<'_>,
    prepare: impl FnOnce() -> Result<Prepared, Failure>,
) -> Result<Rc<Prepared>, Failure> {
    LAST.with_borrow_mut(|kept| {
        if let Some((_, write)) = kept.iter().rev().find(|(owned, _)| owned.form() == form) {
            return Ok(Rc::clone(write));
        }
        let write = Rc::new(prepare()?);
        let Form { element, past, update, axis, mode, skips } = form;
        let owned =
            Owned { element, past: past.into(), update: update.into(), axis, mode: mode.into(), skips };
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((owned, Rc::clone(&write)));
        Ok(write)
    })
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;
    use kvscatter::spec::onnx::TensorScatter;

    use super::{Form, KEPT, LAST, prepared};

    #[test]
    fn more_forms_than_are_kept_are_prepared_again() {
        let mut count = 0;
        for slots in (1..=KEPT as i64 + 1).chain([1, KEPT as i64]) {
            let form = Form {
                element: 1,
                past: &[2, slots],
                update: &[2, 1],
                axis: 1,
                mode: "linear",
                skips: false,
            };
            let write = prepared(form, || {
                count += 1;
                let shape = [2, usize::try_from(slots).unwrap()];
                Ok(TensorScatter::new().axis(1).prepare(ElementType::Bool, &shape, &[2, 1])?)
            });
            assert_eq!(write.unwrap().geometry().capacity() as i64, slots);
        }
        // Form `KEPT + 1` took the place of form 1, so form 1 is prepared twice. Form `KEPT` is still there.
        assert_eq!(count, KEPT + 2);
        assert_eq!(LAST.with_borrow(Vec::len), KEPT);
    }
}
