//! Tests behaviour that all drivers share, so that the simulated driver is compared with the others.

use std::ptr::null_mut;

use crate::abi::{Call, FEW_JOBS, Job, Loop, OTHER_LOOPS, POSITIONS_I64, WriteShape, magic};
use crate::device::{Failure, Memory, Stream, device};
use crate::launch::{self, Threads, ptx};

const INVALID_VALUE: Failure = 1;
const INVALID_IMAGE: Failure = 200;
const INVALID_PTX: Failure = 218;
const ILLEGAL_STATE: Failure = 401;
const NOT_FOUND: Failure = 500;
const CAPTURE_UNSUPPORTED: Failure = 900;
const CAPTURE_INVALIDATED: Failure = 901;

/// Returns the shape of a write from `[1, 1]` into `[1, 4]`, with elements of one byte.
fn shape() -> WriteShape {
    let once = Loop { dst_stride: 0, src_stride: 0, count: 1, magic: magic(1) };
    WriteShape {
        samples: once,
        rows: Loop { dst_stride: 1, src_stride: 1, ..once },
        others: [once; OTHER_LOOPS],
        layer_stride: 0,
        run: 1,
        capacity: 4,
        layers: 1,
        per_thread: 1,
        dst_begin: 0,
        src_begin: 0,
    }
}

/// A write of one byte to the slot that is in a list on the device.
struct Scene {
    cache: Memory,
    update: Memory,
    starts: Memory,
    stream: Stream,
}

impl Scene {
    fn new() -> Self {
        let (cache, update) = (Memory::of(&[0; 4]), Memory::of(&[1]));
        launch::function("kvscatter_write_1");
        Self { cache, update, starts: Memory::of_i64(&[0]), stream: Stream::new() }
    }

    fn launch(&self) {
        let job = Job { cache: self.cache.address, update: self.update.address };
        let call = Call { positions: self.starts.address, flags: POSITIONS_I64, ..Call::default() };
        let threads = Threads { block: [1, 1], per_thread: 1, spare: 0 };
        launch::write("kvscatter_write_1", &[job], &shape(), &call, threads, 1, &self.stream);
    }

    /// Launches with these numbers of blocks and threads, and returns the error.
    fn refused(&self, grid: [u32; 3], block: [u32; 3]) -> Option<Failure> {
        let table = [Job { cache: self.cache.address, update: self.update.address }; FEW_JOBS];
        let call = Call { positions: self.starts.address, flags: POSITIONS_I64, ..Call::default() };
        launch::launch("kvscatter_write_1", &table, &shape(), &call, grid, block, &self.stream).err()
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn grids_and_blocks_that_no_device_has_are_refused() {
    let scene = Scene::new();
    for none in [[0, 1, 1], [1, 0, 1], [1, 1, 0]] {
        assert_eq!(scene.refused(none, [1, 1, 1]), Some(INVALID_VALUE), "{none:?}");
        assert_eq!(scene.refused([1, 1, 1], none), Some(INVALID_VALUE), "{none:?}");
    }
    assert_eq!(scene.refused([1, 65_536, 1], [1, 1, 1]), Some(INVALID_VALUE));
    // The kernels are compiled for at most 256 threads.
    for block in [[1025, 1, 1], [32, 33, 1], [257, 1, 1]] {
        assert!(scene.refused([1, 1, 1], block).is_some(), "{block:?}");
    }
    assert_eq!(scene.refused([1, 1, 1], [256, 1, 1]), None);
    scene.stream.synchronize();
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn what_is_no_image_and_no_kernel_is_refused() {
    let device = device();
    assert_eq!(device.module(&[0; 64]), Err(INVALID_IMAGE));
    assert!(matches!(device.module(b"#!/bin/sh\0"), Err(INVALID_IMAGE | INVALID_PTX)));
    let module = device.module(&ptx()).unwrap();
    assert_eq!(device.function(module, "kvscatter_write_3"), Err(NOT_FOUND));
    assert!(device.function(module, "kvscatter_write_nibbles").is_ok());
    device.functions.cuModuleUnload(module).unwrap();
}

/// Checks that indices are read every time that the graph runs.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_captured_launch_runs_when_it_is_replayed() {
    let scene = Scene::new();
    let graph = scene.stream.captured(|| scene.launch()).unwrap();
    scene.stream.synchronize();
    assert_eq!(scene.cache.read(), [0, 0, 0, 0]);
    for (start, expected) in [(2, [0, 0, 1, 0]), (0, [1, 0, 1, 0]), (4, [1, 0, 1, 0])] {
        scene.starts.fill(&i64::to_ne_bytes(start));
        graph.launch(&scene.stream);
        scene.stream.synchronize();
        assert_eq!(scene.cache.read(), expected);
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_capture_is_spoilt_by_what_cannot_be_captured() {
    let scene = Scene::new();
    let functions = &device().functions;
    let spoilt = scene.stream.captured(|| {
        scene.launch();
        assert_eq!(functions.cuStreamSynchronize(scene.stream.0), Err(CAPTURE_UNSUPPORTED));
    });
    assert_eq!(spoilt.err(), Some(CAPTURE_INVALIDATED));
    let spoilt = scene.stream.captured(|| {
        let mut address = 0;
        assert_eq!(functions.cuMemAlloc_v2(&raw mut address, 16), Err(CAPTURE_UNSUPPORTED));
    });
    assert_eq!(spoilt.err(), Some(CAPTURE_INVALIDATED));
    let mut graph = null_mut();
    assert_eq!(functions.cuStreamEndCapture(scene.stream.0, &raw mut graph), Err(ILLEGAL_STATE));
    scene.launch();
    scene.stream.synchronize();
    assert_eq!(scene.cache.read(), [1, 0, 0, 0]);
}
