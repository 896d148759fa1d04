//! Serialises element types and modes by name.

/// Serialises an element type by its NumPy name. Reads its ONNX, NumPy or safetensors name.
pub(super) mod element {
    use kvscatter::ElementType;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(element: &ElementType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(element.numpy_name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ElementType, D::Error> {
        let name = String::deserialize(from)?;
        name.parse()
            .map_err(|_| D::Error::custom(format!("type '{name}': must be an element type, such as float16")))
    }
}

/// Serialises a mode as `linear` or `circular`.
pub(super) mod mode {
    use kvscatter::Mode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(mode.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
        let name = String::deserialize(from)?;
        name.parse().map_err(|_| D::Error::custom(format!("mode '{name}': must be linear or circular")))
    }
}
