//! Compares the core with the oracle: the same calls, whole buffers bit for bit, and the exact errors.

#[cfg(test)]
mod call;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod large;
#[cfg(test)]
mod pool;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod variants;
#[cfg(test)]
mod view;
