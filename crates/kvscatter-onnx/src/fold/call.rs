//! One evaluation of an operator: its inputs and attributes, and the ways its outputs are made.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::value::MAX_VALUES;
use super::work::Work;
use super::{FoldError, Value, Values, shapes};
use crate::proto::{AttributeProto, NodeProto};
use crate::{ExternalData, OnnxError, attribute, tensor_proto};

/// A node's operator with what it is applied to.
pub(super) struct Call<'a> {
    pub(super) op_type: &'a str,
    /// The version of the operator set.
    pub(super) version: i64,
    pub(super) inputs: Vec<Option<&'a Value>>,
    /// How many outputs the node names.
    pub(super) outputs: usize,
    pub(super) attributes: Attributes<'a>,
    /// Whether values are asked for, or shapes only.
    pub(super) values: bool,
    pub(super) external: Option<&'a ExternalData>,
    pub(super) work: &'a Work,
}

/// A node's attributes by name, references to attributes of the enclosing function replaced by what they refer to.
#[derive(Clone, Debug, Default)]
pub(super) struct Attributes<'m>(BTreeMap<&'m str, &'m AttributeProto>);

impl<'m> Attributes<'m> {
    /// A reference to an attribute that the call leaves out and that has no default is as good as absent.
    pub(super) fn resolve(node: &'m NodeProto, outer: &Self) -> Result<Self, OnnxError> {
        let mut all = BTreeMap::new();
        for attribute in &node.attribute {
            let name = attribute.name.as_deref().unwrap_or_default();
            let referred = attribute.ref_attr_name.as_deref().filter(|name| !name.is_empty());
            let resolved = referred.map_or(Some(attribute), |referred| outer.0.get(referred).copied());
            let Some(resolved) = resolved else { continue };
            if all.insert(name, resolved).is_some() {
                return Err(OnnxError::AttributeTwice { name: name.to_owned() });
            }
        }
        Ok(Self(all))
    }

    /// What a function's attributes are where a call does not say.
    pub(super) fn add_defaults(&mut self, defaults: &'m [AttributeProto]) {
        for default in defaults {
            self.0.entry(default.name.as_deref().unwrap_or_default()).or_insert(default);
        }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&'m str, &'m AttributeProto)> {
        self.0.iter().map(|(&name, &attribute)| (name, attribute))
    }
}

/// The one output that nearly every operator has.
pub(super) type Outputs = Result<Vec<Value>, OnnxError>;

impl<'a> Call<'a> {
    /// An input.
    pub(super) fn input(&self, index: usize) -> Result<&'a Value, OnnxError> {
        self.optional(index).ok_or(OnnxError::InputAbsent { index })
    }

    /// An input that may be absent.
    pub(super) fn optional(&self, index: usize) -> Option<&'a Value> {
        self.inputs.get(index).copied().flatten()
    }

    /// All inputs; none may be absent.
    pub(super) fn all_inputs(&self) -> Result<Vec<&'a Value>, OnnxError> {
        (0..self.inputs.len()).map(|index| self.input(index)).collect()
    }

    /// The integers of an input on which the output's shape depends.
    pub(super) fn ints(&self, index: usize) -> Result<&'a [i64], OnnxError> {
        let input = self.input(index)?;
        input.as_ints().ok_or_else(|| match &input.data {
            None => FoldError::ValuesUnknown { input: index }.into(),
            Some(_) => {
                FoldError::InputType { input: index, element: input.element, expected: "an integer" }.into()
            }
        })
    }

    /// As [`ints`](Self::ints), where the input may be absent.
    pub(super) fn optional_ints(&self, index: usize) -> Result<Option<&'a [i64]>, OnnxError> {
        self.optional(index).map(|_| self.ints(index)).transpose()
    }

    /// The one integer of an input on which the output's shape depends.
    pub(super) fn scalar(&self, index: usize) -> Result<i64, OnnxError> {
        match self.ints(index)? {
            &[value] => Ok(value),
            _ => Err(self.bad_shape(index, "one element")),
        }
    }

    /// Integers that older versions of the operator have as an attribute and newer ones as an input.
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

    /// A string that is text; `default` if it is absent.
    pub(super) fn string(&self, name: &'static str, default: &'a str) -> Result<&'a str, OnnxError> {
        let Some(attribute) = self.attribute(name) else { return Ok(default) };
        let bytes = attribute::string(attribute)?;
        std::str::from_utf8(bytes).map_err(|_| {
            let value = String::from_utf8_lossy(bytes).into_owned();
            FoldError::AttributeValue { name, value }.into()
        })
    }

    /// The type that an attribute such as `to` gives by its number.
    pub(super) fn element(&self, name: &str) -> Result<Option<ElementType>, OnnxError> {
        let code = |attribute| attribute::int(attribute).map(|code| i32::try_from(code).unwrap_or(i32::MAX));
        let code = self.attribute(name).map(code).transpose()?.filter(|&code| code != 0);
        code.map(|code| tensor_proto::element_type(Some(code))).transpose()
    }

    /// An axis given as an attribute, of an input.
    pub(super) fn axis(&self, name: &str, default: i64, of: &Value) -> Result<usize, OnnxError> {
        shapes::axis(self.int(name, default)?, of.rank())
    }

    pub(super) fn bad_shape(&self, input: usize, expected: &'static str) -> OnnxError {
        let shape = self.optional(input).map(|value| value.shape.clone()).unwrap_or_default();
        FoldError::InputShape { input, shape, expected }.into()
    }

    /// An output: its values, if they are asked for, few enough, and `compute` knows them.
    pub(super) fn make(
        &self,
        element: ElementType,
        shape: Vec<usize>,
        compute: impl FnOnce(&[usize]) -> Result<Option<Values>, OnnxError>,
    ) -> Result<Value, OnnxError> {
        let value = Value::shaped(element, shape)?;
        // Beside an empty dimension, others may be huge: there is nothing to compute.
        if !self.values || value.len() > MAX_VALUES || value.len() == 0 {
            return Ok(value);
        }
        let data = compute(&value.shape)?;
        Value::new(element, value.shape, data)
    }

    /// An output that has values of an input, those at the positions.
    pub(super) fn moved(
        &self,
        from: &Value,
        shape: Vec<usize>,
        positions: impl FnOnce(&[usize]) -> Result<Vec<usize>, OnnxError>,
    ) -> Outputs {
        let made = self.make(from.element, shape, |shape| {
            let Some(data) = &from.data else { return Ok(None) };
            data.pick(&positions(shape)?).map(Some)
        });
        Ok(vec![made?])
    }

    /// An output that has an input's values in another shape of as many elements.
    pub(super) fn reshaped(&self, from: &Value, shape: Vec<usize>) -> Outputs {
        Ok(vec![Value::new(from.element, shape, from.data.clone())?])
    }

    /// Outputs of which only the shapes are known here.
    pub(super) fn shaped(&self, outputs: impl IntoIterator<Item = (ElementType, Vec<usize>)>) -> Outputs {
        let outputs = outputs.into_iter().take(self.outputs.max(1));
        outputs.map(|(element, shape)| Value::shaped(element, shape)).collect()
    }
}

/// A dimension that was computed.
pub(super) fn dim(dim: i64) -> Result<usize, OnnxError> {
    usize::try_from(dim).map_err(|_| FoldError::Dim { dim }.into())
}
