//! Runs a static-cache decoder and certifies that its KV cache is written in place.
