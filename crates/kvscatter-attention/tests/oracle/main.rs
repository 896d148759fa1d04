//! Compares the crate with the oracle, and results with each other.

#[cfg(test)]
mod boundaries;
#[cfg(test)]
mod bounds;
#[cfg(test)]
mod call;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod element;
#[cfg(test)]
mod executors;
#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod rings;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod variants;
