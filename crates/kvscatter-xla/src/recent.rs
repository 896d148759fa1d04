//! The last calls that a thread has prepared. XLA makes the same calls at each step of a program.
//!
//! The plugin of ONNX Runtime (`recent.rs` in `kvscatter-ort-plugin`) knows which operator a call is for, and has a
//! list for each. A handler of XLA knows only the call.

use std::rc::Rc;

/// Prepared values, each with the form that it was prepared for. The last one is at the end.
pub(crate) struct Recent<F, V>(Vec<(F, Rc<V>)>);

/// A program has a few forms: keys and values of full and of sliding layers, a prompt and a token. More are
/// prepared again.
pub(crate) const KEPT: usize = 16;

impl<F, V> Recent<F, V> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the value with a form for which `is_same` returns `true`.
    pub(crate) fn find(&self, is_same: impl Fn(&F) -> bool) -> Option<Rc<V>> {
        self.0.iter().rev().find(|(form, _)| is_same(form)).map(|(_, value)| Rc::clone(value))
    }

    /// Keeps a value in the place of the oldest one, if there are [`KEPT`].
    pub(crate) fn keep(&mut self, form: F, value: V) -> Rc<V> {
        if self.0.len() == KEPT {
            self.0.remove(0);
        }
        let value = Rc::new(value);
        self.0.push((form, Rc::clone(&value)));
        value
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
