//! The element of an array: its type in the core, and its storage.

use std::fmt;

use dlpark::ffi::{DLDataType, DLDataTypeCode};
use kvscatter::{DlpackType, ElementType};

/// The type and the storage of an element. Arrays with the same `Element` can be copied into each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) ty: ElementType,
    pub(crate) storage: Storage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// The core's own storage, with 4-bit values packed two to a byte.
    Native,
    /// One 4-bit value per byte, as in ml_dtypes.
    Padded,
    /// Two 4-bit values that count as one element, as in PyTorch's `float4_e2m1fn_x2`.
    Pair,
}

impl Storage {
    const ALL: [Self; 3] = [Self::Native, Self::Padded, Self::Pair];

    /// Returns the name in a pickle.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Padded => "padded",
            Self::Pair => "pair",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|storage| storage.name() == name)
    }
}

impl Element {
    pub(crate) const fn native(ty: ElementType) -> Self {
        Self { ty, storage: Storage::Native }
    }

    /// Returns the type that the core receives. Data moves by width, so a 4-bit element that fills a byte
    /// moves as a byte.
    pub(crate) const fn stored(self) -> ElementType {
        match self.storage {
            Storage::Native => self.ty,
            Storage::Padded | Storage::Pair => ElementType::UInt8,
        }
    }

    /// Returns the number of bits between neighbouring elements. A string is a pointer.
    pub(crate) fn bits(self) -> usize {
        self.stored().bits().unwrap_or(usize::BITS as usize)
    }

    pub(crate) fn is_string(self) -> bool {
        self.ty == ElementType::String
    }

    /// Returns the DLPack type, for arrays that this crate allocates.
    pub(crate) fn dlpack(self) -> Option<DLDataType> {
        let lanes = if self.storage == Storage::Pair { 2 } else { 1 };
        let DlpackType { code, bits, .. } = self.ty.dlpack()?;
        Some(DLDataType { code: DLDataTypeCode(code), bits, lanes })
    }

    pub(crate) fn is_padded(self) -> bool {
        self.storage == Storage::Padded
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.ty.numpy_name();
        match self.storage {
            Storage::Native => f.write_str(name),
            Storage::Padded => write!(f, "{name} (one to a byte)"),
            Storage::Pair => write!(f, "{name} (pairs)"),
        }
    }
}
