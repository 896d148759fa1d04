//! A model as a tree of the fields in its file, which can be changed without a function for each kind of field.

use std::sync::LazyLock;

use super::dice::Dice;

/// The messages of ONNX: a name, and its fields as `name=number:type`. Fields that are not listed are dropped.
const SCHEMA: &str = "\
Model ir_version=1:int producer_name=2:text graph=7:Graph opset_import=8:Opset metadata_props=14:Entry \
 training_info=20:Training functions=25:Function configuration=26:Device unknown=1000:bytes
Graph node=1:Node name=2:text initializer=5:Tensor input=11:Value output=12:Value value_info=13:Value \
 quantization_annotation=14:Annotation sparse_initializer=15:Sparse
Node input=1:text output=2:text name=3:text op_type=4:text attribute=5:Attribute doc_string=6:text domain=7:text \
 overload=8:text unknown=1000:bytes
Attribute name=1:text f=2:float i=3:int s=4:text t=5:Tensor g=6:Graph floats=7:float ints=8:int strings=9:text \
 tensors=10:Tensor graphs=11:Graph tp=14:Type type=20:int ref_attr_name=21:text sparse_tensor=22:Sparse \
 sparse_tensors=23:Sparse
Value name=1:text type=2:Type
Type tensor_type=1:TensorType sequence_type=4:Sequence map_type=5:Map opaque_type=7:Opaque \
 sparse_tensor_type=8:TensorType optional_type=9:Sequence
TensorType elem_type=1:int shape=2:Shape
Sequence elem_type=1:Type
Map key_type=1:int value_type=2:Type
Opaque domain=1:text name=2:text
Shape dim=1:Dim
Dim dim_value=1:int dim_param=2:text
Tensor dims=1:int data_type=2:int segment=3:Segment float_data=4:float int32_data=5:int string_data=6:text \
 int64_data=7:int name=8:text raw_data=9:bytes double_data=10:double uint64_data=11:int external_data=13:Entry \
 data_location=14:int
Segment begin=1:int end=2:int
Sparse values=1:Tensor indices=2:Tensor dims=3:int
Function name=1:text input=4:text output=5:text attribute=6:text node=7:Node opset_import=9:Opset domain=10:text \
 attribute_proto=11:Attribute value_info=12:Value
Opset domain=1:text version=2:int
Entry key=1:text value=2:text
Training initialization=1:Graph algorithm=2:Graph initialization_binding=3:Entry update_binding=4:Entry
Device name=1:text num_devices=2:int device=3:text
Annotation tensor_name=1:text quant_parameter_tensor_names=2:Entry";

/// A kind of message.
#[derive(Debug, PartialEq)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) rules: Vec<Rule>,
}

/// A field that a kind of message may have.
#[derive(Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    number: u64,
    /// `int`, `float`, `double`, `text`, `bytes` or the name of a kind.
    pub(crate) ty: &'static str,
}

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let rule = |text: &'static str| {
        let (name, rest) = text.split_once('=').unwrap();
        let (number, ty) = rest.split_once(':').unwrap();
        Rule { name, number: number.parse().unwrap(), ty }
    };
    let kind = |line: &'static str| {
        let mut words = line.split_whitespace();
        Kind { name: words.next().unwrap(), rules: words.map(rule).collect() }
    };
    SCHEMA.lines().map(kind).collect()
});

fn kind(name: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.name == name).unwrap()
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) kind: &'static Kind,
    pub(crate) fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) rule: &'static Rule,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Int(i64),
    Float(f32),
    Double(f64),
    /// Text or other bytes.
    Bytes(Vec<u8>),
    Message(Message),
}

impl Message {
    pub(crate) fn new(name: &str) -> Self {
        Self { kind: kind(name), fields: Vec::new() }
    }

    /// Creates a message with one message in it.
    pub(crate) fn around(name: &str, field: &str, inner: Self) -> Self {
        let mut outer = Self::new(name);
        let rule = outer.kind.rules.iter().find(|rule| rule.name == field).unwrap();
        outer.fields.push(Field { rule, value: Value::Message(inner) });
        outer
    }

    pub(crate) fn clear(&mut self, name: &str) {
        self.fields.retain(|field| field.rule.name != name);
    }

    /// Returns the places of the fields of a name.
    pub(crate) fn places(&self, name: &str) -> Vec<usize> {
        let fields = self.fields.iter().enumerate();
        fields.filter(|(_, field)| field.rule.name == name).map(|(at, _)| at).collect()
    }

    /// Returns the last text of a name, which counts.
    pub(crate) fn text(&self, name: &str) -> String {
        let text = self.fields.iter().rev().find_map(|field| match &field.value {
            Value::Bytes(bytes) if field.rule.name == name => {
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
            _ => None,
        });
        text.unwrap_or_default()
    }

    /// Returns the last number of a name, which counts.
    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.fields.iter().rev().find_map(|field| match field.value {
            Value::Int(value) if field.rule.name == name => Some(value),
            _ => None,
        })
    }

