//! New names of the caches of a converted decoder.

use std::collections::{BTreeMap, BTreeSet};

use super::conversion::Converted;
use super::metadata;
use super::refusal::ConvertRefusal;
use crate::OnnxError;
use crate::decoder::{CachePart, Decoder};
use crate::names::{Names, replace_captures, subgraphs};
use crate::proto::ModelProto;

/// The place of the number of a layer in a pattern of names.
const LAYER: &str = "{i}";

/// The place of `key` or `value`.
const PART: &str = "{part}";

/// Patterns of the names of pasts and presents, such as `{part}_cache.{i}` and `updated_{part}_cache.{i}`.
///
/// `{i}` is the number of the cache among those of keys or of values, from 0, and `{part}` is `key` or `value`. The
/// names of scales end with `_scale`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheNames {
    past: String,
    present: String,
}

/// The reason why a pattern does not name caches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum CacheNamesError {
    /// Caches would get equal names.
    #[error(
        "{pattern:?} does not contain {place}: use {LAYER} for the number of the cache and {PART} for key or value"
    )]
    PlaceMissing { pattern: String, place: &'static str },
    /// Pasts and presents would get equal names.
    #[error("{pattern:?} names both the pasts and the presents: the names must differ")]
    SamePattern { pattern: String },
}

impl CacheNames {
    /// Creates the patterns of pasts and of presents.
    ///
    /// Without a pattern of presents, it is that of pasts with `updated_` before it, or with `present` in place of
    /// `past_key_values` or `past` at the beginning.
    ///
    /// # Errors
    /// Returns [`CacheNamesError`] if two names would be equal.
    pub fn new(past: &str, present: Option<&str>) -> Result<Self, CacheNamesError> {
        let derived = || match ["past_key_values", "past"].iter().find_map(|start| past.strip_prefix(start)) {
            Some(rest) => format!("present{rest}"),
            None => format!("updated_{past}"),
        };
        let present = present.map_or_else(derived, str::to_owned);
        for pattern in [past, &present] {
            if let Some(place) = [LAYER, PART].into_iter().find(|place| !pattern.contains(place)) {
                return Err(CacheNamesError::PlaceMissing { pattern: pattern.to_owned(), place });
            }
        }
        match present == past {
            true => Err(CacheNamesError::SamePattern { pattern: present }),
            false => Ok(Self { past: past.to_owned(), present }),
        }
    }

    /// Returns the new name of each past and present of a decoder.
    fn new_names(&self, decoder: &Decoder<'_>) -> Result<BTreeMap<String, String>, ConvertRefusal> {
        let (mut counts, mut names) = (BTreeMap::new(), BTreeMap::new());
        for cache in &decoder.caches {
            let part = match cache.part {
                CachePart::Key => "key",
                CachePart::Value => "value",
                CachePart::Both | CachePart::Latent | CachePart::Unknown => {
                    return Err(ConvertRefusal::CacheUnnamed { past: cache.past.to_owned() });
                }
            };
            let layer = counts.entry((part, cache.is_scales())).or_insert(0_usize);
            let number = layer.to_string();
            *layer = layer.saturating_add(1);
            let scale = if cache.is_scales() { "_scale" } else { "" };
            for (old, pattern) in [(cache.past, &self.past), (cache.present, &self.present)] {
                let new = pattern.replace(LAYER, &number).replace(PART, part);
                names.insert(old.to_owned(), format!("{new}{scale}"));
            }
        }
        Ok(names)
    }
}

impl Converted {
    /// Gives the pasts and presents of the decoder other names. The graph stays the same but for these names.
    ///
    /// # Errors
    /// * Returns [`ConvertRefusal::CacheUnnamed`] for a cache that is neither of keys nor of values.
    /// * Returns [`ConvertRefusal::NameTaken`] if another value has or gets one of the names.
    pub fn rename_caches(&mut self, names: &CacheNames) -> Result<(), OnnxError> {
        let exported = self.model.graph_hash()?.of_exported(self.model.proto());
        let graph = self.model.graph()?;
        let new_names = names.new_names(&Decoder::from_graph(&graph)?)?;
        let taken = Names::of_graph(&self.model.proto().graph);
        let mut given = BTreeSet::new();
        for name in new_names.values() {
            let is_of_another = taken.contains(name) && !new_names.contains_key(name);
            if is_of_another || !given.insert(name) {
                return Err(ConvertRefusal::NameTaken { name: name.clone() }.into());
            }
        }
        rename(self.model.proto_mut(), &new_names);
        let graph = self.model.graph()?;
        let pairs = metadata::pairs(&Decoder::from_graph(&graph)?);
        if let Some(narrow) = &mut self.report.caches.narrow {
            let named = |name: &String| new_names.get(name).unwrap_or(name).clone();
            narrow.scales = narrow.scales.iter().map(|(codes, scale)| (named(codes), named(scale))).collect();
            metadata::write_narrow(&pairs, narrow, self.model.proto_mut());
        }
        metadata::write_pairs(&pairs, self.model.proto_mut());
        if let Some(exported) = exported {
            exported.set(self.model.graph_hash()?, self.model.proto_mut());
        }
        Ok(())
    }
}

/// Gives values other names, in the graph and in graphs of its nodes.
fn rename(model: &mut ModelProto, new_names: &BTreeMap<String, String>) {
    let graph = model.graph.get_or_insert_default();
    let declared = graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info);
    for name in declared.filter_map(|value| value.name.as_mut()) {
        if let Some(new) = new_names.get(name) {
            name.clone_from(new);
        }
    }
    for node in &mut graph.node {
        for name in node.input.iter_mut().chain(&mut node.output) {
            if let Some(new) = new_names.get(name) {
                name.clone_from(new);
            }
        }
        if subgraphs(node).next().is_some() {
            // A new name may be the old name of another value.
            let free = |old: &String| format!("{old}\n");
            for old in new_names.keys() {
                replace_captures(node, old, &free(old));
            }
            for (old, new) in new_names {
                replace_captures(node, &free(old), new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheNames, CacheNamesError};

    fn presents(past: &str, present: Option<&str>) -> Result<String, CacheNamesError> {
        CacheNames::new(past, present).map(|names| names.present)
    }

    #[test]
    fn presents_follow_from_pasts() {
        for (past, present) in [
            ("{part}_cache.{i}", "updated_{part}_cache.{i}"),
            ("past_key_values.{i}.{part}", "present.{i}.{part}"),
            ("past.{i}.{part}", "present.{i}.{part}"),
        ] {
            assert_eq!(presents(past, None).as_deref(), Ok(present));
        }
        assert_eq!(presents("{part}{i}", Some("new_{part}{i}")).as_deref(), Ok("new_{part}{i}"));
    }

    #[test]
    fn patterns_with_equal_names_are_refused() {
        let missing =
            |pattern: &str, place| CacheNamesError::PlaceMissing { pattern: pattern.to_owned(), place };
        assert_eq!(presents("{part}", None), Err(missing("{part}", "{i}")));
        assert_eq!(presents("key_cache.{i}", None), Err(missing("key_cache.{i}", "{part}")));
        assert_eq!(presents("{part}.{i}", Some("out.{i}")), Err(missing("out.{i}", "{part}")));
        let same = CacheNamesError::SamePattern { pattern: "{part}.{i}".to_owned() };
        assert_eq!(presents("{part}.{i}", Some("{part}.{i}")), Err(same));
    }
}
