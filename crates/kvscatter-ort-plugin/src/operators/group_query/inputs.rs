//! The inputs of a call.

use std::borrow::Cow;

use kvscatter::ElementType;
use kvscatter_attention::{CacheElement, CacheScale, Float, GroupQuery, RotaryOrder, Valid};

use crate::context::Context;
use crate::input::{InputTensor, Named, Role};
use crate::recent::Signature;
use crate::rotary::AngleTable;
use crate::status::CallError;

type Tensor<'a> = InputTensor<'a, Named>;

/// The inputs of a node, by the names of the operator.
pub(super) struct Tensors<'a> {
    query: Tensor<'a>,
    /// Keys and values, if they are not packed with the queries.
    separate: Option<[Tensor<'a>; 2]>,
    pub(super) past: [Tensor<'a>; 2],
    seqlens: Tensor<'a>,
    total: Tensor<'a>,
    angles: Option<[Tensor<'a>; 2]>,
    position_ids: Option<Tensor<'a>>,
    bias: Option<Tensor<'a>>,
    sinks: Option<Tensor<'a>>,
    scales: Option<[Tensor<'a>; 2]>,
}

/// The inputs of a call, whose types and shapes fit each other.
pub(super) struct StepInputs<'a, T: Float> {
    pub(super) sizes: Sizes,
    pub(super) query: Cow<'a, [T]>,
    pub(super) separate: Option<[Cow<'a, [T]>; 2]>,
    seqlens: Cow<'a, [i32]>,
    total: i32,
    angles: Option<Angles<'a, T>>,
    pub(super) bias: Option<Cow<'a, [T]>>,
    /// The shape of the bias, `[batch or 1, heads or 1, rows, total]`.
    pub(super) bias_shape: Option<[usize; 4]>,
    pub(super) sinks: Option<Cow<'a, [T]>>,
    /// The scales of keys and of values that are codes.
    pub(super) scales: Option<[Cow<'a, [f32]>; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    /// The number of new tokens of each sample.
    pub(super) rows: usize,
    /// The number of new keys of each sample: `rows`, or 0 if the past is the cache of another layer.
    pub(super) new: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) size: usize,
    /// The number of slots of the past.
    pub(super) past: usize,
}

/// The angles of all positions, and the positions of the new tokens.
struct Angles<'a, T: Float> {
    table: AngleTable<'a, T>,
    /// The number of positions.
    count: usize,
    position_ids: Option<Cow<'a, [i64]>>,
}

/// The slots of a call.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// The slot of the first new token of each sample.
    pub(super) starts: Vec<i64>,
    /// The number of slots of each sample that contain tokens after the call.
    lengths: Vec<i64>,
    /// Whether the tokens begin at slot 0.
    is_first: bool,
}

impl Slots {
    /// Returns the slots that the queries of a call can see.
    pub(super) fn valid(&self) -> Valid<'_> {
        if self.is_first { Valid::Prompt(&self.lengths) } else { Valid::Lengths(&self.lengths) }
    }

    /// Returns how many rows of the past of a sample are part of the present. Without new rows, these include the rows
    /// of the tokens of the call.
    pub(super) fn kept(&self, sample: usize, is_without_new: bool) -> usize {
        let rows = if is_without_new { &self.lengths } else { &self.starts };
        rows.get(sample).and_then(|rows| usize::try_from(*rows).ok()).unwrap_or(0)
    }
}

impl<'a> Tensors<'a> {
    /// Requests the inputs from the runtime. Returns an error if a required one is missing, or one of two that must be
    /// used together.
    pub(super) fn read(context: &Context<'a>) -> Result<Self, CallError> {
        let role = |index: usize| Named(GroupQuery::INPUTS[index]);
        let required = |index| context.input(index, role(index));
        let optional = |index| context.optional_input(index, role(index));
        let pair = |one, two| match (optional(one)?, optional(two)?) {
            (Some(one), Some(two)) => Ok(Some([one, two])),
            (None, None) => Ok(None),
            (Some(_), None) => Err(role(two).failure("is missing".to_owned())),
            (None, Some(_)) => Err(role(one).failure("is missing".to_owned())),
        };
        Ok(Self {
            query: required(0)?,
            separate: pair(1, 2)?,
            past: [required(3)?, required(4)?],
            seqlens: required(5)?,
            total: required(6)?,
            angles: pair(7, 8)?,
            position_ids: optional(9)?,
            bias: optional(10)?,
            sinks: optional(11)?,
            scales: pair(12, 13)?,
        })
    }