    /// Returns the messages of a name.
    pub(crate) fn all<'t>(&'t self, name: &str) -> impl Iterator<Item = &'t Self> {
        self.fields.iter().filter_map(move |field| match &field.value {
            Value::Message(inner) if field.rule.name == name => Some(inner),
            _ => None,
        })
    }

    /// Calls `see` with this message and all inside of it.
    pub(crate) fn visit<'m>(&'m self, see: &mut dyn FnMut(&'m Self)) {
        see(self);
        for field in &self.fields {
            if let Value::Message(inner) = &field.value {
                inner.visit(see);
            }
        }
    }

    pub(crate) fn visit_mut(&mut self, see: &mut dyn FnMut(&mut Self)) {
        see(self);
        for field in &mut self.fields {
            if let Value::Message(inner) = &mut field.value {
                inner.visit_mut(see);
            }
        }
    }

    /// Returns all messages of a kind.
    pub(crate) fn of_kind(&self, name: &str) -> Vec<&Self> {
        let mut found = Vec::new();
        self.visit(&mut |message| found.extend(Some(message).filter(|message| message.kind.name == name)));
        found
    }

    /// Chooses a message of a kind.
    pub(crate) fn any_mut(&mut self, dice: &mut Dice, name: &str) -> Option<&mut Self> {
        let mut left = dice.below(self.of_kind(name).len());
        self.nth_mut(name, &mut left)
    }

    /// Returns the message of a kind before which there are `left` others.
    pub(crate) fn nth_mut(&mut self, name: &str, left: &mut usize) -> Option<&mut Self> {
        if self.kind.name == name {
            if *left == 0 {
                return Some(self);
            }
            *left -= 1;
        }
        for field in &mut self.fields {
            if let Value::Message(inner) = &mut field.value
                && let Some(found) = inner.nth_mut(name, left)
            {
                return Some(found);
            }
        }
        None
    }

    /// Reads the bytes of a message of this kind that has been encoded without errors.
    pub(crate) fn decode(name: &str, mut bytes: &[u8]) -> Self {
        let mut message = Self::new(name);
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let rule = message.kind.rules.iter().find(|rule| rule.number == tag >> 3);
            match tag & 7 {
                0 => {
                    let value = Value::Int(varint(&mut bytes).cast_signed());
                    message.fields.extend(rule.map(|rule| Field { rule, value }));
                }
                1 => message.packed(rule, take(&mut bytes, 8)),
                5 => message.packed(rule, take(&mut bytes, 4)),
                _ => {
                    let len = usize::try_from(varint(&mut bytes)).unwrap();
                    message.packed(rule, take(&mut bytes, len));
                }
            }
        }
        message
    }

    /// Adds the values of a field whose length is known.
    fn packed(&mut self, rule: Option<&'static Rule>, mut bytes: &[u8]) {
        let Some(rule) = rule else { return };
        let mut values = Vec::new();
        match rule.ty {
            "int" => {
                while !bytes.is_empty() {
                    values.push(Value::Int(varint(&mut bytes).cast_signed()));
                }
            }
            "float" => {
                values.extend(bytes.as_chunks().0.iter().map(|it| Value::Float(f32::from_le_bytes(*it))))
            }
            "double" => {
                values.extend(bytes.as_chunks().0.iter().map(|it| Value::Double(f64::from_le_bytes(*it))))
            }
            "text" | "bytes" => values.push(Value::Bytes(bytes.to_vec())),
            kind => values.push(Value::Message(Self::decode(kind, bytes))),
        }
        self.fields.extend(values.into_iter().map(|value| Field { rule, value }));
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Field { rule, value } in &self.fields {
            let mut tagged = |wire: u64| put(&mut bytes, rule.number << 3 | wire);
            match value {
                Value::Int(value) => {
                    tagged(0);
                    put(&mut bytes, value.cast_unsigned());
                }
                Value::Float(value) => {
                    tagged(5);
                    bytes.extend(value.to_le_bytes());
                }
                Value::Double(value) => {
                    tagged(1);
                    bytes.extend(value.to_le_bytes());
                }
                Value::Bytes(text) => {
                    tagged(2);
                    put(&mut bytes, u64::try_from(text.len()).unwrap());
                    bytes.extend(text);
                }
                Value::Message(inner) => {
                    tagged(2);
                    let inner = inner.encode();
                    put(&mut bytes, u64::try_from(inner.len()).unwrap());
                    bytes.extend(inner);
                }
            }
        }
        bytes
    }
}

fn take<'b>(bytes: &mut &'b [u8], len: usize) -> &'b [u8] {
    let (first, rest) = bytes.split_at(len);
    *bytes = rest;
    first
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = u8::try_from(value & 0x7F).unwrap();
        value >>= 7;
        if value == 0 {
            return bytes.push(low);
        }
        bytes.push(low | 0x80);
    }
}
