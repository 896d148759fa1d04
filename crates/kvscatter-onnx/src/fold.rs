//! Evaluates a graph on small inputs and computes everything that follows from them.
//!
//! One evaluation is called a *fold*, because it works like constant folding: an operator is evaluated as
//! soon as its inputs are known. The [conversion](crate::convert) folds a decoder on small inputs to see the
//! values of its masks and positions.
//!
//! # What is computed
//!
//! A value is computed only when it is requested, and only once. Values are computed without recursion, so a
//! deep graph does not overflow the stack.
//!
//! The elements of a value are computed if all values that it depends on are known, and if there are at most
//! [`MAX_VALUES`] elements. Otherwise only its shape is computed. To compute a shape, an operator needs the
//! elements of small vectors at most: the shapes, axes and bounds that it takes as inputs. Weights are
//! therefore not read to compute a shape, and values that depend on weights alone are not computed unless
//! another value needs them.
//!
//! # Open values
//!
//! A value is *open* if not even its shape is known, because the shape depends on elements that are not
//! known. The output of `NonZero` is open, for example, if the elements of its input are not known. Every
//! value that depends on an open value is open too, unless its shape depends only on other values, as the
//! shape of the output of `ScatterND` does. An open value is an error only if its shape or its elements are
//! requested. The error names the node whose output is the first open value.
//!
//! Nothing is guessed. If this module does not support an operator, the error names its node.
//!
//! # Precision
//!
//! Transcendental functions use 64-bit arithmetic, so they may differ from a runtime's in the last place.
//! Everything else is exact, as [`number`] describes.

mod body;
mod call;
mod error;
mod number;
mod ops;
pub(crate) mod outputs;
#[cfg(test)]
mod properties;
mod shapes;
#[cfg(test)]
mod tests;
mod value;
mod values;
mod work;

use std::rc::Rc;

use crate::ir::{NodeValues, ValueId};
use crate::{ErrorPlace, EvalError, ExternalData, Graph, GraphError, Node, OnnxError};

pub(crate) use error::FoldError;
pub(crate) use ops::returns_state;

pub(crate) use number::{int_to_float, lowest, round, round_to_f32, to_float};
pub(crate) use shapes::{axis, elements, signed, strides, walk};
pub(crate) use value::{MAX_VALUES, Value};
pub(crate) use values::Values;
pub(crate) use work::Budget;

use body::{Body, Function, Functions, KnownValue, Level, OpenShape, Origin, Source};
use call::{Attributes, Call};
use work::Work;

/// The maximum number of elements of a constant that are computed on request. Larger constants are computed
/// only if another value needs their elements.
const MAX_CONSTANTS: usize = 64 << 10;

/// The size of the largest vector whose elements are computed because a shape may depend on them.
const MAX_PARAMETERS: usize = 1 << 10;

/// The cost of every node in addition to its values.
const NODE_WORK: usize = 1 << 10;

/// The cost of a call for each name, attribute and import of the function. Functions that call others twice are called
/// tens of thousands of times, and most of their time goes into looking up and checking names.
const FUNCTION_WORK: usize = 1 << 11;

/// The maximum depth of functions that call each other.
const MAX_DEPTH: usize = 16;

/// The on-demand evaluation of a graph or of a function body.
#[derive(Debug)]
pub(crate) struct Fold<'m> {
    body: Body<'m>,
    functions: Rc<Functions<'m>>,
    /// The attributes of the call that is being evaluated. References in the function body are resolved with
    /// them. Empty for a graph.
    attributes: Attributes<'m>,
    external: Option<Rc<ExternalData>>,
    work: Rc<Work>,
    depth: usize,
    /// The origin of each value, or `None` after a change.
    origins: Option<Vec<Origin>>,
}

/// A value and the level that it must reach.
#[derive(Clone, Copy, Debug)]
struct Demand {
    id: ValueId,
    level: Level,
    /// Whether the value waits for the values that it depends on.
    is_waiting: bool,
}

