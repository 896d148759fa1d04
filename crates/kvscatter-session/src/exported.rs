//! Decoders in the form in which they were exported.

use std::ops::Range;

use kvscatter::ElementType;
use kvscatter_onnx::decoder::Decoder;
use kvscatter_onnx::{ExportForm, Model, ModelFile, Stacks, plain_decoder};

use crate::engine::{Engine, LoadOptions, Session, Step, StepOutput};
use crate::error::SessionError;
use crate::interface::{FeedPort, Interface, Purpose};
use crate::runner::Runner;
use crate::tensor::Tensor;

/// A decoder as it was exported. Its steps run out of place.
///
/// A merged decoder runs the branch with a past. For stacked caches, each step copies the layers into and out of the
/// stacked tensors.
#[derive(Debug)]
pub struct ExportedDecoder {
    /// The inputs and outputs of the [plain decoder](plain_decoder).
    pub interface: Interface,
    stacks: Option<Stacks>,
}

impl ExportedDecoder {
    /// Determines a decoder's inputs and outputs.
    ///
    /// # Errors
    /// Returns the errors of [`plain_decoder`], of [`Decoder::from_graph`] and of [`Interface::new`].
    pub fn new(model: &Model) -> Result<Self, SessionError> {
        let plain = plain_decoder(model)?;
        let mut interface = Interface::new(&plain.model, &Decoder::from_graph(&plain.model.graph()?)?)?;
        let mut stacks = None;
        match plain.form {
            None => {}
            Some(ExportForm::Merged(branch)) => {
                let inputs = model.graph()?.inputs()?;
                let condition = inputs.into_iter().find(|input| input.name == branch.condition);
                let condition =
                    condition.map(|value| FeedPort::with(&value, Purpose::Condition(branch.value)));
                interface.feeds.extend(condition.transpose()?);
            }
            Some(ExportForm::Stacked(of_layers)) => {
                for cache in &mut interface.caches {
                    let stack = of_layers.stacks.iter().find(|stack| stack.inputs.contains(&cache.past));
                    if let (Some(stack), Some(slots)) = (stack, cache.dims.get_mut(cache.axis)) {
                        *slots = stack.length;
                    }
                }
                stacks = Some(of_layers);
            }
        }
        Ok(Self { interface, stacks })
    }

    /// Returns `true` if each step also copies the layers of stacked caches, so that its time is not that of the
    /// exported model.
    #[must_use]
    pub fn is_stacked(&self) -> bool {
        self.stacks.is_some()
    }

    /// Loads the decoder. Its runs must be [out of place](Runner::out_of_place).
    ///
    /// # Errors
    /// Returns the errors of [`Engine::load`].
    pub fn load(
        &self,
        engine: &dyn Engine,
        file: &ModelFile,
        options: LoadOptions,
    ) -> Result<Runner, SessionError> {
        let session = engine.load(file, options)?;
        let session = match &self.stacks {
            None => session,
            Some(stacks) => {
                Box::new(StackedSession { session, stacks: stacks.clone(), engine: engine.name().to_owned() })
            }
        };
        Ok(Runner::new(session, self.interface.clone()))
    }
}

/// A loaded decoder whose inputs have all layers. Its steps have a tensor for each layer.
struct StackedSession {
    session: Box<dyn Session>,
    stacks: Stacks,
    engine: String,
}

