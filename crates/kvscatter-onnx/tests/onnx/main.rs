//! Tests files, models and their evaluation, valid and invalid.
#![expect(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests may fail as tests do")]

mod blocks;
mod cache_path;
mod convert;
mod declared;
mod decoder;
mod encoder;
mod eval;
mod external;
mod fingerprint;
mod flat;
mod forms;
mod fusion;
mod fusion_lengths;
mod fusion_work;
mod latents;
mod lengths;
mod lower;
mod masks;
mod merged;
mod messages;
mod models;
mod narrow;
mod over_concat;
mod placement;
mod raise_scatters;
mod random_inputs;
mod rings;
mod save;
mod sinks;
mod soundness;
mod source;
mod stacked;
mod support;
mod tensors;
mod test_dirs;
