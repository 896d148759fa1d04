//! The types of fields, and the macros that declare messages.

use std::ops::Deref;
use std::sync::Arc;

use super::wire::{BYTES, DecodeError, FIXED32, FIXED64, Reader, Tag, VARINT, Writer};

/// A message of `onnx.proto`.
pub trait Message: Element + 'static {
    /// The name of the message, such as `TensorProto`.
    const NAME: &'static str;
    /// The message without fields.
    const EMPTY: &'static Self;

    /// Reads one field. Returns `false` if it is unknown.
    #[doc(hidden)]
    fn merge_field(&mut self, tag: Tag, reader: &mut Reader<'_>) -> Result<bool, DecodeError>;

    /// Returns the bytes of the fields that [`merge_field`](Self::merge_field) did not know.
    #[doc(hidden)]
    fn unknown_fields(&mut self) -> &mut Vec<u8>;

    /// Writes all fields.
    #[doc(hidden)]
    fn write_fields(&self, writer: &mut Writer);

    /// Reads the next field.
    #[doc(hidden)]
    fn merge_next(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let field = reader.rest();
        let tag = reader.tag()?;
        if !self.merge_field(tag, reader)? {
            let len = field.len().saturating_sub(reader.rest().len());
            self.unknown_fields().extend_from_slice(field.get(..len).unwrap_or_default());
        }
        Ok(())
    }
}

/// An element of a field.
pub trait Element: Default {
    /// The wire type.
    #[doc(hidden)]
    const WIRE: u8;

    /// Reads a value. Returns `false` and changes nothing if an enumeration does not have the value.
    #[doc(hidden)]
    fn merge(&mut self, reader: &mut Reader<'_>) -> Result<bool, DecodeError>;

    /// Writes the value without a tag.
    #[doc(hidden)]
    fn write(&self, writer: &mut Writer);
}

/// A field of a message: an optional or repeated value, or a choice between values.
pub(super) trait Field {
    const EMPTY: Self;

    /// Reads the field. Returns `false` if it has an unknown value.
    fn merge(&mut self, tag: Tag, reader: &mut Reader<'_>) -> Result<bool, DecodeError>;

    /// Writes the field. Numbers are packed into one value on demand.
    fn write(&self, number: u32, is_packed: bool, writer: &mut Writer);
}

fn expect(tag: Tag, wire: u8) -> Result<(), DecodeError> {
    if tag.wire == wire {
        return Ok(());
    }
    Err(DecodeError::WireTypeMismatch { number: tag.number, expected: wire, got: tag.wire })
}

impl<V: Element> Field for Option<V> {
    const EMPTY: Self = None;

    fn merge(&mut self, tag: Tag, reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
        expect(tag, V::WIRE)?;
        if let Some(value) = self {
            return value.merge(reader);
        }
        let mut value = V::default();
        let is_known = value.merge(reader)?;
        *self = is_known.then_some(value);
        Ok(is_known)
    }

    fn write(&self, number: u32, _: bool, writer: &mut Writer) {
        if let Some(value) = self {
            writer.tag(number, V::WIRE);
            value.write(writer);
        }
    }
}

impl<V: Element> Field for Vec<V> {
    const EMPTY: Self = Self::new();

    /// Reads one value, or a packed list of numbers.
    fn merge(&mut self, tag: Tag, reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
        let mut push = |reader: &mut Reader<'_>| {
            let mut value = V::default();
            value.merge(reader)?;
            self.push(value);
            Ok(())
        };
        if V::WIRE == BYTES {
            expect(tag, BYTES)?;
            reader.allocate(size_of::<V>())?;
            push(reader)?;
        } else if tag.wire == V::WIRE {
            push(reader)?;
        } else {
            expect(tag, BYTES)?;
            reader.each(push)?;
        }
        Ok(true)
    }