    /// Returns the types of queries and of caches.
    pub(super) fn types(&self) -> Result<(ElementType, ElementType), CallError> {
        Ok((self.query.element()?, self.past[0].element()?))
    }

    /// Returns all inputs.
    pub(super) fn all(&self) -> impl Iterator<Item = &Tensor<'a>> + Clone {
        let Self { query, separate, past, seqlens, total, angles, position_ids, bias, sinks, scales } = self;
        let pairs = [separate, angles, scales].into_iter().flatten().flatten();
        let optional = [position_ids, bias, sinks].into_iter().flatten();
        [query].into_iter().chain(past).chain([seqlens, total]).chain(pairs).chain(optional)
    }

    /// Checks the types and shapes of a call. Returns an error about the first input that does not fit.
    pub(super) fn call<T: Float, C: CacheElement>(
        &self,
        node: &GroupQuery,
    ) -> Result<StepInputs<'a, T>, CallError> {
        let sizes = self.sizes(node)?;
        let Sizes { batch, heads, .. } = sizes;
        for past in &self.past {
            past.check_element(const { &[C::ELEMENT] })?;
        }
        let separate = match &self.separate {
            Some([key, value]) => Some([key.floats()?, value.floats()?]),
            None => None,
        };
        let seqlens = self.seqlens.integers::<i32>()?;
        if seqlens.len() != batch {
            return Err(shape_error(&self.seqlens, &format!("[{batch}]")));
        }
        let &[total] = &*self.total.integers::<i32>()? else {
            return Err(shape_error(&self.total, "[1]"));
        };
        // The tokens before the new ones are those of the past. So no present is longer than both together.
        let longest = sizes.past.saturating_add(sizes.new);
        // The new rows must fit in the present.
        let shortest = if sizes.past < sizes.new { sizes.new } else { 1 };
        if !usize::try_from(total).is_ok_and(|total| (shortest..=longest).contains(&total)) {
            let between = format!("must be between {shortest} and {longest}");
            return Err(self.total.role.failure(format!("= {total}: {between}")));
        }
        let bias_shape = self.bias.as_ref().map(|bias| bias_shape(bias, sizes, total)).transpose()?;
        if let Some(sinks) = &self.sinks {
            sinks.check_shape([heads])?;
        }
        let scales = match (node.scales, &self.scales) {
            (Some([of_key, of_value]), Some([key, value])) => {
                Some([scales(of_key, key, sizes)?, scales(of_value, value, sizes)?])
            }
            (None, None) => None,
            _ => return Err(Named("k_scale").failure("is missing".to_owned())),
        };
        Ok(StepInputs {
            sizes,
            query: self.query.floats()?,
            separate,
            seqlens,
            total,
            angles: node.rotation.map(|order| self.angles(order, sizes)).transpose()?,
            bias: self.bias.as_ref().map(Tensor::floats).transpose()?,
            bias_shape,
            sinks: self.sinks.as_ref().map(Tensor::floats).transpose()?,
            scales,
        })
    }

    fn sizes(&self, node: &GroupQuery) -> Result<Sizes, CallError> {
        let GroupQuery { heads, kv_heads, .. } = *node;
        // The numbers of heads have no limit, so the sum saturates. No query is that wide.
        let packed = kv_heads.saturating_mul(2).saturating_add(heads);
        let shares = if self.separate.is_some() { heads } else { packed };
        let dims = match *self.query.shape() {
            [batch, rows, hidden] => positive([batch, rows, hidden]),
            _ => None,
        };
        let Some([batch, rows, hidden]) = dims.filter(|[.., hidden]| hidden.is_multiple_of(shares)) else {
            return Err(shape_error(&self.query, &format!("[batch, tokens, {shares} * size], each above 0")));
        };
        let size = hidden / shares;
        let mut new = rows;
        if let Some([key, value]) = &self.separate {
            if matches!(key.shape(), [_, 0, _]) {
                new = 0;
            }
            for tensor in [key, value] {
                tensor.check_shape([batch, new, kv_heads * size])?;
            }
        }
        let slots = match *self.past[0].shape() {
            [_, _, slots, _] => usize::try_from(slots).ok(),
            _ => None,
        };
        let Some(past) = slots else {
            return Err(shape_error(&self.past[0], &format!("[{batch}, {kv_heads}, slots, {size}]")));
        };
        for tensor in &self.past {
            tensor.check_shape([batch, kv_heads, past, size])?;
        }
        if new == 0 && past < rows {
            let failure = format!("has {past} slots, must have at least {rows}");
            return Err(self.past[0].role.failure(failure));
        }
        Ok(Sizes { batch, rows, new, heads, kv_heads, size, past })
    }

    fn angles<T: Float>(&self, order: RotaryOrder, sizes: Sizes) -> Result<Angles<'a, T>, CallError> {
        let Sizes { batch, rows, size, .. } = sizes;
        let Some([cos, sin]) = &self.angles else {
            return Err(Named("cos_cache").failure("is missing".to_owned()));
        };
        let table = match *cos.shape() {
            [count, half] => usize::try_from(count).ok().zip(usize::try_from(half).ok()),
            _ => None,
        };
        let Some((count, half)) = table.filter(|(_, half)| half.saturating_mul(2) <= size) else {
            return Err(shape_error(cos, &format!("[positions, at most {}]", size / 2)));
        };
        if sin.shape() != cos.shape() {
            return Err(shape_error(sin, &format!("{:?}, that of cos_cache", cos.shape())));
        }
        if let Some(ids) = &self.position_ids {
            ids.check_shape([batch, rows])?;
        }
        Ok(Angles {
            table: AngleTable { order, cos: cos.floats()?, sin: sin.floats()?, half },
            count,
            position_ids: self.position_ids.as_ref().map(Tensor::integers).transpose()?,
        })
    }
}

