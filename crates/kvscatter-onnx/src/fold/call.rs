//! One evaluation of an operator: its inputs, its attributes, and helpers that create its outputs.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::value::MAX_VALUES;
use super::values::{Elements, Uncomputed};
use super::work::Work;
use super::{FoldError, Value, Values, shapes};
use crate::proto::{AttributeProto, NodeProto};
use crate::{ExternalData, GraphError, OnnxError, attribute, tensor_proto};

/// A node's operator with its inputs and attributes.
pub(super) struct Call<'a> {
    pub(super) op_type: &'a str,
    /// The version of the operator set.
    pub(super) version: i64,
    pub(super) inputs: Vec<Option<&'a Value>>,
    /// The number of outputs of the node.
    pub(super) outputs: usize,
    pub(super) attributes: Attributes<'a>,
    /// Whether values are needed in addition to shapes.
    pub(super) values: bool,
    pub(super) external: Option<&'a ExternalData>,
    pub(super) work: &'a Work,
}

/// A node's attributes by name. References to attributes of the enclosing function are resolved.
#[derive(Clone, Debug, Default)]
pub(super) struct Attributes<'m>(BTreeMap<&'m str, &'m AttributeProto>);

impl<'m> Attributes<'m> {
    /// Resolves the attributes of a node. A reference is absent if the call does not give the attribute and
    /// the attribute has no default.
    pub(super) fn resolve(node: &'m NodeProto, outer: &Self) -> Result<Self, OnnxError> {
        let mut all = BTreeMap::new();
        for attribute in &node.attribute {
            let name = attribute.name.as_deref().unwrap_or_default();
            let referred = attribute.ref_attr_name.as_deref().filter(|name| !name.is_empty());
            let resolved = referred.map_or(Some(attribute), |referred| outer.0.get(referred).copied());
            let Some(resolved) = resolved else { continue };
            if all.insert(name, resolved).is_some() {
                return Err(GraphError::AttributeTwice { name: name.to_owned() }.into());
            }
        }
        Ok(Self(all))
    }

    /// Adds the defaults of a function's attributes that the call leaves out.
    pub(super) fn add_defaults(&mut self, defaults: &'m [AttributeProto]) {
        for default in defaults {
            self.0.entry(default.name.as_deref().unwrap_or_default()).or_insert(default);
        }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&'m str, &'m AttributeProto)> {
        self.0.iter().map(|(&name, &attribute)| (name, attribute))
    }
}

/// The outputs of an operator. Nearly every operator has one.
pub(super) type Outputs = Result<Vec<Value>, OnnxError>;

