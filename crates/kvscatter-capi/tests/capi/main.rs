//! The C functions as C calls them, from Rust: against the oracle, every error, threads, allocations, and the structs
//! as a C compiler lays them out.

#[cfg(test)]
mod allocation;
#[cfg(test)]
mod c;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod dlpack;
#[cfg(test)]
mod errors;
#[cfg(test)]
mod executors;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod strides;
#[cfg(test)]
mod structs;
#[cfg(test)]
mod threads;
