//! Keeps the last writes that each thread has prepared. XLA makes the same calls at each step of a program.
//!
//! The plugin of ONNX Runtime (`recent.rs` in `kvscatter-ort-plugin`) knows which operator a call is for, and has a
//! list for each. A handler of XLA knows only the call.

use core::cell::RefCell;
use core::ffi::c_int;
use std::borrow::Cow;
use std::rc::Rc;

use kvscatter::{Mode, Prepared};

use crate::status::CallError;

/// What the preparation of a write depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form<'f> {
    /// The number that XLA gives the element type.
    pub(crate) element: c_int,
    pub(crate) past: Cow<'f, [i64]>,
    pub(crate) update: Cow<'f, [i64]>,
    pub(crate) axis: i64,
    pub(crate) mode: Mode,
    pub(crate) skips: bool,
}

impl Form<'_> {
    fn into_owned(self) -> Form<'static> {
        let [past, update] = [self.past, self.update].map(|dims| Cow::Owned(dims.into_owned()));
        Form { past, update, ..self }
    }
}

/// A program has a few forms: keys and values of full and of sliding layers, a prompt and a token. More are
/// prepared again.
const KEPT: usize = 16;

thread_local! {
    /// The form that was prepared last is at the end.
    static LAST: RefCell<Vec<(Form<'static>, Rc<Prepared>)>> = const { RefCell::new(Vec::new()) };
}

/// Returns what an earlier call of this thread has prepared, or prepares it.
pub(crate) fn prepared(
    form: Form<'_>,
    prepare: impl FnOnce(&Form<'_>) -> Result<Prepared, CallError>,
) -> Result<Rc<Prepared>, CallError> {
    LAST.with_borrow_mut(|kept| {
        if let Some((_, write)) = kept.iter().rev().find(|(known, _)| *known == form) {
            return Ok(Rc::clone(write));
        }
        let write = Rc::new(prepare(&form)?);
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((form.into_owned(), Rc::clone(&write)));
        Ok(write)
    })
}

#[cfg(test)]
mod tests {
    use kvscatter::spec::onnx::TensorScatter;
    use kvscatter::{ElementType, Mode};

    use super::{Form, KEPT, LAST, prepared};

    #[test]
    fn more_forms_than_are_kept_are_prepared_again() {
        let mut count = 0;
        for slots in (1..=KEPT as i64 + 1).chain([1, KEPT as i64]) {
            let form = Form {
                element: 1,
                past: vec![2, slots].into(),
                update: vec![2, 1].into(),
                axis: 1,
                mode: Mode::Linear,
                skips: false,
            };
            let write = prepared(form, |_| {
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