impl Session for StackedSession {
    fn run(&mut self, step: Step<'_>) -> Result<StepOutput, SessionError> {
        let Self { session, stacks, engine } = self;
        // A run out of place covers all samples.
        let Step { inputs, outputs, returned, samples: _, of_batch: _, shared: _ } = step;
        let (mut given, mut written, mut past) = (Vec::new(), Vec::new(), 0);
        for stack in &stacks.stacks {
            let layer = |name: &String| {
                let given = inputs.iter().find(|(of, _)| of == name).map(|(_, tensor)| *tensor);
                given.ok_or_else(|| SessionError::InputUnknown { input: name.clone() })
            };
            let layers = stack.inputs.iter().map(layer).collect::<Result<Vec<_>, _>>()?;
            let presents = outputs.iter().filter(|(name, _)| stack.outputs.iter().any(|of| of == name));
            let longest =
                presents.map(|(_, present)| length(present)).chain(layers.iter().copied().map(length));
            let longest = longest.max().unwrap_or_default();
            let slots = stack.length.unwrap_or(longest);
            if longest > slots {
                let message =
                    format!("{longest} tokens do not fit into the {slots} slots of {:?}", stack.input);
                return Err(SessionError::Run { engine: engine.clone(), message });
            }
            let mut stacked = stack_of(&layers, slots)?;
            for (index, layer) in layers.iter().enumerate() {
                for (of_layer, of_stack) in runs(index, layer, slots) {
                    copy(layer.bytes().get(of_layer), stacked.bytes_mut().get_mut(of_stack));
                }
            }
            if let Some(output) = &stack.output {
                past = layers.first().map_or(0, |layer| length(layer));
                written.push((stack, output.as_str(), slots, stack_of(&layers, slots)?));
            }
            given.push((stack.input.as_str(), stacked));
        }
        let count = i64::try_from(past).unwrap_or(i64::MAX);
        let offset = Tensor::integers(stacks.offset_element, &vec![1; stacks.offset_rank], &[count])?;
        let is_layer =
            |name: &str| stacks.stacks.iter().any(|stack| stack.inputs.iter().any(|of| of == name));
        let mut all: Vec<_> = inputs.iter().copied().filter(|(name, _)| !is_layer(name)).collect();
        all.extend(given.iter().map(|(name, tensor)| (*name, tensor)));
        all.push((stacks.offset.as_str(), &offset));
        let of_layers =
            |name: &str| stacks.stacks.iter().any(|stack| stack.outputs.iter().any(|of| of == name));
        let (mut outputs, others): (Vec<_>, Vec<_>) =
            outputs.into_iter().partition(|(name, _)| of_layers(name));
        let presents = written.iter_mut().map(|(_, output, _, stacked)| (*output, stacked));
        let step =
            Step { inputs: all, outputs: presents.chain(others).collect(), returned, ..Step::default() };
        let output = session.run(step)?;
        for (stack, _, slots, stacked) in &written {
            for (index, name) in stack.outputs.iter().enumerate() {
                for (_, present) in outputs.iter_mut().filter(|(of, _)| of == name) {
                    for (of_layer, of_stack) in runs(index, present, *slots) {
                        copy(stacked.bytes().get(of_stack), present.bytes_mut().get_mut(of_layer));
                    }
                }
            }
        }
        Ok(output)
    }
}

/// Returns the number of rows of a layer, `[batch, length, …]`.
fn length(layer: &Tensor) -> usize {
    layer.shape().get(1).copied().unwrap_or_default()
}

/// Allocates a tensor of zeros for these layers, `[layers, batch, slots, width]`.
fn stack_of(layers: &[&Tensor], slots: usize) -> Result<Tensor, SessionError> {
    let Some((first, [batch, _, inner @ ..])) = layers.first().map(|first| (first, first.shape())) else {
        return Tensor::zeros(ElementType::Float32, &[0]);
    };
    Tensor::zeros(first.element(), &[layers.len(), *batch, slots, inner.iter().product()])
}

/// Returns the bytes of each sample in a layer, and in a stack of this many slots.
fn runs(index: usize, layer: &Tensor, slots: usize) -> Vec<(Range<usize>, Range<usize>)> {
    let batch = layer.shape().first().copied().unwrap_or_default();
    let bytes = layer.len().checked_div(batch).unwrap_or_default();
    let stride = bytes.checked_div(length(layer)).unwrap_or_default().saturating_mul(slots);
    let run = |sample: usize| {
        let (of_layer, of_stack) = (sample * bytes, (index * batch + sample) * stride);
        (of_layer..of_layer + bytes, of_stack..of_stack + bytes)
    };
    (0..batch).map(run).collect()
}

fn copy(from: Option<&[u8]>, to: Option<&mut [u8]>) {
    if let (Some(from), Some(to)) = (from, to) {
        to.copy_from_slice(from);
    }
}
