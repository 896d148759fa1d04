//! Compiles the kernels in advance, with nvcc from Python wheels, into the images that `kvscatter-cuda`
//! contains.

use std::process::Command;

use crate::cargo::target_dir;
use crate::python::{Environment, INDEX, PYTHON};
use crate::step::{Step, Tool};
use crate::steps_c::GCC;

const LOCK: &str = "crates/kvscatter-cuda/kernels/requirements.txt";

/// Compiles the images again.
pub(crate) fn cuda_images() -> Step {
    Step::new("cuda-images", vec![compiler().make(), images()]).needs(needs())
}

/// Checks that the checked-in images are what the kernels compile to, byte for byte, and checks properties of
/// the machine code.
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

/// nvcc needs gcc, even if only to preprocess headers.
fn needs() -> &'static [Tool] {
    if compiler().is_made() { &[PYTHON, GCC] } else { &[PYTHON, GCC, INDEX] }
}
