//! The names of the built-in engines.

/// The name of [`Memcpy`](super::Memcpy) on one thread: the first yardstick.
pub const MEMCPY: &str = "memcpy";
/// The name of [`HandLoop`](super::HandLoop): the second yardstick.
pub const HAND_LOOP: &str = "hand loop";
/// The name of [`Kvscatter`](super::Kvscatter) with the case's mode and threads.
pub const KVSCATTER: &str = "kvscatter";
/// The name of [`Kvscatter::unwrapped`](super::Kvscatter::unwrapped): the same bytes in linear mode.
pub const UNWRAPPED: &str = "kvscatter, unwrapped";
/// The name of [`Kvscatter::single`](super::Kvscatter::single), which uses one thread in a case with more.
pub const SINGLE: &str = "kvscatter, 1 thread";
