//! An encoder, whose outputs are inputs of a decoder.

use std::fmt;
use std::path::Path;

use kvscatter::ElementType;
use kvscatter_onnx::decoder::EncoderPart;
use kvscatter_onnx::internal::EncoderValues;
use kvscatter_onnx::{DECODER, Dimension, Graph, Model, ValueInfo};

use crate::engine::{Engine, LoadOptions, Session, Step};
use crate::error::SessionError;
use crate::interface::Interface;
use crate::tensor::Tensor;

/// What an encoder has computed for one text: the name and the tensor of each input of a decoder, with a batch of 1.
pub type EncoderOutputs = Vec<(String, Tensor)>;

/// An encoder in an engine.
pub struct Encoder {
    session: Box<dyn Session>,
    inputs: Vec<EncoderInput>,
    /// The value of the encoder that is each input of the decoder.
    sources: Vec<(String, Source)>,
    masked: Option<Masked>,
}

/// An input of an encoder.
#[derive(Clone, Debug)]
pub struct EncoderInput {
    /// The name of the input.
    pub name: String,
    /// The element type of the input.
    pub element: ElementType,
    /// The dimensions. Open dimensions are `None`.
    pub dims: Vec<Option<usize>>,
}

/// The mask of an encoder, `[batch, length]`, and an input with as many positions.
#[derive(Debug)]
struct Masked {
    mask: String,
    input: String,
    /// The dimension of the input that counts the positions.
    axis: usize,
}

/// Where a value of an encoder comes from.
#[derive(Debug)]
enum Source {
    /// The output with this name.
    Output(String),
    /// The input with this name.
    Input(String),
}

impl Encoder {
    /// Loads the encoder of a decoder.
    ///
    /// Its outputs have the names of the decoder's inputs, as those of
    /// [`join_encoder`](kvscatter_onnx::join_encoder) do. The states may also have another name, if they are the only
    /// output of floats and rank 3, and the mask may be the encoder's own input `attention_mask`.
    ///
    /// # Errors
    /// - Returns [`SessionError::EncoderUnused`] if the decoder takes nothing from an encoder, and
    ///   [`SessionError::EncoderOther`] if the encoder was made for another decoder.
    /// - Returns [`SessionError::EncoderOutputMissing`] for an input of the decoder that the encoder does not compute.
    /// - Returns [`SessionError::Onnx`] if the file is no model, and [`SessionError::Load`] if the engine cannot load
    ///   it.
    pub fn open(
        engine: &dyn Engine,
        path: impl AsRef<Path>,
        decoder: &Interface,
        options: LoadOptions,
    ) -> Result<Self, SessionError> {
        if decoder.encoder.is_empty() {
            return Err(SessionError::EncoderUnused);
        }
        let path = path.as_ref();
        let model = Model::load(path)?;
        let is_other = |of: &str| decoder.exported.as_deref().is_some_and(|exported| exported != of);
        if model.metadata(DECODER).is_some_and(is_other) {
            return Err(SessionError::EncoderOther { path: path.to_owned() });
        }
        let (inputs, sources, masked) = {
            let graph = model.graph()?;
            let mut inputs = graph.inputs()?;
            inputs.retain(|input| graph.is_input(input.name));
            let values = EncoderValues::of_graph(&graph)?;
            (
                inputs.iter().map(EncoderInput::new).collect(),
                sources(&graph, &values, decoder)?,
                values.mask.and_then(|mask| Masked::find(&mask, &inputs)),
            )
        };
        let file = model.file()?;
        drop(model);
        Ok(Self { session: engine.load(&file, options)?, inputs, sources, masked })
    }

    /// Returns the inputs of the encoder.
    #[must_use]
    pub fn inputs(&self) -> &[EncoderInput] {
        &self.inputs
    }