impl<'m> Fold<'m> {
    /// Creates an evaluation in which nothing is computed yet.
    ///
    /// Without `external`, an error is returned if the elements of a tensor in another file are needed.
    pub(crate) fn new(graph: &Graph<'m>, external: Option<&Rc<ExternalData>>) -> Self {
        Self::with(graph, external, None)
    }

    /// Creates an evaluation of a graph without external data, whose work is also charged to a budget.
    pub(crate) fn within(budget: &Rc<Budget>, graph: &Graph<'m>) -> Self {
        Self::with(graph, None, Some(Rc::clone(budget)))
    }

    /// Creates an evaluation like [`new`](Self::new), whose work may also be charged to a budget.
    pub(crate) fn with(
        graph: &Graph<'m>,
        external: Option<&Rc<ExternalData>>,
        budget: Option<Rc<Budget>>,
    ) -> Self {
        Self {
            body: Body::of_graph(graph),
            functions: Rc::new(Functions::new(graph.functions())),
            attributes: Attributes::default(),
            external: external.map(Rc::clone),
            work: Rc::new(Work::new(budget)),
            depth: 0,
            origins: None,
        }
    }

    /// Sets a value and clears everything that was computed from it. The value may be an input or any other value,
    /// which is then not computed from its inputs.
    ///
    /// # Errors
    /// Returns [`GraphError::ValueMissing`] if the graph has no value of this name, [`FoldError::TooMuch`] if a
    /// budget is spent, and the errors of [`Value::new`].
    pub(crate) fn set(&mut self, name: &str, value: Value) -> Result<(), OnnxError> {
        let value = Value::new(value.element, value.shape, value.data);
        let value = value.in_tensor(name)?;
        self.work.reset();
        self.work.charge_values(&value)?;
        self.body.set(self.body.id(name)?, value);
        self.origins = None;
        Ok(())
    }

    /// Returns what is known about a value: its shape, and its elements if they follow from the values that
    /// are set.
    ///
    /// If more than 65536 elements depend on constants alone, they are returned only if another value has
    /// needed them.
    ///
    /// # Errors
    /// Returns the errors of [`known`](Self::known), and [`FoldError::ValuesUnknown`] if the value is open.
    pub(crate) fn value(&mut self, name: &str) -> Result<&Value, OnnxError> {
        let id = self.body.id(name)?;
        let level = self.most(id)?;
        self.demand(id, level)
    }

    /// Returns the same as [`value`](Self::value), or `None` if the value is open.
    ///
    /// # Errors
    /// * Returns [`GraphError::ValueMissing`] if the graph has no value of this name.
    /// * Returns [`EvalError::InputMissing`] if the value depends on an input that is not set.
    /// * Returns a [`FoldError`] or an error about attributes, inputs and tensors, wrapped in
    ///   [`OnnxError::InNode`].
    pub(crate) fn known(&mut self, name: &str) -> Result<Option<&Value>, OnnxError> {
        let id = self.body.id(name)?;
        let level = self.most(id)?;
        self.known_at(id, level).map(KnownValue::value)
    }

    /// Returns the elements of a value of integers, or `None` if they are unknown or cannot be computed.
    pub(crate) fn ints(&mut self, name: &str) -> Option<Vec<i64>> {
        self.value(name).ok()?.as_ints().map(<[_]>::to_vec)
    }

    /// Returns a value's shape without computing its elements.
    ///
    /// # Errors
    /// Returns the errors of [`value`](Self::value).
    pub(crate) fn shape(&mut self, name: &str) -> Result<&[usize], OnnxError> {
        let id = self.body.id(name)?;
        self.demand(id, Level::Shape).map(|value| value.shape.as_slice())
    }

