//! The layout of a tensor in its buffer.
//!
//! The crate documentation defines G1 and G2.

use alloc::vec::Vec;

use crate::argument::Argument;
use crate::error::Error;
use crate::size;

/// The shape of a tensor and the positions of its elements in a buffer, counted in elements.
///
/// A plain shape converts into a dense, row-major layout that takes the whole buffer.
/// [`strided`](Self::strided) describes any other view, such as a `[batch, sequence, heads, head_size]`
/// update seen as `[batch, heads, sequence, head_size]`.
///
/// ```
/// use kvscatter::{ElementType, Layout, spec::onnx::TensorScatter};
///
/// // One token of two heads, as a projection returns it: [batch, sequence, heads, head_size].
/// let update = [1_i8, 2, 3, 4];
/// let as_bhsd = Layout::strided(&[1, 2, 1, 2], &[4, 2, 4, 1]);
/// let write = TensorScatter::new().prepare(ElementType::Int8, &[1, 2, 3, 2], as_bhsd)?;
/// let mut cache = [0_i8; 12];
/// let written = write.write(&mut cache, &update, &[1_i64])?;
/// assert_eq!(written.skipped, 0);
/// assert_eq!(cache, [0, 0, 1, 2, 0, 0, 0, 0, 3, 4, 0, 0]);
/// # Ok::<(), kvscatter::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout<'a> {
    shape: &'a [usize],
    strides: Option<&'a [isize]>,
    offset: usize,
}

impl<'a> Layout<'a> {
    /// Describes a dense, row-major tensor that takes the whole buffer.
    #[must_use]
    pub const fn dense(shape: &'a [usize]) -> Self {
        Self { shape, strides: None, offset: 0 }
    }

    /// Describes a view by one stride per dimension, in elements.
    ///
    /// Strides may be negative. Strides of an update may also be zero, but no two positions of a cache may
    /// overlap (G2). The buffer may be larger than the tensor.
    #[must_use]
    pub const fn strided(shape: &'a [usize], strides: &'a [isize]) -> Self {
        Self { shape, strides: Some(strides), offset: 0 }
    }

    /// Sets the offset of element `[0, 0, …]` in the buffer, in elements. The default is 0.
    ///
    /// With an offset, the buffer of a dense tensor may be larger than the tensor.
    #[must_use]
    pub const fn with_offset(self, elements: usize) -> Self {
        Self { offset: elements, ..self }
    }

    /// Returns the smallest [`offset`](Self::with_offset) at which the tensor lies inside its buffer.
    ///
    /// This is the number of elements that negative strides reach before element `[0, 0, …]`. In C and
    /// DLPack, a tensor is given by the address of that element. With this offset, the buffer begins at the
    /// lowest address of such a tensor.
    #[must_use]
    pub fn min_offset(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        let dims = self.shape.iter().zip(self.strides.unwrap_or_default());
        // If a sum overflows, `resolve` returns `TooLarge`.
        dims.filter(|(_, stride)| **stride < 0).fold(0_usize, |sum, (size, stride)| {
            sum.saturating_add(size.saturating_sub(1).saturating_mul(stride.unsigned_abs()))
        })
    }

    /// Returns the size of each dimension, in elements.
    #[must_use]
    pub const fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// Checks the layout, and computes the strides of a dense one. In the returned view, the offset of every
    /// element lies in `0..len`. These conditions are checked:
    ///
    /// 1. There is one stride per dimension.
    /// 2. The product of the non-zero dimensions fits `isize`, in elements and in bytes (G1).
    /// 3. No element lies before the buffer.
    /// 4. The last element's offset fits `isize`, in elements and in bytes (G1).
    pub(crate) fn resolve(&self, argument: Argument, bits: usize) -> Result<View, Error> {
        let too_large = Error::TooLarge { argument };
        let rank = self.shape.len();
        if let Some(strides) = self.strides
            && strides.len() != rank
        {
            return Err(Error::StrideCount { argument, strides: strides.len(), rank }); // Condition 1
        }
        let elements = size::elements(self.shape, bits).ok_or(too_large)?; // Condition 2
        let dims: Vec<Dim> = match self.strides {
            Some(strides) => {
                self.shape.iter().zip(strides).map(|(&size, &stride)| Dim { size, stride }).collect()
            }
            None => dense(self.shape).ok_or(too_large)?,
        };
        let exact = self.strides.is_none() && self.offset == 0;
        if elements == 0 {
            return Ok(View { offset: 0, dims, elements, len: 0, exact });
        }
        let (mut below, mut above) = (0_usize, self.offset);
        for dim in &dims {
            let reach = dim.size.saturating_sub(1).checked_mul(dim.stride.unsigned_abs()).ok_or(too_large)?;
            let side = if dim.stride < 0 { &mut below } else { &mut above };
            *side = side.checked_add(reach).ok_or(too_large)?;
        }
        if below > self.offset {
            return Err(Error::BeforeBuffer { argument, offset: self.offset, min: below }); // Condition 3
        }
        let len = above.checked_add(1).ok_or(too_large)?;
        size::bytes(len, bits).ok_or(too_large)?; // Condition 4
        Ok(View { offset: self.offset, dims, elements, len, exact })
    }
}