    fn write(&self, number: u32, is_packed: bool, writer: &mut Writer) {
        if is_packed && !self.is_empty() {
            writer.tag(number, BYTES);
            return writer.nested(&|writer| self.iter().for_each(|value| value.write(writer)));
        }
        for value in self {
            writer.tag(number, V::WIRE);
            value.write(writer);
        }
    }
}

/// An optional message. If it is absent, its fields can be read as those of the message without fields.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageField<M>(Option<Box<M>>);

impl<M: Message> MessageField<M> {
    /// Returns `true` if the message is present.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the message if it is present.
    #[must_use]
    pub fn as_option(&self) -> Option<&M> {
        self.0.as_deref()
    }

    /// Returns the message if it is present.
    #[must_use]
    pub fn as_option_mut(&mut self) -> Option<&mut M> {
        self.0.as_deref_mut()
    }

    /// Returns the message if it is present.
    #[must_use]
    pub fn into_option(self) -> Option<M> {
        self.0.map(|message| *message)
    }

    /// Returns the message. If it is absent, it becomes the message without fields first.
    pub fn get_or_insert_default(&mut self) -> &mut M {
        self.0.get_or_insert_default()
    }
}

impl<M> Default for MessageField<M> {
    fn default() -> Self {
        Self(None)
    }
}

impl<M: Message> Deref for MessageField<M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.0.as_deref().unwrap_or(M::EMPTY)
    }
}

impl<M> From<M> for MessageField<M> {
    fn from(message: M) -> Self {
        Some(message).into()
    }
}

impl<M> From<Option<M>> for MessageField<M> {
    fn from(message: Option<M>) -> Self {
        Self(message.map(Box::new))
    }
}

impl<M: Message> Field for MessageField<M> {
    const EMPTY: Self = Self(None);

    fn merge(&mut self, tag: Tag, reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
        self.0.merge(tag, reader)
    }

    fn write(&self, number: u32, is_packed: bool, writer: &mut Writer) {
        self.0.write(number, is_packed, writer);
    }
}

impl<M: Message> Element for Box<M> {
    const WIRE: u8 = BYTES;

    fn merge(&mut self, reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
        reader.allocate(size_of::<M>())?;
        self.as_mut().merge(reader)
    }

    fn write(&self, writer: &mut Writer) {
        self.as_ref().write(writer);
    }
}