    /// Forgets the elements of computed values with more than [`MAX_PARAMETERS`], and restores the allowance of work.
    /// The shapes stay known.
    pub(crate) fn forget_elements(&mut self) {
        self.body.forget_elements(MAX_PARAMETERS);
        self.work.reset();
    }

    /// Charges work that is done outside this evaluation, as a number of elements.
    ///
    /// # Errors
    /// Returns [`FoldError::TooMuch`] if the limit is exceeded.
    pub(crate) fn charge(&self, elements: usize) -> Result<(), OnnxError> {
        self.work.charge(elements)
    }

    /// Returns the highest level to which a value is computed on request. For large constants this is the
    /// shape.
    fn most(&mut self, id: ValueId) -> Result<Level, OnnxError> {
        let is_weight = self.origin(id) == Origin::Constant
            && self.known_at(id, Level::Shape)?.value().is_some_and(|value| value.len() > MAX_CONSTANTS);
        Ok(if is_weight { Level::Shape } else { Level::Values })
    }

    fn demand(&mut self, id: ValueId, level: Level) -> Result<&Value, OnnxError> {
        match self.known_at(id, level)? {
            KnownValue::Value(value) => Ok(value),
            KnownValue::Open(open) => Err(open.error()),
        }
    }

    fn known_at(&mut self, id: ValueId, level: Level) -> Result<&KnownValue, OnnxError> {
        self.evaluate(id, level)?;
        let name = self.body.state(id).map_or("", |state| state.name);
        self.body.known(id).ok_or_else(|| GraphError::ValueMissing { name: name.to_owned() }.into())
    }

    /// Computes a value up to a level, after the values that it depends on. If one of these cannot be
    /// computed, all values that wait for it fail as well.
    fn evaluate(&mut self, id: ValueId, level: Level) -> Result<(), OnnxError> {
        self.origin(id);
        let mut stack = vec![Demand { id, level, is_waiting: false }];
        let result = self.evaluate_all(&mut stack);
        if let Err(error) = &result {
            // An operator without this output may still have the other outputs.
            let is_output = matches!(error.cause(), Some(FoldError::NoOutput { .. }));
            let failed = stack.len().saturating_sub(usize::from(is_output));
            for &Demand { id, level, .. } in stack.iter().take(failed).filter(|demand| demand.is_waiting) {
                let Some(Source::Node(node)) = self.body.state(id).map(|state| state.source) else {
                    continue;
                };
                let outputs =
                    self.body.node(node).map(|(_, value_ids)| value_ids.outputs.clone()).unwrap_or_default();
                outputs.into_iter().flatten().for_each(|output| self.body.fail(output, level));
            }
        }
        result
    }

    /// Meets the demands on the stack. The stack contains the requested value and every value that waits for
    /// another. No value waits for itself, because the inputs of a node come from earlier nodes.
    fn evaluate_all(&mut self, stack: &mut Vec<Demand>) -> Result<(), OnnxError> {
        while let Some(demand) = stack.last_mut() {
            let &mut Demand { id, level, .. } = demand;
            if self.body.level(id) >= level {
                stack.pop();
                continue;
            }
            let Some(state) = self.body.state(id) else { return Ok(()) };
            let (source, name) = (state.source, state.name);
            if state.failed.is_some_and(|failed| failed <= level) {
                return Err(FoldError::FailedBefore { name: name.to_owned() }.into());
            }
            match source {
                Source::Node(node) => {
                    demand.is_waiting = true;
                    let values = level == Level::Values && self.origin(id) != Origin::Unknown;
                    let waiting = stack.len();
                    self.push_missing(node, values, stack);
                    if stack.len() == waiting {
                        self.run(node, id, values, level)?;
                        stack.pop();
                    }
                }
                Source::Initializer(tensor) => {
                    let value = match level {
                        Level::Values => Value::read(name, tensor, self.external.as_deref())?,
                        _ => Value::header(name, tensor)?,
                    };
                    self.store(id, KnownValue::Value(value), level)?;
                }
                Source::Input | Source::Absent | Source::Set => {
                    return Err(EvalError::InputMissing { name: name.to_owned() }.into());
                }
            }
        }
        Ok(())
    }

