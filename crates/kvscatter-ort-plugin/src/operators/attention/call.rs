//! One call of attention, and what is kept for the next call with the same shapes.

use core::ops::Range;
use std::borrow::Cow;

use half::{bf16, f16};
use kvscatter::ElementType;
use kvscatter_attention::{
    Attention, CacheElement, Float, Inputs, Mask, Operand, Outputs, Prepared, Scratch, Shapes, Valid,
};

use super::declaration::Declaration;
use super::memory::{OutputMemory, check_separate};
use crate::context::Context;
use crate::input::InputTensor;
use crate::recent::Signature;
use crate::status::CallError;
use crate::threads::thread_count;

/// The smallest number of multiplications for which a call uses the threads of the session. Between two nodes of a run,
/// these threads do not sleep, unless the session turns spinning off.
pub(crate) const MIN_SHARED: usize = 1 << 16;

/// The inputs of a call.
pub(super) struct Tensors<'a> {
    query: Tensor<'a>,
    key: Tensor<'a>,
    value: Tensor<'a>,
    mask: Option<Tensor<'a>>,
    past: Option<[Tensor<'a>; 2]>,
    lengths: Option<Tensor<'a>>,
}

pub(crate) type Tensor<'a> = InputTensor<'a, Operand>;

impl<'a> Tensors<'a> {
    /// Requests the inputs from the runtime. Returns an error if one of them is missing.
    pub(super) fn read(context: &Context<'a>) -> Result<Self, CallError> {
        let past_key = context.optional_input(4, Operand::PastKey)?;
        let past_value = context.optional_input(5, Operand::PastValue)?;
        Ok(Self {
            query: context.input(0, Operand::Query)?,
            key: context.input(1, Operand::Key)?,
            value: context.input(2, Operand::Value)?,
            mask: context.optional_input(3, Operand::Mask)?,
            past: match (past_key, past_value) {
                (Some(key), Some(value)) => Some([key, value]),
                (None, None) => None,
                _ => return Err(CallError::fail("past_key and past_value must be used together")),
            },
            lengths: context.optional_input(6, Operand::Lengths)?,
        })
    }

    /// Returns the types and shapes that a call is prepared for. The lengths are checked in every call.
    pub(super) fn signatures(&self) -> impl Iterator<Item = Signature<'a>> + Clone + '_ {
        self.prepared().map(InputTensor::signature)
    }

    fn prepared(&self) -> impl Iterator<Item = &Tensor<'a>> + Clone {
        [&self.query, &self.key, &self.value].into_iter().chain(&self.mask).chain(self.past.iter().flatten())
    }

    /// Returns the addresses of the inputs. An input that is not aligned is read from a copy, but has these addresses.
    fn memory(&self) -> Result<[(Operand, Range<usize>); 7], CallError> {
        let mut all = [const { (Operand::Query, 0..0) }; 7];
        for (place, tensor) in all.iter_mut().zip(self.prepared().chain(&self.lengths)) {
            *place = (tensor.role, tensor.addresses()?);
        }
        Ok(all)
    }
}

/// A call that is prepared for the types and shapes of its inputs, with the memory that it works in.
pub(crate) struct PreparedCall {
    prepared: Prepared,
    scratch: Scratch,
    output: Vec<i64>,
    present: [Vec<i64>; 2],
    scores: Vec<i64>,
}

impl PreparedCall {
    /// Prepares a call. Returns an error if the shapes disagree, or if the runtime's memory for an input has another
    /// size than its shape requires.
    pub(super) fn new(
        declaration: &Declaration,
        context: &Context<'_>,
        tensors: &Tensors<'_>,
    ) -> Result<Self, CallError> {
        let past =
            tensors.past.as_ref().map(|[key, value]| Ok::<_, CallError>([key.sizes()?, value.sizes()?]));
        let (mask, past) = (tensors.mask.as_ref().map(InputTensor::sizes).transpose()?, past.transpose()?);
        let shapes = Shapes {
            element: tensors.query.element()?,
            query: &tensors.query.sizes()?,
            key: &tensors.key.sizes()?,
            value: &tensors.value.sizes()?,
            mask: mask.as_deref(),
            past: past.as_ref().map(|past| past.each_ref().map(Vec::as_slice)),
        };
        let call = Self::for_shapes(declaration.operator, &shapes)?;
        tensors.prepared().try_for_each(|tensor| context.check_memory(tensor))?;
        Ok(call)
    }

    /// Prepares a call for inputs of these shapes, whose memory the caller checks. Returns an error if the shapes
    /// disagree.
    pub(crate) fn for_shapes(operator: Attention, shapes: &Shapes<'_>) -> Result<Self, CallError> {
        let prepared = operator.prepare(shapes)?;
        Ok(Self {
            scratch: prepared.scratch(thread_count()).share_from(MIN_SHARED),
            output: shape(&prepared.output_shape()),
            present: prepared.present_shapes().map(|sizes| shape(&sizes)),
            scores: shape(&prepared.scores_shape()),
            prepared,
        })
    }