/// Declares the elements by their wire type, and how they are read and written.
macro_rules! elements {
    ($($element:ty: $wire:ident, $read:expr, $write:expr;)*) => {$(
        impl Element for $element {
            const WIRE: u8 = $wire;

            fn merge(&mut self, reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
                let read: fn(&mut Reader<'_>) -> Result<Self, DecodeError> = $read;
                *self = read(reader)?;
                Ok(true)
            }

            fn write(&self, writer: &mut Writer) {
                let write: fn(&Self, &mut Writer) = $write;
                write(self, writer);
            }
        }
    )*};
}

// Copies of a message share the bytes in an `Arc`.
elements! {
    u64: VARINT, |reader| reader.varint(), |value, writer| writer.varint(*value);
    i64: VARINT, |reader| reader.varint().map(u64::cast_signed), |value, writer| writer.varint(value.cast_unsigned());
    i32: VARINT, |reader| reader.varint().map(low_half), |value, writer| i64::from(*value).write(writer);
    f32: FIXED32, |reader| reader.array().map(f32::from_le_bytes), |value, writer| writer.put(&value.to_le_bytes());
    f64: FIXED64, |reader| reader.array().map(f64::from_le_bytes), |value, writer| writer.put(&value.to_le_bytes());
    Vec<u8>: BYTES, |reader| reader.bytes().map(<[u8]>::to_vec), |value, writer| writer.bytes(value);
    Arc<Vec<u8>>: BYTES, |reader| Ok(Self::new(reader.bytes()?.to_vec())), |value, writer| writer.bytes(value);
    String: BYTES, text, |value, writer| writer.bytes(value.as_bytes());
}

fn text(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    String::from_utf8(reader.bytes()?.to_vec()).map_err(|_| DecodeError::InvalidUtf8)
}

/// Returns the low 32 bits. All implementations ignore the others.
fn low_half(value: u64) -> i32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// Declares messages. A field has the numbers of the alternatives if it is a choice.
macro_rules! messages {
    ($(
        $message:ident {$(
            $field:ident: $type:ty = $($number:literal)|+ $([$packed:ident])?,
        )*}
    )*) => {$(
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $message {
            $(pub $field: $type,)*
            /// The bytes of all other fields.
            pub unknown_fields: Vec<u8>,
        }

        const _: () = {
            use $crate::proto::field::{Element, Field, Message};
            use $crate::proto::wire::{BYTES, DecodeError, Reader, Tag, Writer};

            impl Message for $message {
                const NAME: &'static str = stringify!($message);
                const EMPTY: &'static Self =
                    &Self { $($field: <$type as Field>::EMPTY,)* unknown_fields: Vec::new() };

                fn merge_field(&mut self, tag: Tag, reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
                    match tag.number {
                        $($($number)|+ => self.$field.merge(tag, reader),)*
                        _ => reader.skip(tag).map(|()| false),
                    }
                }

                fn unknown_fields(&mut self) -> &mut Vec<u8> {
                    &mut self.unknown_fields
                }

                fn write_fields(&self, writer: &mut Writer) {
                    $(self.$field.write([$($number),+][0], !stringify!($($packed)?).is_empty(), writer);)*
                    writer.put(&self.unknown_fields);
                }
            }

            impl Element for $message {
                const WIRE: u8 = BYTES;

                fn merge(&mut self, reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
                    reader.nested(|reader| reader.each(|reader| self.merge_next(reader)))?;
                    Ok(true)
                }

                fn write(&self, writer: &mut Writer) {
                    writer.nested(&|writer| self.write_fields(writer));
                }
            }
        };
    )*};
}

/// Declares a choice between fields.
macro_rules! choice {
    ($choice:ident { $($variant:ident($type:ty) = $number:literal,)* }) => {
        #[derive(Clone, Debug, PartialEq)]
        pub enum $choice {
            $($variant($type),)*
        }

        const _: () = {
            use $crate::proto::field::{Element, Field};
            use $crate::proto::wire::{DecodeError, Reader, Tag, Writer};

            impl Field for Option<$choice> {
                const EMPTY: Self = None;

                fn merge(&mut self, tag: Tag, reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
                    match tag.number {
                        $($number => {
                            let mut value = match self.take() {
                                Some($choice::$variant(value)) => Some(value),
                                _ => None,
                            };
                            value.merge(tag, reader)?;
                            *self = value.map($choice::$variant);
                        })*
                        _ => {}
                    }
                    Ok(true)
                }

                fn write(&self, _: u32, _: bool, writer: &mut Writer) {
                    match self {
                        $(Some($choice::$variant(value)) => {
                            writer.tag($number, <$type>::WIRE);
                            value.write(writer);
                        })*
                        None => {}
                    }
                }
            }
        };
    };
}

/// Declares an enumeration. A number that it does not have is an unknown field.
macro_rules! enumeration {
    ($enumeration:ident { $($(#[$default:meta])? $variant:ident = $number:literal,)* }) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $enumeration {
            $($(#[$default])? $variant,)*
        }

        const _: () = {
            use $crate::proto::field::Element;
            use $crate::proto::wire::{DecodeError, Reader, VARINT, Writer};

            impl Element for $enumeration {
                const WIRE: u8 = VARINT;

                fn merge(&mut self, reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
                    let mut number = 0_i32;
                    number.merge(reader)?;
                    *self = match number {
                        $($number => Self::$variant,)*
                        _ => return Ok(false),
                    };
                    Ok(true)
                }

                fn write(&self, writer: &mut Writer) {
                    let number: i32 = match self {
                        $(Self::$variant => $number,)*
                    };
                    number.write(writer);
                }
            }
        };
    };
}

pub(super) use {choice, enumeration, messages};
