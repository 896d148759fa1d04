//! Finds sizes that contradict each other, and sizes that follow from others although they are not declared.

use std::collections::BTreeMap;

use super::cache::{Cache, WriterStyle};
use super::trace::Path;
use crate::{DecoderError, Dimension, Graph, Node, OnnxError, ValueInfo};

/// Checks that declarations of the same size do not differ.
///
/// Past and present must agree in all dimensions that must be equal. All batch sizes must be equal, and so
/// must all dimensions with the same symbol.
pub(super) fn check<'m>(caches: &[Cache<'m>], inputs: &[ValueInfo<'m>]) -> Result<(), OnnxError> {
    let mut sizes = Sizes::default();
    let mut batch = None;
    let inputs: BTreeMap<_, _> = inputs.iter().map(|input| (input.name, input)).collect();
    for cache in caches {
        let Some(&past) = inputs.get(cache.past) else { continue };
        // Nodes between past and present may transpose or cut the cache. The effect of an unknown writer is
        // not known.
        let turned = cache.between.iter().any(|node| matches!(node.op_type(), "Transpose" | "Slice" | "Pad"));
        if turned || matches!(cache.style, WriterStyle::Unknown(_)) {
            continue;
        }
        let first = *batch.get_or_insert((past, 0));
        sizes.unify(first, (past, 0))?;
        for axis in 0..cache.past_shape.len() {
            let (old, new) = ((past, axis), (&cache.present_info, axis));
            if axis != cache.axis || cache.is_static() {
                sizes.unify(old, new)?;
            } else if cache.style.grows() && sizes.are_one(old, new) {
                let size = dim(old).map(|dim| text(&dim)).unwrap_or_default();
                let (past, present) = (cache.past.to_owned(), cache.present.to_owned());
                return Err(DecoderError::CacheDoesNotGrow { past, present, axis, size }.into());
            }
        }
    }
    Ok(())
}

/// A dimension of a declared value.
type DeclaredDim<'v, 'm> = (&'v ValueInfo<'m>, usize);

/// What is known about symbols: their sizes with the dimensions that declare them, and which symbols are
/// equal.
#[derive(Default)]
struct Sizes<'m> {
    /// A link from each symbol towards the representative of all symbols with the same size.
    same: BTreeMap<&'m str, &'m str>,
    known: BTreeMap<&'m str, (usize, &'m str, usize)>,
}

impl<'m> Sizes<'m> {
    fn unify(&mut self, left: DeclaredDim<'_, 'm>, right: DeclaredDim<'_, 'm>) -> Result<(), OnnxError> {
        let (Some(left_dim), Some(right_dim)) = (dim(left), dim(right)) else { return Ok(()) };
        let (left, right) = (self.resolve(left_dim, left), self.resolve(right_dim, right));
        match (left, right) {
            (Ok(left), Ok(right)) => agree(left, right),
            (Ok(size), Err(symbol)) | (Err(symbol), Ok(size)) => {
                self.known.insert(symbol, size);
                Ok(())
            }
            (Err(left), Err(right)) => {
                if left != right {
                    self.same.insert(left, right);
                }
                Ok(())
            }
        }
    }

    fn are_one(&self, left: DeclaredDim<'_, 'm>, right: DeclaredDim<'_, 'm>) -> bool {
        match (dim(left), dim(right)) {
            (Some(Dimension::Unknown) | None, _) | (_, Some(Dimension::Unknown) | None) => false,
            (Some(left), Some(right)) => left == right,
        }
    }

