//! Converts decoders whose caches grow into decoders whose caches have a fixed size and are written in place.
//!
//! Each past that a node copies in every step (`Concat`, `Attention` or `GroupQueryAttention`) becomes a static
//! cache `[batch, heads, max_seq, head size]`. `TensorScatter` writes new rows into this cache at
//! `write_indices`. Caches of other layouts, such as `[batch * heads, length, head size]`, get this shape as
//! well, and a cache whose past is cast before new rows are appended gets one type.
//!
//! A decoder is converted only if its masks follow this *rule*:
//!
//! > slot `j` is visible to new token `i` of sample `b` iff `j <= write_indices[b] + i` and
//! > `attention_mask[b, j]`
//!
//! This is causal visibility in a linear cache ([`kvscatter::visibility`]), limited to real tokens. A layer may
//! also have a window, and its cache then becomes a ring if an `Attention` node reads it ([`kvscatter::ring`]). It may
//! have a bias that each head adds to the scores of visible slots. It may depend only on the head and on the distance
//! of slot and token, as in `ALiBi` and T5. The window and the distance count slots or real tokens.
//!
//! The converted decoder computes one mask by this rule in each step and uses it instead of the exported
//! masks.
//!
//! An `Attention` that reads caches after `Concat` appended to them reads the static caches instead. Its keys and
//! values may repeat each head, as PyTorch's exporter writes them. If they are computed from the caches in another
//! way, as by a cast, the node keeps reading what is computed.
//!
//! This crate evaluates both decoders to check the conversion, so no runtime is needed. The inputs of one
//! evaluation are called a *probe*: a few samples with cached tokens, new tokens and padding. On every probe,
//! the exported masks must follow the rule, and all other values that the arithmetic of both decoders uses
//! must be equal. Lengths that no probe has are not checked.
//!
//! Recurrent and convolution states beside the caches stay as they are. Such a state depends on every token,
//! so the conversion does not make padding or batches of mixed lengths possible for it.
//!
//! Attention that consists of separate nodes then becomes one `Attention` node that reads the caches, wherever
//! the node computes the same on random queries and caches. [`ConvertOptions`] can leave it as it is.
//!
//! If the options name a type of caches, new rows are cast or quantized before they are written, and attention reads
//! them in its own type ([`CacheType`]). A decoder whose caches are static already can get another type too.
//!
//! The options may also ask for caches `[batch, slots, heads * head size]` ([`CacheLayout`]).
//!
//! Operators with quantized weights stay.
//!
//! The conversion uses the structure of the graph. Names count only for the roles of inputs
//! ([`InputRole`](crate::decoder::InputRole)). It does not change weights, and it does
//! not read weights that are stored in other files.
//!
//! # Modules
//!
//! A module imports only modules that this table names before it. A test of `xtask` checks that.
//!
//! | for | modules, in order |
//! |---|---|
//! | what a caller wants and cannot have | `cache_type`, `cache_layout`, `options`, `refusal`, `kept` |
//! | made-up steps | `ring`, `probe`, `probes`, `sample_numbers` |
//! | what attention shows | `limits`, `rule`, `tables`, `caches`, `attention`, `masks`, `exported` |
//! | the new graph, and the comparison | `length`, `equivalence`, `rewriter`, `fusion`, `windows`, `report`, `rewrite`, `metadata` |
//! | passes | `pass`, `form`, `to_standard`, `joins`, `static_caches`, `raise_scatters`, `narrow`, `flat`, `state_columns`, `passes` |
//! | uses of a conversion | `mask_rule`, `conversion`, `cache_names`, `outcome` |

mod attention;
mod cache_layout;
mod cache_names;
mod cache_type;
mod caches;
mod conversion;
mod equivalence;
mod exported;
mod flat;
mod form;
mod fusion;
mod joins;
mod kept;
mod length;
mod limits;
pub(crate) mod mask_rule;
mod masks;
mod metadata;
mod narrow;
mod options;
mod outcome;
mod pass;
mod passes;
mod probe;
mod probes;
mod raise_scatters;
mod refusal;
mod report;
mod rewrite;
mod rewriter;
mod ring;
mod rule;
mod sample_numbers;
mod state_columns;
mod static_caches;
mod tables;
mod to_standard;
mod windows;

pub use cache_layout::CacheLayout;
pub use cache_names::{CacheNames, CacheNamesError};
pub use cache_type::{CacheType, CacheTypeError};
pub use conversion::{Converted, convert};
pub use kept::{KeptAttention, KeptForm, KeptReason};
pub(crate) use limits::SlotLimits;
pub use options::{ConvertOptions, WindowedCaches};
pub(crate) use outcome::near;
pub use outcome::{ConvertOutcome, Windows};
pub use refusal::{ConvertError, ConvertRefusal};
pub use report::{
    AttentionReport, CacheReport, Claim, InputReport, KeptState, NarrowCaches, PassReport, Report,
};
pub use ring::{MOST_TOKENS, RingSize, RingSizeError, UNLIMITED};
pub use rule::CacheWindow;
pub use windows::{LinearReason, LinearWindow};

pub use crate::standard::NoStandardForm;
