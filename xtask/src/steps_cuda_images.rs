//! Compiles the kernels in advance, with nvcc from Python wheels, into the images that `kvscatter-cuda`
//! contains.

use std::process::Command;

use crate::cargo::target_dir;
use crate::command::With;
use crate::python::{Environment, needs};
use crate::step::Step;
use crate::steps_c::GCC;

const LOCK: &str = "crates/kvscatter-cuda/kernels/requirements.txt";

/// Compiles the images again.
pub(crate) fn cuda_images() -> Step {
    step(images())
}

/// Checks that the checked-in images are what the kernels compile to, byte for byte, and checks properties of
/// the machine code.
pub(crate) fn check() -> Step {
    step(images().with("--check"))
}

/// Returns a step that runs the program. nvcc needs gcc, even if only to preprocess headers.
fn step(program: Command) -> Step {
    let commands = vec![compiler().make(), program];
    Step::new("cuda-images", commands).needs(needs(&[compiler()])).needs(&[GCC])
}

fn images() -> Command {
    compiler().python().with("xtask/python/cuda_images.py").with(target_dir().join("cuda/images"))
}

fn compiler() -> Environment {
    Environment::new("cuda/nvcc", LOCK)
}
