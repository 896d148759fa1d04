//! Launches one kernel as the host code does, but with any number of threads and blocks.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::ptr::{from_ref, null_mut};
use std::sync::{Mutex, OnceLock};

use flate2::read::GzDecoder;

use crate::abi::{Call, FEW_JOBS, JOBS, Job, PRESENT_JOBS, PresentJob, PresentShape, WriteShape};
use crate::device::{Failure, Handle, Stream, device, library};

/// Returns the checked-in PTX with its final zero.
pub(crate) fn ptx() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/images/kvscatter.ptx.gz");
    let compressed = fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = Vec::new();
    GzDecoder::new(compressed).read_to_end(&mut text).unwrap();
    text.push(0);
    text
}

/// The number of threads and blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threads {
    pub(crate) block: [u32; 2],
    pub(crate) per_thread: u32,
    /// The number of additional blocks, which have no work.
    pub(crate) spare: u32,
}

impl Threads {
    fn blocks(self, runs: u32) -> u32 {
        runs.div_ceil(self.block[1] * self.per_thread).max(1) + self.spare
    }
}

/// Launches a kernel that writes in place.
pub(crate) fn write(
    kernel: &str,
    jobs: &[Job],
    shape: &WriteShape,
    call: &Call,
    threads: Threads,
    runs: u32,
    stream: &Stream,
) {
    let mut shape = *shape;
    shape.per_thread = threads.per_thread;
    let grid = [threads.blocks(runs), u32::try_from(jobs.len()).unwrap(), 1];
    let block = [threads.block[0], threads.block[1], 1];
    let launched = if is_few(kernel) {
        launch(kernel, &table::<_, FEW_JOBS>(jobs), &shape, call, grid, block, stream)
    } else {
        launch(kernel, &table::<_, JOBS>(jobs), &shape, call, grid, block, stream)
    };
    assert!(launched.is_ok(), "{kernel}: {}", device().name(launched.unwrap_err()));
}

/// Returns `true` if the kernel has a short table, as `kvscatter_write_16` has.
fn is_few(kernel: &str) -> bool {
    kernel.rsplit_once('_').is_some_and(|(name, _)| name == "kvscatter_write") && !kernel.ends_with("nibbles")
}

/// Launches a kernel for the functional form.
pub(crate) fn present(
    kernel: &str,
    jobs: &[PresentJob],
    shape: &PresentShape,
    call: &Call,
    threads: Threads,
    runs: u32,
    stream: &Stream,
) {
    let mut shape = *shape;
    shape.update.per_thread = threads.per_thread;
    let grid = [threads.blocks(runs), u32::try_from(jobs.len()).unwrap(), 1];
    let block = [threads.block[0], threads.block[1], 1];
    let launched = launch(kernel, &table::<_, PRESENT_JOBS>(jobs), &shape, call, grid, block, stream);
    assert!(launched.is_ok(), "{kernel}: {}", device().name(launched.unwrap_err()));
}

fn table<J: Copy + Default, const N: usize>(jobs: &[J]) -> [J; N] {
    let mut table = [J::default(); N];
    table[..jobs.len()].copy_from_slice(jobs);
    table
}

/// Launches a kernel, and returns the driver's result.
pub(crate) fn launch<T, S>(
    kernel: &str,
    table: &T,
    shape: &S,
    call: &Call,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    stream: &Stream,
) -> Result<(), Failure> {
    let mut arguments = [pointer(table), pointer(shape), pointer(call)];
    let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (grid, block);
    device().functions.cuLaunchKernel(
        function(kernel),
        grid_x,
        grid_y,
        grid_z,
        block_x,
        block_y,
        block_z,
        0,
        stream.0,
        arguments.as_mut_ptr(),
        null_mut(),
    )
}

fn pointer<T>(value: &T) -> Handle {
    from_ref(value).cast::<c_void>().cast_mut()
}

/// Returns a kernel of the one module, which is never unloaded. The kernel's code is loaded onto the device,
/// because that is forbidden while a stream is captured.
pub(crate) fn function(name: &str) -> Handle {
    static LOADED: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
    let mut loaded = LOADED.lock().unwrap();
    *loaded.entry(name.to_owned()).or_insert_with(|| load(name) as usize) as Handle
}

fn load(name: &str) -> Handle {
    static MODULE: OnceLock<usize> = OnceLock::new();
    let module = MODULE.get_or_init(|| device().module(&ptx()).unwrap() as usize);
    let function = device().function(*module as Handle, name).unwrap();
    // SAFETY: `cuFuncLoad` has this type in every driver that has it.
    if let Ok(load) = unsafe { library().get::<unsafe extern "C" fn(Handle) -> Failure>("cuFuncLoad") } {
        // SAFETY: `function` comes from `cuModuleGetFunction`.
        assert_eq!(unsafe { load(function) }, 0);
    }
    function
}