/// Returns the scales of a cache of codes: one, or one for each element of each head.
fn scales<'a>(of: CacheScale, scales: &Tensor<'a>, sizes: Sizes) -> Result<Cow<'a, [f32]>, CallError> {
    let expected = match of {
        CacheScale::Tensor => 1,
        CacheScale::Channel => sizes.kv_heads * sizes.size,
    };
    let given = scales.floats::<f32>()?;
    if given.len() != expected {
        let (got, role) = (given.len(), scales.role);
        return Err(role.failure(format!("has {got} scales, must have {expected}")));
    }
    Ok(given)
}

impl<'a, T: Float> StepInputs<'a, T> {
    /// Returns the types and shapes that a kept call is found by. The number of slots is not one of them, so the calls
    /// of a growing cache share one.
    pub(super) fn signatures<'s>(&self, tensors: &'s Tensors<'a>) -> [Signature<'s>; 4] {
        let Tensors { query, separate, past, bias, .. } = tensors;
        let [key, _] = past;
        let (kind, slots) = key.signature();
        let without_last =
            |(kind, shape): Signature<'s>| (kind, shape.split_last().map_or(shape, |(_, rest)| rest));
        [
            query.signature(),
            separate.as_ref().map_or((0, &[][..]), |[key, _]| key.signature()),
            // The batch and the size follow from the queries.
            (kind, slots.get(1..2).unwrap_or_default()),
            bias.as_ref().map_or((0, &[][..]), |bias| without_last(bias.signature())),
        ]
    }

    /// Returns the number of slots of the presents.
    pub(super) fn slots(&self) -> usize {
        self.sizes.past.max(usize::try_from(self.total).unwrap_or(0))
    }

    /// Returns whether new rows are rotated.
    pub(super) fn rotates(&self) -> bool {
        self.angles.is_some()
    }

    /// Computes the slots of the new tokens. A first prompt, as long as the total, begins at slot 0 in every sample,
    /// and its rows after the end of a shorter sample are padding. Returns an error if a sample does not fit.
    pub(super) fn find_slots(&self, slots: &mut Slots) -> Result<(), CallError> {
        let Sizes { rows, new, past, .. } = self.sizes;
        let (rows, past) = (rows as i64, past as i64);
        slots.is_first = i64::from(self.total) == rows;
        slots.starts.clear();
        slots.lengths.clear();
        // Without new keys, the past contains the new tokens. Otherwise it contains those before them.
        let readable = if new == 0 { past } else { self.slots() as i64 };
        let longest = if slots.is_first { readable } else { readable.min(past + new as i64) };
        let shortest = if slots.is_first { 1 } else { rows };
        for (sample, &seqlen) in self.seqlens.iter().enumerate() {
            let length = i64::from(seqlen) + 1;
            if !(shortest..=longest).contains(&length) {
                let between = format!("must be between {} and {}", shortest - 1, longest - 1);
                return Err(CallError::fail(format!("seqlens_k[{sample}] = {seqlen}: {between}")));
            }
            slots.starts.push(if slots.is_first { 0 } else { length - rows });
            slots.lengths.push(length);
        }
        Ok(())
    }

    /// Checks the position of each new token. Returns an error if there are no angles for it.
    pub(super) fn check_positions(&self, slots: &Slots) -> Result<(), CallError> {
        let Some(Angles { count, .. }) = &self.angles else { return Ok(()) };
        for sample in 0..self.sizes.batch {
            for token in 0..self.sizes.rows {
                let position = self.position(slots, [sample, token]);
                if !usize::try_from(position).is_ok_and(|position| position < *count) {
                    let failure = format!("has {count} positions, sample {sample} needs position {position}");
                    return Err(Named("cos_cache").failure(failure));
                }
            }
        }
        Ok(())
    }

    /// Returns the cosines and sines of a new token. The positions must be checked.
    pub(super) fn angles_of(&self, slots: &Slots, token: [usize; 2]) -> Option<(RotaryOrder, [&[T]; 2])> {
        let Angles { table, .. } = self.angles.as_ref()?;
        Some((table.order, table.row(self.position(slots, token))?))
    }

    /// Returns the position of a new token. In a first prompt, the operator uses only the first of `position_ids`, as
    /// an offset.
    fn position(&self, slots: &Slots, [sample, token]: [usize; 2]) -> i64 {
        let ids = self.angles.as_ref().and_then(|angles| angles.position_ids.as_deref());
        match ids {
            Some(ids) if slots.is_first => ids.first().map_or(-1, |first| first.saturating_add(token as i64)),
            Some(ids) => ids.get(sample * self.sizes.rows + token).copied().unwrap_or(-1),
            None => slots.starts.get(sample).map_or(-1, |start| start + token as i64),
        }
    }
}

/// Returns the shape of a bias, if it fits.
fn bias_shape(bias: &Tensor<'_>, sizes: Sizes, total: i32) -> Result<[usize; 4], CallError> {
    let Sizes { batch, rows, heads, .. } = sizes;
    let fits = |shape: [usize; 4]| {
        [batch, 1].contains(&shape[0])
            && [heads, 1].contains(&shape[1])
            && shape[2] == rows
            && i64::from(total) == shape[3] as i64
    };
    let shape = match *bias.shape() {
        [batch, heads, rows, total] => positive([batch, heads, rows, total]),
        _ => None,
    };
    shape
        .filter(|shape| fits(*shape))
        .ok_or_else(|| shape_error(bias, &format!("[{batch} or 1, {heads} or 1, {rows}, {total}]")))
}

/// Returns dimensions as sizes, if all are above 0.
fn positive<const N: usize>(dims: [i64; N]) -> Option<[usize; N]> {
    let sizes = dims.map(|dim| usize::try_from(dim).unwrap_or(0));
    (!sizes.contains(&0)).then_some(sizes)
}

fn shape_error(tensor: &Tensor<'_>, expected: &str) -> CallError {
    tensor.role.failure(format!("has shape {:?}, must be {expected}", tensor.shape()))
}
