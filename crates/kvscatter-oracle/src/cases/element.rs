/// One of the 24 element types of `TensorScatter-24`, by name and width.
#[derive(Debug, PartialEq, Eq)]
pub struct Element {
    /// The name inside ONNX's `tensor(…)`.
    pub name: &'static str,
    /// The width in bits, or `None` for strings.
    pub bits: Option<usize>,
}

impl Element {
    const ALL: [Self; 24] = [
        Self::new("bfloat16", 16),
        Self::new("bool", 8),
        Self::new("complex128", 128),
        Self::new("complex64", 64),
        Self::new("double", 64),
        Self::new("float", 32),
        Self::new("float16", 16),
        Self::new("float4e2m1", 4),
        Self::new("float8e4m3fn", 8),
        Self::new("float8e4m3fnuz", 8),
        Self::new("float8e5m2", 8),
        Self::new("float8e5m2fnuz", 8),
        Self::new("float8e8m0", 8),
        Self::new("int16", 16),
        Self::new("int32", 32),
        Self::new("int4", 4),
        Self::new("int64", 64),
        Self::new("int8", 8),
        Self { name: "string", bits: None },
        Self::new("uint16", 16),
        Self::new("uint32", 32),
        Self::new("uint4", 4),
        Self::new("uint64", 64),
        Self::new("uint8", 8),
    ];

    const fn new(name: &'static str, bits: usize) -> Self {
        Self { name, bits: Some(bits) }
    }

    /// Returns all 24 types, in the order of the specification's type constraint.
    #[must_use]
    pub fn all() -> &'static [Self] {
        const ALL: &[Element] = &Element::ALL;
        ALL
    }

    /// Returns the type with this ONNX name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::all().iter().find(|element| element.name == name)
    }
}
