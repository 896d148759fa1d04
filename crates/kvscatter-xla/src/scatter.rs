//! Reads the tensors and the options of a call, the same for every platform.

use core::ffi::c_int;
use std::rc::Rc;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{OutOfRange, Prepared};

use crate::call::{Call, Tensor, element_type};
use crate::prepared::{Form, prepared};
use crate::status::CallError;

/// The tensors of a call, and the write with its shapes. Past, update and present have one type, and past and
/// present one shape.
pub(crate) struct Scatter<'f> {
    pub(crate) past: Tensor<'f>,
    pub(crate) update: Tensor<'f>,
    pub(crate) starts: Tensor<'f>,
    pub(crate) lengths: Option<Tensor<'f>>,
    pub(crate) present: Tensor<'f>,
    /// The second result: `skipped` on the CPU, the status on a CUDA device.
    pub(crate) report: Option<Tensor<'f>>,
    /// Whether samples that do not fit are left unchanged.
    pub(crate) skips: bool,
    pub(crate) write: Rc<Prepared>,
}

impl<'f> Scatter<'f> {
    /// # Errors
    /// Returns the errors of the core about shapes, and an error if the program does not make the call as the
    /// crate's documentation describes it.
    pub(crate) fn read(call: &Call<'f>) -> Result<Self, CallError> {
        let (arguments, results) = (call.arguments(), call.results());
        let (Some(past), Some(update), Some(starts), lengths, None) =
            (arguments.get(0)?, arguments.get(1)?, arguments.get(2)?, arguments.get(3)?, arguments.get(4)?)
        else {
            return Err(CallError::program(format!("{} arguments, must be 3 or 4", arguments.len())));
        };
        let (Some(present), report, None) = (results.get(0)?, results.get(1)?, results.get(2)?) else {
            return Err(CallError::program(format!("{} results, must be 1 or 2", results.len())));
        };
        if update.element != past.element || present.element != past.element || present.dims != past.dims {
            return Err(CallError::program(
                "past, update and present differ in type, or past and present in shape",
            ));
        }
        let form = Form {
            element: past.element,
            past: past.dims.into(),
            update: update.dims.into(),
            axis: call.integer("axis")?,
            mode: call.text("mode")?.parse()?,
            skips: call.flag("skips")?,
        };
        let skips = form.skips;
        let write = prepared(form, |form| {
            let out_of_range = if form.skips { OutOfRange::SkipSample } else { OutOfRange::Error };
            let operator = TensorScatter::new().axis(form.axis).mode(form.mode).out_of_range(out_of_range);
            Ok(operator.prepare(element_type(form.element)?, &past.shape()?, &update.shape()?)?)
        })?;
        Ok(Self { past, update, starts, lengths, present, report, skips, write })
    }

    /// Checks the second result: if `is_wanted`, it has this type and this shape, and otherwise it is absent.
    ///
    /// # Errors
    /// Returns an error that describes the result that the call must have.
    pub(crate) fn check_report(
        &self,
        is_wanted: bool,
        element: c_int,
        dims: &[i64],
        what: &str,
    ) -> Result<(), CallError> {
        match self.report {
            None if !is_wanted => Ok(()),
            Some(report) if is_wanted && report.element == element && report.dims == dims => Ok(()),
            _ => Err(CallError::program(format!("there must be a second result {what}"))),
        }
    }

    pub(crate) fn is_in_place(&self) -> bool {
        self.present.data == self.past.data
    }
}
