use super::Random;

/// A tensor inside a buffer inside guards, all counted in elements.
#[derive(Clone, Debug)]
pub struct View {
    shape: Vec<usize>,
    /// `None` for a dense tensor that takes the whole buffer.
    strides: Option<Vec<isize>>,
    offset: usize,
    /// Elements of the buffer that the code under test is given.
    len: usize,
    /// Elements before and after those, which that code must not touch.
    guard: usize,
}

impl View {
    /// Row-major.
    #[must_use]
    pub fn dense(shape: &[usize], guard: usize) -> Self {
        let len = shape.iter().product();
        Self { shape: shape.to_vec(), strides: None, offset: 0, len, guard }
    }

    /// Dimensions in any order, gaps between them, any of them backwards: no two positions meet.
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

    /// As [`strided`](Self::strided), but positions may meet: for tensors that are only read, of one dimension at
    /// least.
    pub fn broadcast(shape: &[usize], guard: usize, random: &mut Random) -> Self {
        let mut view = Self::strided(shape, guard, random);
        let mut strides = view.strides.take().unwrap_or_default();
        let dimension = random.below(shape.len());
        strides[dimension] = random.pick(&[0, 1, -1, 2]);
        Self::of_strides(shape, strides, guard, random)
    }

    /// These strides, in a buffer that is large enough for them.
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

    /// Elements along each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// `None` for a dense tensor that takes the whole buffer.
    #[must_use]
    pub fn strides(&self) -> Option<&[isize]> {
        self.strides.as_deref()
    }

    /// Where element `[0, 0, …]` lies in the buffer.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Elements of buffer and guards.
    #[must_use]
    pub fn total(&self) -> usize {
        self.len + 2 * self.guard
    }

    /// The buffer inside its guards.
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
