use super::Random;

/// A tensor inside a buffer that lies between two guards. All numbers count elements.
#[derive(Clone, Debug)]
pub struct View {
    shape: Vec<usize>,
    /// The strides, or `None` for a dense tensor that takes the whole buffer.
    strides: Option<Vec<isize>>,
    offset: usize,
    /// The number of elements in the buffer that the code under test gets.
    len: usize,
    /// The number of elements before and after the buffer. The code under test must not change them.
    guard: usize,
}

impl View {
    /// Returns a view of a dense row-major tensor.
    #[must_use]
    pub fn dense(shape: &[usize], guard: usize) -> Self {
        let len = shape.iter().product();
        Self { shape: shape.to_vec(), strides: None, offset: 0, len, guard }
    }

    /// Returns a view whose dimensions are in any order, with gaps between them. Any dimension may be
    /// reversed. No two positions overlap.
    pub fn strided(shape: &[usize], guard: usize, random: &mut Random) -> Self {
        let mut order: Vec<_> = (0..shape.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i + 1));
        }
        let mut strides = vec![0; shape.len()];
        let mut covered = 1;
        for dimension in order {
            let stride = covered + random.pick(&[0, 0, 1, 3]);
            covered += shape[dimension].saturating_sub(1) * stride;
            strides[dimension] = stride as isize * random.pick(&[1, 1, -1]);
        }
        Self::of_strides(shape, strides, guard, random)
    }

    /// Returns a view like [`strided`](Self::strided), but with positions that may overlap. It is for tensors
    /// that are only read and have at least one dimension.
    pub fn broadcast(shape: &[usize], guard: usize, random: &mut Random) -> Self {
        let mut view = Self::strided(shape, guard, random);
        let mut strides = view.strides.take().unwrap_or_default();
        let dimension = random.below(shape.len());
        strides[dimension] = random.pick(&[0, 1, -1, 2]);
        Self::of_strides(shape, strides, guard, random)
    }

    /// Returns a view with these strides in a buffer that is large enough for them.
    pub fn of_strides(shape: &[usize], strides: Vec<isize>, guard: usize, random: &mut Random) -> Self {
        if shape.contains(&0) {
            return Self { shape: shape.to_vec(), strides: Some(strides), offset: 0, len: 0, guard };
        }
        let reach = |backwards: bool| -> usize {
            let of_sign = strides.iter().zip(shape).filter(|(stride, _)| (**stride < 0) == backwards);
            of_sign.map(|(stride, size)| stride.unsigned_abs() * (size - 1)).sum()
        };
        let offset = reach(true) + random.pick(&[0, 1, 2]);
        let len = offset + reach(false) + 1 + random.pick(&[0, 0, 2]);
        Self { shape: shape.to_vec(), strides: Some(strides), offset, len, guard }
    }

    /// Returns the number of elements along each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the strides, or `None` for a dense tensor that takes the whole buffer.
    #[must_use]
    pub fn strides(&self) -> Option<&[isize]> {
        self.strides.as_deref()
    }

    /// Returns the offset of element `[0, 0, …]` in the buffer.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of elements in the buffer and its guards.
    #[must_use]
    pub fn total(&self) -> usize {
        self.len + 2 * self.guard
    }

    /// Returns the range of the buffer between its guards.
    #[must_use]
    pub fn buffer(&self) -> std::ops::Range<usize> {
        self.guard..self.guard + self.len
    }

    /// Returns the offset, guards included, of every element in row-major order.
    #[must_use]
    pub fn places(&self) -> Vec<usize> {
        let origin = self.guard + self.offset;
        let Some(strides) = &self.strides else {
            return (origin..origin + self.len).collect();
        };
        let mut places = vec![origin];
        for (&size, &stride) in self.shape.iter().zip(strides) {
            let along =
                |&place: &usize| (0..size).map(move |i| place.wrapping_add_signed(stride * i as isize));
            places = places.iter().flat_map(along).collect();
        }
        places
    }
}