    /// Pushes the demands of a node that are not met yet.
    ///
    /// If values are needed, these are the elements of all inputs. Otherwise these are the shapes of all
    /// inputs, and the elements of inputs that may be parameters. A parameter may have any size if the shape
    /// of the output depends on its elements. Initializers come last, because their elements are not needed
    /// if those of another input are unknown.
    fn push_missing(&self, node: usize, values: bool, stack: &mut Vec<Demand>) {
        let is_hopeless = self.body.read_by(node).any(|(_, state)| {
            let is_unknown = |value: &Value| value.data.is_none();
            state.level == Level::Values && state.known.is_some() && state.value().is_none_or(is_unknown)
        });
        let is_counted = self.body.node(node).is_some_and(|(node, _)| {
            !node.is_function() && ops::is_shaped_by_values(node.domain(), node.op_type())
        });
        let missing = |initializers: bool| {
            self.body.read_by(node).filter_map(move |(id, state)| {
                let is_parameter = |value: &Value| value.rank() <= 1 && value.len() <= MAX_PARAMETERS;
                let is_wanted = values && !is_hopeless
                    || state.value().is_some_and(is_parameter)
                    || is_counted && self.origin_of(id) != Origin::Unknown;
                let need = if is_wanted { Level::Values } else { Level::Shape };
                let is_its_turn = match state.source {
                    Source::Absent => false,
                    Source::Initializer(_) => initializers,
                    _ => true,
                };
                (state.level < need && is_its_turn).then_some(Demand { id, level: need, is_waiting: false })
            })
        };
        let waiting = stack.len();
        stack.extend(missing(false));
        if stack.len() == waiting {
            stack.extend(missing(true));
        }
    }

    /// Evaluates a node whose inputs are known, to get one of its outputs. It is an error if that output
    /// cannot be computed, but not if another one cannot.
    fn run(&mut self, node: usize, wanted: ValueId, values: bool, level: Level) -> Result<(), OnnxError> {
        let Some((node, value_ids)) = self.body.node(node) else { return Ok(()) };
        let value_ids = value_ids.clone();
        let outputs = match self.outputs(&node, &value_ids, values) {
            Ok(outputs) => outputs,
            Err(error) => {
                let error = node.error(error);
                let open = OpenShape::from_error(&error).ok_or(error)?;
                vec![Some(KnownValue::Open(open)); value_ids.outputs.len()]
            }
        };
        let made = outputs.len();
        for (id, known) in value_ids.outputs.iter().zip(outputs) {
            if let (Some(id), Some(known)) = (*id, known)
                && self.body.level(id) < level
            {
                self.store(id, known, level)?;
            }
        }
        if self.body.level(wanted) < level {
            // Other missing outputs fail as well, so that the node is not evaluated again for them.
            value_ids.outputs.iter().skip(made).flatten().for_each(|&id| self.body.fail(id, level));
            let output = value_ids.outputs.iter().position(|&id| id == Some(wanted)).unwrap_or_default();
            return Err(node.error(FoldError::NoOutput { output }));
        }
        Ok(())
    }

