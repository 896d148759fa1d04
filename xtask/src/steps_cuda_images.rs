//! The kernels compiled ahead, by nvcc from wheels: the images that `kvscatter-cuda` holds.

use std::process::Command;

use crate::cargo::target_dir;
use crate::python::{Environment, INDEX, PYTHON};
use crate::step::{Step, Tool};
use crate::steps_c::GCC;

const LOCK: &str = "crates/kvscatter-cuda/kernels/requirements.txt";

/// Compiles them again.
pub(crate) fn cuda_images() -> Step {
    Step::new("cuda-images", vec![compiler().make(), images()]).needs(needs())
}

/// That what is checked in is what the kernels compile to, byte for byte, and what their machine code may not lack.
pub(crate) fn check() -> Step {
    let mut check = images();
    check.arg("--check");
    Step::new("cuda-images", vec![compiler().make(), check]).needs(needs())
}

fn images() -> Command {
    let mut images = compiler().python();
    images.arg("xtask/python/cuda_images.py").arg(target_dir().join("cuda/images"));
    images
}

fn compiler() -> Environment {
    Environment::new("cuda/nvcc", LOCK)
}

/// nvcc calls gcc, if only to read headers.
fn needs() -> &'static [Tool] {
    if compiler().is_made() { &[PYTHON, GCC] } else { &[PYTHON, GCC, INDEX] }
}