    /// Checks the valid slots of a call, as [`compute`](Self::compute) does. Returns an error if a length does not fit.
    pub(crate) fn check_valid(&self, valid: Valid<'_>) -> Result<(), CallError> {
        Ok(self.prepared.check_valid(valid)?)
    }

    /// Computes the outputs. A call that has run before with these shapes allocates nothing but the outputs. Returns an
    /// error if an input does not fit. Nothing has been written then.
    pub(super) fn run(
        &mut self,
        declaration: &Declaration,
        context: &Context<'_>,
        tensors: &Tensors<'_>,
    ) -> Result<(), CallError> {
        match tensors.query.element()? {
            ElementType::Float16 => self.run_as::<f16>(declaration, context, tensors),
            ElementType::BFloat16 => self.run_as::<bf16>(declaration, context, tensors),
            // An input of another type is refused by its width or by its type.
            _ => self.run_as::<f32>(declaration, context, tensors),
        }
    }

    fn run_as<T: Float>(
        &mut self,
        declaration: &Declaration,
        context: &Context<'_>,
        tensors: &Tensors<'_>,
    ) -> Result<(), CallError> {
        let Tensors { query, key, value, mask, past, lengths } = tensors;
        let (query, key, value) = (&*query.floats::<T>()?, &*key.floats::<T>()?, &*value.floats::<T>()?);
        let mask = mask.as_ref().map(MaskElements::<T>::read).transpose()?;
        let past = match past {
            Some([key, value]) => Some([key.floats::<T>()?, value.floats::<T>()?]),
            None => None,
        };
        let lengths = lengths.as_ref().map(InputTensor::list).transpose()?;
        let inputs = Inputs {
            mask: mask.as_ref().map(MaskElements::as_mask),
            past: past.as_ref().map(|[key, value]| [&**key, &**value]),
            valid: lengths.as_deref().map_or(Valid::All, Valid::Lengths),
            ..Inputs::new(query, key, value)
        };

        self.check_valid(inputs.valid)?;
        let request = |index, operand, shape| OutputMemory::<T>::request(context, index, operand, shape);
        let output = request(0, Operand::Output, &self.output)?;
        let present = if declaration.has_present {
            let [key, value] = &self.present;
            Some([request(1, Operand::PresentKey, key)?, request(2, Operand::PresentValue, value)?])
        } else {
            None
        };
        let scores = match declaration.operator.has_scores() {
            true => Some(request(3, Operand::Scores, &self.scores)?),
            false => None,
        };
        let all = [&output].into_iter().chain(present.iter().flatten()).chain(&scores);
        check_separate(all.map(OutputMemory::addresses), tensors.memory()?.into_iter())?;
        // SAFETY: `check_separate` has accepted the memory of `output`, which is used only here.
        let mut outputs = Outputs::uninit(unsafe { output.into_slice() });
        if let Some([key, value]) = present {
            // SAFETY: `check_separate` has accepted the memory of `key`, which is used only here.
            let key = unsafe { key.into_slice() };
            // SAFETY: `check_separate` has accepted the memory of `value`, which is used only here.
            outputs = outputs.present_uninit(key, unsafe { value.into_slice() });
        }
        if let Some(scores) = scores {
            // SAFETY: `check_separate` has accepted the memory of `scores`, which is used only here.
            outputs = outputs.scores_uninit(unsafe { scores.into_slice() });
        }
        self.compute(context, &inputs, &mut outputs)
    }

    /// Computes the outputs of a call. Returns an error if an operand does not have the prepared type or length, or if
    /// a length of a sample does not fit. Nothing has been written then.
    pub(crate) fn compute<T: Float, C: CacheElement>(
        &mut self,
        context: &Context<'_>,
        inputs: &Inputs<'_, T, C>,
        outputs: &mut Outputs<'_, T, C>,
    ) -> Result<(), CallError> {
        Ok(self.prepared.run(inputs, outputs, &mut self.scratch, Some(&context.threads()))?)
    }
}

/// The elements of a mask.
pub(crate) enum MaskElements<'a, T: Float> {
    Bool(Cow<'a, [u8]>),
    Float(Cow<'a, [T]>),
}

impl<'a, T: Float> MaskElements<'a, T> {
    pub(crate) fn read(tensor: &Tensor<'a>) -> Result<Self, CallError> {
        tensor.check_element(const { &[ElementType::Bool, T::ELEMENT] })?;
        if tensor.has_element(ElementType::Bool) {
            tensor.elements().map(Self::Bool)
        } else {
            tensor.elements().map(Self::Float)
        }
    }

    pub(crate) fn as_mask(&self) -> Mask<'_, T> {
        match self {
            Self::Bool(elements) => Mask::Bool(elements),
            Self::Float(elements) => Mask::Float(elements),
        }
    }
}

/// Returns sizes as the runtime's dimensions.
fn shape(sizes: &[usize]) -> Vec<i64> {
    sizes.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect()
}
