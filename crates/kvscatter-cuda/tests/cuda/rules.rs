//! Tests behaviour that all drivers share, so that the simulated driver is compared with the others.

use std::ffi::c_void;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::ptr::null_mut;

use flate2::read::GzDecoder;

use crate::device::{DriverCode, Handle, Stream, device};
use crate::rig::Rig;

const INVALID_VALUE: DriverCode = 1;
const INVALID_IMAGE: DriverCode = 200;
const INVALID_PTX: DriverCode = 218;
const ILLEGAL_STATE: DriverCode = 401;
const NOT_FOUND: DriverCode = 500;
const CAPTURE_UNSUPPORTED: DriverCode = 900;
const CAPTURE_INVALIDATED: DriverCode = 901;

/// Returns the checked-in PTX with its final zero.
fn ptx() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/images/kvscatter.ptx.gz");
    let compressed = fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = Vec::new();
    GzDecoder::new(compressed).read_to_end(&mut text).unwrap();
    text.push(0);
    text
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn grids_and_blocks_that_no_device_has_are_refused() {
    let (device, stream) = (device(), Stream::new());
    let module = device.module(&ptx()).unwrap();
    let kernel = device.function(module, "kvscatter_write_1").unwrap();
    // All counts are 0, so a launch reads and writes no tensor.
    let zeros = [0_u64; 512];
    let launch = |[grid_x, grid_y, grid_z]: [u32; 3], [block_x, block_y, block_z]: [u32; 3]| {
        let mut arguments: [Handle; 3] = [zeros.as_ptr().cast::<c_void>().cast_mut(); 3];
        let (arguments, extra) = (arguments.as_mut_ptr(), null_mut());
        let functions = &device.functions;
        #[rustfmt::skip]
        let launched = functions.cuLaunchKernel(
            kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, 0, stream.0, arguments, extra,
        );
        launched.err()
    };
    for none in [[0, 1, 1], [1, 0, 1], [1, 1, 0]] {
        assert_eq!(launch(none, [1, 1, 1]), Some(INVALID_VALUE), "{none:?}");
        assert_eq!(launch([1, 1, 1], none), Some(INVALID_VALUE), "{none:?}");
    }
    assert_eq!(launch([1, 65_536, 1], [1, 1, 1]), Some(INVALID_VALUE));
    // The kernels are compiled for at most 256 threads.
    for block in [[1025, 1, 1], [32, 33, 1], [257, 1, 1]] {
        assert!(launch([1, 1, 1], block).is_some(), "{block:?}");
    }
    assert_eq!(launch([1, 1, 1], [256, 1, 1]), None);
    stream.synchronize();
    device.functions.cuModuleUnload(module).unwrap();
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn images_and_kernels_that_do_not_exist_are_refused() {
    let device = device();
    assert_eq!(device.module(&[0; 64]), Err(INVALID_IMAGE));
    assert!(matches!(device.module(b"#!/bin/sh\0"), Err(INVALID_IMAGE | INVALID_PTX)));
    let module = device.module(&ptx()).unwrap();
    assert_eq!(device.function(module, "kvscatter_write_3"), Err(NOT_FOUND));
    assert!(device.function(module, "kvscatter_write_nibbles").is_ok());
    device.functions.cuModuleUnload(module).unwrap();
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_call_that_cannot_be_captured_invalidates_the_capture() {
    let (rig, functions) = (Rig::new(1), &device().functions);
    let (write, stream) = (rig.write(), &rig.stream);
    let invalidated = stream.captured(|| {
        rig.launch(&write).unwrap();
        assert_eq!(functions.cuStreamSynchronize(stream.0), Err(CAPTURE_UNSUPPORTED));
    });
    assert_eq!(invalidated.err(), Some(CAPTURE_INVALIDATED));
    let invalidated = stream.captured(|| {
        let mut address = 0;
        assert_eq!(functions.cuMemAlloc_v2(&raw mut address, 16), Err(CAPTURE_UNSUPPORTED));
    });
    assert_eq!(invalidated.err(), Some(CAPTURE_INVALIDATED));
    let mut graph = null_mut();
    assert_eq!(functions.cuStreamEndCapture(stream.0, &raw mut graph), Err(ILLEGAL_STATE));
    rig.run(&write, [1, 2]);
    rig.assert_written(&[[Some(1), Some(2)]]);
}
