//! The layouts that a conversion can give to caches.

/// The layout of the caches of a converted decoder.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::VariantArray,
)]
pub enum CacheLayout {
    /// `[batch, heads, slots, head size]`, written along axis 2.
    #[default]
    #[strum(serialize = "4d")]
    ByHead,
    /// `[batch, slots, heads * head size]`, written along axis 1, as mobius exports static caches. Only `Attention`
    /// nodes may read them.
    #[strum(serialize = "3d")]
    Flat,
}