    fn outputs(
        &self,
        node: &Node<'m>,
        value_ids: &NodeValues,
        values: bool,
    ) -> Result<Vec<Option<KnownValue>>, OnnxError> {
        self.work.charge(NODE_WORK)?;
        let known: Vec<_> = value_ids.inputs.iter().map(|id| id.and_then(|id| self.body.known(id))).collect();
        if let Some(outputs) = self.outputs_of_open(node, &known)? {
            return Ok(outputs);
        }
        let attributes = Attributes::resolve(node.proto(), &self.attributes)?;
        let inputs: Vec<_> = known.into_iter().map(|known| known.and_then(KnownValue::value)).collect();
        if node.is_function() && !returns_state(node.domain(), node.op_type()) {
            return self.call_function(node, &inputs, attributes, values);
        }
        let rule = ops::rule(node.domain(), node.op_type()).ok_or(FoldError::NoRule)?;
        let outputs = rule(&Call {
            op_type: node.op_type(),
            version: node.version(),
            inputs,
            outputs: value_ids.outputs.len(),
            attributes,
            values,
            external: self.external.as_deref(),
            work: &self.work,
        })?;
        Ok(outputs.into_iter().map(|value| Some(KnownValue::Value(value))).collect())
    }

    /// Returns the outputs of a node with open inputs, or `None` if no input is open.
    fn outputs_of_open(
        &self,
        node: &Node<'m>,
        inputs: &[Option<&KnownValue>],
    ) -> Result<Option<Vec<Option<KnownValue>>>, OnnxError> {
        let open = |known: &&KnownValue| matches!(known, KnownValue::Open(_));
        let Some(first) = inputs.iter().copied().flatten().find(open) else { return Ok(None) };
        let like = ops::shaped_like(node.domain(), node.op_type()).filter(|_| !node.is_function());
        let like = like.and_then(|input| inputs.get(input).copied().flatten()?.value());
        Ok(Some(match like {
            Some(Value { element, shape, .. }) => {
                vec![Some(KnownValue::Value(Value::shaped(*element, shape.clone())?))]
            }
            None => vec![Some(first.clone()); node.proto().output.len()],
        }))
    }

    /// Evaluates a function's body on the inputs of a call.
    fn call_function(
        &self,
        node: &Node<'m>,
        inputs: &[Option<&Value>],
        mut attributes: Attributes<'m>,
        values: bool,
    ) -> Result<Vec<Option<KnownValue>>, OnnxError> {
        let (depth, limit) = (self.depth.saturating_add(1), MAX_DEPTH);
        if depth > limit {
            return Err(FoldError::TooDeep { limit }.into());
        }
        let Function { proto: function, size, .. } =
            self.functions.called(node.proto()).ok_or(FoldError::NoRule)?;
        self.work.charge(size.saturating_mul(FUNCTION_WORK))?;
        for input in inputs.iter().flatten() {
            self.work.charge_values(input)?;
        }
        attributes.add_defaults(&function.attribute_proto);
        let mut called = Fold {
            body: Body::of_function(function, &self.functions, inputs)?,
            functions: Rc::clone(&self.functions),
            attributes,
            external: self.external.clone(),
            work: Rc::clone(&self.work),
            depth,
            origins: None,
        };
        let level = if values { Level::Values } else { Level::Shape };
        let output = |(used, name): (&String, &String)| {
            if used.is_empty() {
                return Ok(None);
            }
            Ok(Some(match called.known_at(called.body.id(name)?, level)?.clone() {
                KnownValue::Open(open) => {
                    KnownValue::Open(OpenShape::from_error(&node.error(open.error())).unwrap_or(open))
                }
                known => known,
            }))
        };
        node.proto().output.iter().zip(&function.output).map(output).collect()
    }

    fn store(&mut self, id: ValueId, known: KnownValue, level: Level) -> Result<(), OnnxError> {
        known.value().map_or(Ok(()), |value| self.work.charge_values(value))?;
        self.body.store(id, known, level);
        Ok(())
    }

    fn origin(&mut self, id: ValueId) -> Origin {
        self.origins.get_or_insert_with(|| self.body.origins(&self.functions));
        self.origin_of(id)
    }

    /// Returns the origin of a value. [`origin`](Self::origin) must have been called before.
    fn origin_of(&self, id: ValueId) -> Origin {
        self.origins.as_ref().and_then(|origins| origins.get(id.index())).copied().unwrap_or(Origin::Unknown)
    }
}
