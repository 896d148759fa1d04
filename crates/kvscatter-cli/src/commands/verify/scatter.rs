//! The TensorScatter of a test directory, and the use of each slot of its cache.

use std::collections::BTreeMap;
use std::fmt;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Segment, WritePlan};
use kvscatter_onnx::{Graph, Node, Tensor};
use serde::Serialize;
use strum::IntoStaticStr;

use crate::values::Summary;

/// The attributes and inputs of a model's only TensorScatter.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ScatterCall {
    past_cache: Summary,
    update: Summary,
    /// `None` if the model has no such input. Every sample then starts at slot 0.
    write_indices: Option<Summary>,
    axis: i64,
    mode: String,
    /// The name of the output.
    #[serde(skip)]
    present_cache: String,
}

/// The use of every slot of the cache in a plan.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// The cache's shape.
    shape: Vec<usize>,
    axis: usize,
    /// The segments in the order of samples. A sample has at most two.
    segments: Vec<Segment>,
    /// The position of each sample, as `write_indices` gives it.
    positions: Vec<Option<i64>>,
    /// The graph output that is the present cache.
    output: usize,
}

/// The use of a slot in a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(super) enum SlotUse {
    Written,
    /// The slot is written after the end of a ring.
    Wrapped,
    Old,
}

/// The place of the first wrong element.
#[derive(Clone, Debug, Serialize)]
pub(super) struct WrongPlace {
    sample: usize,
    slot: usize,
    #[serde(rename = "use")]
    slot_use: SlotUse,
    /// The row of the update that belongs there, or `None` in an old slot.
    update_row: Option<usize>,
    /// The position of the sample, which is 0 without `write_indices`.
    write_index: Option<i64>,
}

/// The wrong elements of an output, by the slots that they lie in.
#[derive(Clone, Debug, Serialize)]
pub(super) struct WrongSlots {
    first: WrongPlace,
    /// The number of wrong elements for each use of slots.
    elements: BTreeMap<SlotUse, usize>,
}

impl ScatterCall {
    /// Returns the call of a graph on these inputs. Returns `None` if the graph does not have exactly one
    /// TensorScatter, or if one of its tensors is not an input of the graph.
    pub(super) fn find(graph: &Graph<'_>, inputs: &[(String, Tensor)]) -> Option<Self> {
        let mut scatters = graph.nodes().iter().filter(|node| node.is("TensorScatter"));
        let (Some(node), None) = (scatters.next(), scatters.next()) else { return None };
        let input = |slot: usize| {
            let name = node.input(slot)?;
            inputs.iter().find(|(input, _)| input == name).map(|(_, tensor)| Summary::new(tensor))
        };
        let write_indices = input(2);
        if write_indices.is_none() && node.input(2).is_some() {
            return None;
        }
        let axis = node.int("axis").ok().flatten().unwrap_or(TensorScatter::DEFAULT_AXIS);
        let mode = node.string("mode").ok().flatten().unwrap_or(b"linear");
        Some(Self {
            past_cache: input(0)?,
            update: input(1)?,
            write_indices,
            axis,
            mode: String::from_utf8_lossy(mode).into_owned(),
            present_cache: node.output(0)?.to_owned(),
        })
    }

    /// Returns the uses of the slots in the plan of a node. Returns `None` if this call belongs to another
    /// node, or if the present cache is not an output of the graph.
    pub(super) fn slots(&self, graph: &Graph<'_>, node: &Node<'_>, plan: &WritePlan<'_>) -> Option<Slots> {
        if node.output(0) != Some(&self.present_cache) {
            return None;
        }
        let shape = self.past_cache.shape().to_vec();
        Some(Slots {
            axis: TensorScatter::new().axis(self.axis).resolve_axis(shape.len()).ok()?,
            segments: plan.segments().collect(),
            positions: (0..plan.batch()).map(|sample| plan.position(sample)).collect(),
            output: graph.output_names().position(|name| name == self.present_cache)?,
            shape,
        })
    }
}

impl SlotUse {
    const ALL: [Self; 3] = [Self::Written, Self::Wrapped, Self::Old];

    pub(super) fn name(self) -> &'static str {
        self.into()
    }
}

impl Slots {
    /// Returns the uses that the slots have.
    pub(super) fn uses(&self) -> impl Iterator<Item = SlotUse> {
        SlotUse::ALL.into_iter().filter(|slot_use| self.have(*slot_use))
    }

