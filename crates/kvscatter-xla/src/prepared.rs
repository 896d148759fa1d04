//! Keeps the last writes that each thread has prepared.

use core::cell::RefCell;
use core::ffi::c_int;
use std::borrow::Cow;
use std::rc::Rc;

use kvscatter::{Mode, Prepared};

use crate::recent::Recent;
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

thread_local! {
    static LAST: RefCell<Recent<Form<'static>, Prepared>> = const { RefCell::new(Recent::new()) };
}

/// Returns what an earlier call of this thread has prepared, or prepares it.
pub(crate) fn prepared(
    form: Form<'_>,
    prepare: impl FnOnce(&Form<'_>) -> Result<Prepared, CallError>,
) -> Result<Rc<Prepared>, CallError> {
    LAST.with_borrow_mut(|last| {
        if let Some(write) = last.find(|known| *known == form) {
            return Ok(write);
        }
        let write = prepare(&form)?;
        Ok(last.keep(form.into_owned(), write))
    })
}

#[cfg(test)]
mod tests {
    use kvscatter::spec::onnx::TensorScatter;
    use kvscatter::{ElementType, Mode};

    use super::{Form, LAST, prepared};
    use crate::recent::{KEPT, Recent};

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
        assert_eq!(LAST.with_borrow(Recent::len), KEPT);
    }
}