    /// Returns a size and where it is declared, or the symbol that represents it.
    fn resolve(
        &mut self,
        dim: Dimension<'m>,
        declared: DeclaredDim<'_, 'm>,
    ) -> Result<(usize, &'m str, usize), &'m str> {
        let first = match dim {
            Dimension::Known(size) => return Ok((size, declared.0.name, declared.1)),
            Dimension::Symbolic(symbol) => symbol,
            Dimension::Unknown => "",
        };
        let mut symbol = first;
        while let Some(&next) = self.same.get(symbol) {
            // Symbols on the way are linked to the symbol after the next one, which halves the chain. No long
            // chain is walked twice at its full length.
            match self.same.get(next).copied() {
                Some(after) => {
                    self.same.insert(symbol, after);
                    symbol = after;
                }
                None => symbol = next,
            }
        }
        self.known.get(symbol).copied().ok_or(symbol)
    }
}

fn agree(left: (usize, &str, usize), right: (usize, &str, usize)) -> Result<(), OnnxError> {
    let ((first_size, first, first_axis), (second_size, second, second_axis)) = (left, right);
    if first_size == second_size {
        return Ok(());
    }
    let (first, second) = (first.to_owned(), second.to_owned());
    Err(DecoderError::DimsDiffer { first, first_axis, first_size, second, second_axis, second_size }.into())
}

/// Returns a dimension that has a size or a symbol.
fn dim<'m>((value, axis): DeclaredDim<'_, 'm>) -> Option<Dimension<'m>> {
    value.shape.as_ref()?.get(axis).copied().filter(|dim| *dim != Dimension::Unknown)
}

fn text(dim: &Dimension<'_>) -> String {
    match dim {
        Dimension::Known(size) => size.to_string(),
        Dimension::Symbolic(symbol) => (*symbol).to_owned(),
        Dimension::Unknown => "?".to_owned(),
    }
}

/// Returns the shape of the past with its gaps filled from the present's declaration and from the writer's
/// attributes and weights.
pub(super) fn known<'m>(graph: &Graph<'m>, cache: &Cache<'m>) -> Vec<Dimension<'m>> {
    let present = cache.present_info.shape.as_deref().unwrap_or_default();
    let mut shape = cache.past_shape.clone();
    let is_known = |dim: &Dimension<'_>| matches!(dim, Dimension::Known(_));
    for (axis, dim) in shape.iter_mut().enumerate().filter(|(axis, _)| *axis != cache.axis) {
        if let Some(declared) = present.get(axis).filter(|declared| !is_known(dim) && is_known(declared)) {
            *dim = *declared;
        }
    }
    if let (WriterStyle::GroupQueryAttention, Some(writer), [_, heads, _, head_size]) =
        (&cache.style, &cache.writer, shape.as_mut_slice())
    {
        for (dim, size) in [(heads, of_heads(writer)), (head_size, of_head(graph, writer))] {
            if let Some(size) = size.filter(|_| !is_known(dim)) {
                *dim = Dimension::Known(size);
            }
        }
    }
    shape
}

fn of_heads(writer: &Node<'_>) -> Option<usize> {
    usize::try_from(writer.attribute("kv_num_heads")?.i?).ok()
}

/// Returns the head size of a `GroupQueryAttention`.
///
/// It follows from the declaration of its result, or from the width of the projection that makes the keys,
/// alone or packed with queries and values.
fn of_head(graph: &Graph<'_>, writer: &Node<'_>) -> Option<usize> {
    let kv_heads = of_heads(writer)?;
    let heads = usize::try_from(writer.attribute("num_heads")?.i?).ok()?;
    let declared =
        graph.declared(writer.output(0)?).and_then(|result| result.shape.as_ref()?.last().copied());
    let (width, heads) = match (declared, writer.input(1)) {
        (Some(Dimension::Known(width)), _) => (width, heads),
        (_, Some(key)) => (width(graph, key)?, kv_heads),
        (_, None) => (width(graph, writer.input(0)?)?, heads.checked_add(kv_heads)?.checked_add(kv_heads)?),
    };
    width.checked_div(heads).filter(|head| head.checked_mul(heads) == Some(width))
}

/// Returns the last dimension of the result of a product with weights.
fn width(graph: &Graph<'_>, value: &str) -> Option<usize> {
    let name = graph.name(value)?;
    let (node, _) = graph.producer(Path::back(graph, name).source)?;
    let size = match node.op_type() {
        "MatMul" => *graph.constant(node.input(1)?)?.dims.last()?,
        "Gemm" => {
            let dims = &graph.constant(node.input(1)?)?.dims;
            let is_turned = node.attribute("transB").and_then(|turned| turned.i).unwrap_or(0) != 0;
            *if is_turned { dims.first()? } else { dims.last()? }
        }
        "MatMulNBits" => node.attribute("N")?.i?,
        _ => return None,
    };
    usize::try_from(size).ok()
}