    /// Returns whether the write has a slot of this use.
    fn have(&self, slot_use: SlotUse) -> bool {
        match slot_use {
            SlotUse::Written => self.segments.iter().any(|segment| segment.rows > 0 && !segment.is_wrapped()),
            SlotUse::Wrapped => self.segments.iter().any(|segment| segment.rows > 0 && segment.is_wrapped()),
            SlotUse::Old => {
                let written: usize = self.segments.iter().map(|segment| segment.rows).sum();
                let size = |axis: usize| self.shape.get(axis).copied().unwrap_or(0);
                written < size(0).saturating_mul(size(self.axis))
            }
        }
    }

    /// Returns the slots of the wrong elements of an output. Returns `None` if there are none, or if the
    /// output is not the present cache.
    pub(super) fn wrong(&self, output: usize, wrong: impl Iterator<Item = usize>) -> Option<WrongSlots> {
        if output != self.output {
            return None;
        }
        let (mut first, mut elements) = (None, BTreeMap::from(SlotUse::ALL.map(|slot_use| (slot_use, 0))));
        for element in wrong {
            let place = self.place(element)?;
            let count = elements.entry(place.slot_use).or_insert(0_usize);
            *count = count.saturating_add(1);
            first.get_or_insert(place);
        }
        Some(WrongSlots { first: first?, elements })
    }

    /// Returns the place of an element of the cache. Elements are counted in the order of memory.
    fn place(&self, element: usize) -> Option<WrongPlace> {
        let capacity = *self.shape.get(self.axis)?;
        let row: usize = self.shape.get(self.axis.checked_add(1)?..)?.iter().product();
        let sample_elements: usize = self.shape.get(1..)?.iter().product();
        let sample = element.checked_div(sample_elements)?;
        let slot = element.checked_div(row)?.checked_rem(capacity)?;
        let begin = self.segments.partition_point(|segment| segment.sample < sample);
        let segments = self.segments.get(begin..)?.iter().take_while(|segment| segment.sample == sample);
        let segment = segments
            .clone()
            .find(|segment| slot.checked_sub(segment.slot).is_some_and(|distance| distance < segment.rows));
        Some(WrongPlace {
            sample,
            slot,
            slot_use: match segment {
                None => SlotUse::Old,
                Some(segment) if segment.is_wrapped() => SlotUse::Wrapped,
                Some(_) => SlotUse::Written,
            },
            update_row: segment.and_then(|segment| slot.checked_sub(segment.slot)?.checked_add(segment.row)),
            write_index: self.positions.get(sample).copied().flatten(),
        })
    }
}

impl WrongSlots {
    /// Returns the uses of the slots with wrong elements, and the numbers of these elements.
    pub(super) fn uses(&self) -> impl Iterator<Item = (SlotUse, usize)> {
        self.elements.iter().map(|(slot_use, count)| (*slot_use, *count)).filter(|(_, count)| *count > 0)
    }
}

/// Formats a call as `past_cache float32 [2, 1, 4, 5], update float32 [2, 1, 2, 5], axis -2, …`.
impl fmt::Display for ScatterCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { past_cache, update, axis, mode, .. } = self;
        write!(f, "past_cache {past_cache}, update {update}, axis {axis}, mode {mode}, ")?;
        match &self.write_indices {
            Some(indices) => write!(f, "write_indices {indices}"),
            None => write!(f, "no write_indices"),
        }
    }
}

/// Formats a place as `slot 1 of sample 1 is wrapped: row 2 of the update belongs there (…)`.
impl fmt::Display for WrongPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} of sample {} is {}: ", self.slot, self.sample, self.slot_use.name())?;
        match self.update_row {
            Some(row) => write!(f, "row {row} of the update belongs there")?,
            None => write!(f, "it must keep its value")?,
        }
        match self.write_index {
            Some(index) => write!(f, " (the sample's write index is {index})"),
            None => Ok(()),
        }
    }
}

/// Formats the place of the first wrong element, and the number of wrong elements for each use of slots.
impl fmt::Display for WrongSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        let counts: Vec<_> =
            self.uses().map(|(slot_use, count)| format!("{count} in {} slots", slot_use.name())).collect();
        if counts.len() > 1 { write!(f, "; wrong elements: {}", counts.join(", ")) } else { Ok(()) }
    }
}