    /// Computes what the decoder takes for one text. Each input has a batch of 1.
    ///
    /// # Errors
    /// - Returns [`SessionError::EncoderInput`] for an input that is absent, unknown or has another type or rank.
    /// - Returns [`SessionError::EncoderMaskLength`] for a mask of another length than the text.
    /// - Returns [`SessionError::Run`] with the engine's message.
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<EncoderOutputs, SessionError> {
        let given = |name: &str| inputs.iter().find(|(given, _)| *given == name).map(|(_, tensor)| *tensor);
        let wrong = |name: &str| {
            let names = self.inputs.iter().map(EncoderInput::to_string).collect();
            SessionError::EncoderInput { input: name.to_owned(), inputs: names }
        };
        for (name, tensor) in inputs {
            let input = self.inputs.iter().find(|input| input.name == *name);
            if !input.is_some_and(|input| input.fits(tensor)) {
                return Err(wrong(name));
            }
        }
        if let Some(input) = self.inputs.iter().find(|input| given(&input.name).is_none()) {
            return Err(wrong(&input.name));
        }
        if let Some(masked) = &self.masked {
            masked.check(given)?;
        }
        let returned = self.sources.iter().filter_map(|(_, source)| match source {
            Source::Output(output) => Some(output.as_str()),
            Source::Input(_) => None,
        });
        let step = Step { inputs: inputs.to_vec(), returned: returned.collect(), ..Step::default() };
        let mut outputs = self.session.run(step)?.returned.into_iter();
        let mut computed = Vec::with_capacity(self.sources.len());
        for (name, source) in &self.sources {
            let tensor = match source {
                Source::Output(_) => outputs.next(),
                Source::Input(input) => given(input).map(Tensor::copied).transpose()?,
            };
            computed.extend(tensor.map(|tensor| (name.clone(), tensor)));
        }
        Ok(computed)
    }
}

/// Returns the value of an encoder that is each input of a decoder. The mask may have none.
fn sources(
    graph: &Graph<'_>,
    EncoderValues { states, mask }: &EncoderValues<'_>,
    decoder: &Interface,
) -> Result<Vec<(String, Source)>, SessionError> {
    let outputs = graph.outputs()?;
    let mut sources = Vec::new();
    for port in &decoder.encoder {
        let own = outputs.iter().find(|output| output.name == port.name);
        let mask = mask.as_ref().filter(|mask| mask.element == port.element);
        let source = match (own, port.part) {
            (Some(own), _) => Some(Source::Output(own.name.to_owned())),
            (None, EncoderPart::States) => {
                states.as_ref().ok().map(|states| Source::Output((*states).to_owned()))
            }
            (None, EncoderPart::Mask) => mask.map(|mask| Source::Input(mask.name.to_owned())),
            (None, EncoderPart::Keys | EncoderPart::Values) => None,
        };
        match source {
            Some(source) => sources.push((port.name.clone(), source)),
            None if port.is_mask() => {}
            None => return Err(SessionError::EncoderOutputMissing { input: port.name.clone() }),
        }
    }
    Ok(sources)
}

impl Masked {
    /// Returns `None` if no other dimension has the symbol of the mask's length.
    fn find(mask: &ValueInfo<'_>, inputs: &[ValueInfo<'_>]) -> Option<Self> {
        let length = mask.shape.as_ref()?.get(1).copied();
        let Some(length @ Dimension::Symbolic(_)) = length else { return None };
        let mut others = inputs.iter().filter(|input| input.name != mask.name);
        others.find_map(|input| {
            let axis = input.shape.as_ref()?.iter().skip(1).position(|dim| *dim == length)? + 1;
            Some(Self { mask: mask.name.to_owned(), input: input.name.to_owned(), axis })
        })
    }

    fn check<'t>(&self, given: impl Fn(&str) -> Option<&'t Tensor>) -> Result<(), SessionError> {
        let size = |name: &str, axis| given(name).and_then(|tensor| tensor.shape().get(axis).copied());
        match (size(&self.mask, 1), size(&self.input, self.axis)) {
            (Some(got), Some(expected)) if got != expected => Err(SessionError::EncoderMaskLength {
                mask: self.mask.clone(),
                got,
                input: self.input.clone(),
                expected,
            }),
            _ => Ok(()),
        }
    }
}

impl EncoderInput {
    fn new(value: &ValueInfo<'_>) -> Self {
        let dims = value.shape.iter().flatten().map(|dim| dim.size()).collect();
        Self { name: value.name.to_owned(), element: value.element, dims }
    }

    /// Returns `true` if a tensor of one text has the type, the rank and the known sizes of the input.
    fn fits(&self, tensor: &Tensor) -> bool {
        let shape = tensor.shape();
        let has_sizes = self.dims.iter().zip(shape).all(|(dim, size)| dim.is_none_or(|dim| dim == *size));
        tensor.element() == self.element
            && shape.len() == self.dims.len()
            && has_sizes
            && shape.first() == Some(&1)
            && !shape.contains(&0)
    }
}

/// Writes the name, the type and the shape, such as `input_ids: int64 [1, ?]`.
impl fmt::Display for EncoderInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dim = |(axis, dim): (usize, &Option<usize>)| match (axis, dim) {
            (0, _) => "1".to_owned(),
            (_, Some(size)) => size.to_string(),
            (_, None) => "?".to_owned(),
        };
        let dims: Vec<_> = self.dims.iter().enumerate().map(dim).collect();
        write!(f, "{}: {} [{}]", self.name, self.element, dims.join(", "))
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}