impl<'a> Call<'a> {
    /// Returns an input.
    pub(super) fn input(&self, index: usize) -> Result<&'a Value, GraphError> {
        self.optional(index).ok_or(GraphError::InputAbsent { index })
    }

    /// Returns an input that may be absent.
    pub(super) fn optional(&self, index: usize) -> Option<&'a Value> {
        self.inputs.get(index).copied().flatten()
    }

    /// Returns all inputs, or an error if one is absent.
    pub(super) fn all_inputs(&self) -> Result<Vec<&'a Value>, GraphError> {
        (0..self.inputs.len()).map(|index| self.input(index)).collect()
    }

    /// Returns the integers of an input on which the output's shape depends.
    pub(super) fn ints(&self, index: usize) -> Result<&'a [i64], OnnxError> {
        let input = self.input(index)?;
        input.as_ints().ok_or_else(|| match &input.data {
            None => FoldError::ValuesUnknown { input: index }.into(),
            Some(_) => {
                FoldError::InputType { input: index, element: input.element, expected: "an integer" }.into()
            }
        })
    }

    /// Returns the same as [`ints`](Self::ints) for an input that may be absent.
    pub(super) fn optional_ints(&self, index: usize) -> Result<Option<&'a [i64]>, OnnxError> {
        self.optional(index).map(|_| self.ints(index)).transpose()
    }

    /// Returns the single integer of an input on which the output's shape depends.
    pub(super) fn scalar(&self, index: usize) -> Result<i64, OnnxError> {
        match self.ints(index)? {
            &[value] => Ok(value),
            _ => Err(self.bad_shape(index, "one element")),
        }
    }

    /// Returns integers that are an attribute in older versions of the operator and an input in newer ones.
    pub(super) fn ints_of(&self, index: usize, name: &'static str) -> Result<Option<Vec<i64>>, OnnxError> {
        match self.optional_ints(index)? {
            Some(values) => Ok(Some(values.to_vec())),
            None => Ok(self.attribute(name).map(attribute::ints).transpose()?.map(<[i64]>::to_vec)),
        }
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        self.attributes.0.get(name).copied()
    }

    pub(super) fn int(&self, name: &str, default: i64) -> Result<i64, OnnxError> {
        self.attribute(name).map_or(Ok(default), attribute::int)
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, OnnxError> {
        Ok(self.int(name, default.into())? != 0)
    }

    pub(super) fn float(&self, name: &str, default: f32) -> Result<f64, OnnxError> {
        self.attribute(name).map_or(Ok(default), attribute::float).map(f64::from)
    }

    /// Returns a string attribute that must be UTF-8, or `default` if it is absent.
    pub(super) fn string(&self, name: &'static str, default: &'a str) -> Result<&'a str, OnnxError> {
        let Some(attribute) = self.attribute(name) else { return Ok(default) };
        let bytes = attribute::string(attribute)?;
        std::str::from_utf8(bytes).map_err(|_| {
            let value = String::from_utf8_lossy(bytes).into_owned();
            FoldError::AttributeValue { name, value }.into()
        })
    }

    /// Returns the type whose number is in an attribute such as `to`.
    pub(super) fn element(&self, name: &str) -> Result<Option<ElementType>, OnnxError> {
        let code = |attribute| attribute::int(attribute).map(|code| i32::try_from(code).unwrap_or(i32::MAX));
        let code = self.attribute(name).map(code).transpose()?.filter(|&code| code != 0);
        Ok(code.map(|code| tensor_proto::element_type(Some(code))).transpose()?)
    }

    /// Returns an axis of an input, as an attribute gives it.
    pub(super) fn axis(&self, name: &str, default: i64, of: &Value) -> Result<usize, OnnxError> {
        shapes::axis(self.int(name, default)?, of.rank())
    }

    pub(super) fn bad_shape(&self, input: usize, expected: &'static str) -> OnnxError {
        let shape = self.optional(input).map(|value| value.shape.clone()).unwrap_or_default();
        FoldError::InputShape { input, shape, expected }.into()
    }

    /// Checks the type of an input.
    pub(super) fn check_type(
        &self,
        input: usize,
        element: ElementType,
        expected: &'static str,
    ) -> Result<(), OnnxError> {
        match self.input(input)?.element {
            same if same == element => Ok(()),
            element => Err(FoldError::InputType { input, element, expected }.into()),
        }
    }

    /// Creates an output. Its elements are computed if they are needed and if there are not too many.
    pub(super) fn make(
        &self,
        element: ElementType,
        shape: Vec<usize>,
        compute: impl FnOnce(&[usize]) -> Elements,
    ) -> Result<Value, OnnxError> {
        let value = Value::shaped(element, shape)?;
        // If one dimension is 0, others may be huge. There is nothing to compute then.
        if !self.values || value.len() > MAX_VALUES || value.len() == 0 {
            return Ok(value);
        }
        match compute(&value.shape) {
            Ok(data) => Value::new(element, value.shape, Some(data)),
            Err(Uncomputed::Unknown) => Ok(value),
            Err(Uncomputed::Failed(error)) => Err(error),
        }
    }

    /// Creates the only output as [`make`](Self::make) does.
    pub(super) fn output(
        &self,
        element: ElementType,
        shape: Vec<usize>,
        compute: impl FnOnce(&[usize]) -> Elements,
    ) -> Outputs {
        self.make(element, shape, compute).map(|value| vec![value])
    }

    /// Creates an output with the type and the shape of an input, whose elements are computed from those of the input.
    pub(super) fn mapped(&self, input: &Value, compute: impl FnOnce(&Values) -> Elements) -> Outputs {
        self.output(input.element, input.shape.clone(), |_| compute(input.known()?))
    }

    /// Creates an output from the elements of an input at the given positions.
    pub(super) fn moved(
        &self,
        from: &Value,
        shape: Vec<usize>,
        positions: impl FnOnce(&[usize]) -> Result<Vec<usize>, Uncomputed>,
    ) -> Outputs {
        self.output(from.element, shape, |shape| Ok(from.known()?.pick(&positions(shape)?)?))
    }

    /// Creates an output with the elements of an input and another shape of the same size.
    pub(super) fn reshaped(&self, from: &Value, shape: Vec<usize>) -> Outputs {
        Ok(vec![Value::new(from.element, shape, from.data.clone())?])
    }

    /// Creates outputs of which only the shapes are known.
    pub(super) fn shaped(&self, outputs: impl IntoIterator<Item = (ElementType, Vec<usize>)>) -> Outputs {
        let outputs = outputs.into_iter().take(self.outputs.max(1));
        outputs.map(|(element, shape)| Value::shaped(element, shape)).collect()
    }

    /// Creates outputs of floats whose elements are computed together.
    pub(super) fn floats<const N: usize>(
        &self,
        outputs: [(ElementType, Vec<usize>); N],
        compute: impl FnOnce() -> Result<[Vec<f64>; N], Uncomputed>,
    ) -> Outputs {
        let computed = if self.values { compute() } else { Err(Uncomputed::Unknown) };
        let elements = match computed {
            Ok(elements) => elements.map(|elements| Some(Values::Floats(elements))),
            Err(Uncomputed::Unknown) => [const { None }; N],
            Err(Uncomputed::Failed(error)) => return Err(error),
        };
        let outputs = outputs.into_iter().zip(elements).take(self.outputs.max(1));
        outputs.map(|((element, shape), elements)| Value::new(element, shape, elements)).collect()
    }
}

/// Converts a computed dimension.
pub(super) fn dim(dim: i64) -> Result<usize, FoldError> {
    usize::try_from(dim).map_err(|_| FoldError::Dim { dim })
}