impl<'a> From<&'a [usize]> for Layout<'a> {
    fn from(shape: &'a [usize]) -> Self {
        Self::dense(shape)
    }
}

impl<'a, const N: usize> From<&'a [usize; N]> for Layout<'a> {
    fn from(shape: &'a [usize; N]) -> Self {
        Self::dense(shape)
    }
}

impl<'a> From<&'a Vec<usize>> for Layout<'a> {
    fn from(shape: &'a Vec<usize>) -> Self {
        Self::dense(shape)
    }
}

/// The size of a dimension, and its stride in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim {
    pub(crate) size: usize,
    pub(crate) stride: isize,
}

impl Dim {
    /// A placeholder for a dimension that a tensor does not have.
    pub(crate) const ONE: Self = Self { size: 1, stride: 0 };
}

/// A [`Layout`] that has been checked. Only [`Layout::resolve`] makes one.
///
/// If the view has elements, every partial sum of an offset lies inside the buffer: for valid indices,
/// `offset` plus the sum of `index × stride` over any subset of the dimensions lies in `0..len`.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(super) offset: usize,
    pub(super) dims: Vec<Dim>,
    pub(super) elements: usize,
    /// The required number of elements. It is exact if `exact` is true, and a minimum otherwise.
    pub(super) len: usize,
    pub(super) exact: bool,
}

impl View {
    pub(crate) fn dims(&self) -> &[Dim] {
        &self.dims
    }
}

/// Returns row-major dimensions. A size of 0 counts as 1 in the strides, so that the other strides are not 0.
pub(crate) fn dense(shape: &[usize]) -> Option<Vec<Dim>> {
    let mut stride = 1_isize;
    let mut dims = Vec::with_capacity(shape.len());
    for &size in shape.iter().rev() {
        dims.push(Dim { size, stride });
        stride = stride.checked_mul(isize::try_from(size.max(1)).ok()?)?;
    }
    dims.reverse();
    Some(dims)
}

#[cfg(test)]
mod tests {
    use super::Layout;
    use crate::argument::Argument;
    use crate::error::Error;

    const A: Argument = Argument::PastCache;

    #[test]
    fn dense_takes_the_whole_buffer() {
        let view = Layout::dense(&[2, 3, 4]).resolve(A, 8).unwrap();
        assert_eq!(view.dims.iter().map(|dim| dim.stride).collect::<Vec<_>>(), [12, 4, 1]);
        assert_eq!((view.len, view.exact), (24, true));
    }

    #[test]
    fn negative_strides_need_room_before_them() {
        let flipped = Layout::strided(&[2, 3], &[3, -1]);
        assert_eq!(
            flipped.resolve(A, 8).unwrap_err(),
            Error::BeforeBuffer { argument: A, offset: 0, min: 2 }
        );
        assert_eq!(flipped.with_offset(2).resolve(A, 8).unwrap().len, 6);
    }

    #[test]
    fn sizes_that_no_buffer_has_are_refused() {
        let far = [isize::MAX, 1];
        assert_eq!(
            Layout::strided(&[3, 2], &far).resolve(A, 8).unwrap_err(),
            Error::TooLarge { argument: A }
        );
        assert_eq!(
            Layout::strided(&[2, 1], &far).resolve(A, 8).unwrap_err(),
            Error::TooLarge { argument: A }
        );
        assert_eq!(
            Layout::strided(&[2, 2], &[isize::MIN, 1]).resolve(A, 8).unwrap_err(),
            Error::BeforeBuffer { argument: A, offset: 0, min: isize::MIN.unsigned_abs() }
        );
        assert_eq!(
            Layout::dense(&[0, usize::MAX]).resolve(A, 8).unwrap_err(),
            Error::TooLarge { argument: A }
        );
    }
}
