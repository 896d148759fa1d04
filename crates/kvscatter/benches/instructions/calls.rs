//! The calls that are counted. A decoder makes such calls, and their rows are copied without the C library.

use kvscatter::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::{KvCacheUpdate, PackedCall};
use kvscatter::{ElementType, Layout, Mode, Prepared};

use crate::Result;

/// A function that repeats a call.
pub(crate) type Repeat<'a> = &'a mut dyn FnMut(&mut dyn FnMut() -> Result<()>) -> Result<()>;

/// A name, and a function that prepares a call and has it repeated.
type Case = (&'static str, fn(Repeat<'_>) -> Result<()>);

pub(crate) const CASES: &[Case] = &[
    ("decode B1 H1, write", |repeat| write(Decode::new(1, 1), repeat)),
    ("decode B8 H8, write", |repeat| write(Decode::new(8, 8), repeat)),
    ("decode B64 H8, write", |repeat| write(Decode::new(64, 8), repeat)),
    ("decode B1 H1, plan.write", |repeat| plan_write(Decode::new(1, 1), repeat)),
    ("decode B8 H8, plan.write", |repeat| plan_write(Decode::new(8, 8), repeat)),
    ("decode B64 H8, plan.write", |repeat| plan_write(Decode::new(64, 8), repeat)),
    ("decode B8 H8, ring", |repeat| write(Decode { mode: Mode::Circular, ..Decode::new(8, 8) }, repeat)),
    ("4 rows B8 H8, ring that wraps", |repeat| {
        let ring = Decode { mode: Mode::Circular, rows: 4, ..Decode::new(8, 8) };
        write(Decode { start: CAPACITY - 2, ..ring }, repeat)
    }),
    ("4 rows B8 H8, lengths", lengths),
    ("decode B8 H8, K and V", keys_and_values),
    ("512 rows H8, update with heads inside", prefill),
    ("decode B8 H8, packed (TensorRT)", packed),
    ("decode B8, hidden 256, packed (Ascend)", ascend),
    ("functional, 1 of 8 slots", |repeat| functional(1, repeat)),
    ("functional, 6 of 8 slots", |repeat| functional(6, repeat)),
    ("decode B2 H4 D33, 4-bit", nibbles),
];

const CAPACITY: usize = 64;
const HEAD_SIZE: usize = 128;

/// A write of rows of 128 float16 elements for every head of every sample.
#[derive(Clone, Copy)]
struct Decode {
    batch: usize,
    heads: usize,
    rows: usize,
    mode: Mode,
    /// The first sample's start. If the write has a single row, samples have different starts.
    start: usize,
}

impl Decode {
    fn new(batch: usize, heads: usize) -> Self {
        Self { batch, heads, rows: 1, mode: Mode::Linear, start: 3 }
    }

    fn cache_shape(self) -> [usize; 4] {
        [self.batch, self.heads, CAPACITY, HEAD_SIZE]
    }

    fn update_shape(self) -> [usize; 4] {
        [self.batch, self.heads, self.rows, HEAD_SIZE]
    }

    fn prepare(self) -> Result<Prepared> {
        let write = TensorScatter::new().mode(self.mode);
        Ok(write.prepare(ElementType::Float16, &self.cache_shape(), &self.update_shape())?)
    }

    fn tensors(self) -> [Vec<u16>; 2] {
        [vec![0; self.cache_shape().iter().product()], vec![1; self.update_shape().iter().product()]]
    }

    fn starts(self) -> Result<Vec<i64>> {
        let apart = if self.rows == 1 { 7 } else { 0 };
        let start = |sample| i64::try_from((self.start + sample * apart) % CAPACITY);
        Ok((0..self.batch).map(start).collect::<std::result::Result<_, _>>()?)
    }
}

fn write(decode: Decode, repeat: Repeat<'_>) -> Result<()> {
    let (write, [mut cache, update], starts) = (decode.prepare()?, decode.tensors(), decode.starts()?);
    repeat(&mut || Ok(write.write(&mut cache, &update, &starts).map(drop)?))
}

fn plan_write(decode: Decode, repeat: Repeat<'_>) -> Result<()> {
    let (write, [mut cache, update], starts) = (decode.prepare()?, decode.tensors(), decode.starts()?);
    let plan = write.plan(&starts)?;
    repeat(&mut || Ok(plan.write(&mut cache, &update).map(drop)?))
}

/// Writes fewer rows for half of the samples.
fn lengths(repeat: Repeat<'_>) -> Result<()> {
    let decode = Decode { rows: 4, ..Decode::new(8, 8) };
    let (write, [mut cache, update], starts) = (decode.prepare()?, decode.tensors(), decode.starts()?);
    let lengths = [4_i64, 2, 4, 1, 4, 3, 4, 0];
    repeat(&mut || Ok(write.plan_with_lengths(&starts, &lengths)?.write(&mut cache, &update).map(drop)?))
}

fn keys_and_values(repeat: Repeat<'_>) -> Result<()> {
    let decode = Decode::new(8, 8);
    let (write, [mut keys, update], starts) = (decode.prepare()?, decode.tensors(), decode.starts()?);
    let mut values = keys.clone();
    repeat(&mut || {
        let pairs = &mut [(&mut keys, &update), (&mut values, &update)];
        Ok(write.write_many(pairs, &starts).map(drop)?)
    })
}

/// Writes a prefill whose update has the order of dimensions of a projection, with heads inside rows.
fn prefill(repeat: Repeat<'_>) -> Result<()> {
    const ROWS: usize = 512;
    const HEADS: usize = 8;
    let strides = [ROWS * HEADS * HEAD_SIZE, HEAD_SIZE, HEADS * HEAD_SIZE, 1].map(usize::cast_signed);
    let write = TensorScatter::new().prepare(
        ElementType::Float16,
        &[1, HEADS, 2 * ROWS, HEAD_SIZE],
        Layout::strided(&[1, HEADS, ROWS, HEAD_SIZE], &strides),
    )?;
    let (mut cache, update) =
        (vec![0_u16; 2 * ROWS * HEADS * HEAD_SIZE], vec![1_u16; ROWS * HEADS * HEAD_SIZE]);
    repeat(&mut || Ok(write.write(&mut cache, &update, &[9]).map(drop)?))
}

fn packed(repeat: Repeat<'_>) -> Result<()> {
    let decode = Decode::new(8, 8);
    let ([mut cache, update], starts) = (decode.tensors(), decode.starts()?);
    let write = KvCacheUpdate::new().prepare_packed(
        ElementType::Float16,
        &decode.cache_shape(),
        &[decode.batch, decode.heads, HEAD_SIZE],
    )?;
    let cumulative = [0, 1, 2, 3, 4, 5, 6, 7, 8];
    repeat(&mut || {
        Ok(write.plan(PackedCall::new(&starts, &cumulative))?.write(&mut cache, &update).map(drop)?)
    })
}

fn ascend(repeat: Repeat<'_>) -> Result<()> {
    let (new_kv, past) = ([8, 256], [4, 8, CAPACITY, 256]);
    let write = KvCacheOperation::new().prepare(ElementType::Float16, &past, &new_kv)?;
    let (mut cache, update) = (vec![0_u16; past.iter().product()], vec![1_u16; 8 * 256]);
    let (token_offset, seq_len) = ([5, 9, 60, 1, 33, 2, 64, 7], [1; 8]);
    let call = KvCacheOperationCall { layer_id: &[2], token_offset: &token_offset, seq_len: &seq_len };
    repeat(&mut || Ok(write.write(&mut cache, &update, call).map(drop)?))
}

/// Writes slabs of 512 bytes in functional form, where the update fills most slots or only a few.
fn functional(rows: usize, repeat: Repeat<'_>) -> Result<()> {
    let write = TensorScatter::new().prepare(ElementType::Float16, &[2, 8, 8, 32], &[2, 8, rows, 32])?;
    let (past, update) = (vec![0_u16; 2 * 8 * 8 * 32], vec![1_u16; 2 * 8 * rows * 32]);
    let mut present = past.clone();
    repeat(&mut || Ok(write.write_present(&past, &update, &mut present, &[2, 1]).map(drop)?))
}

/// Writes rows that begin or end in the middle of a byte.
fn nibbles(repeat: Repeat<'_>) -> Result<()> {
    let write = TensorScatter::new().prepare(ElementType::UInt4, &[2, 4, 16, 33], &[2, 4, 1, 33])?;
    let (mut cache, update) = (vec![0_u8; 2 * 4 * 16 * 33 / 2], vec![0x21_u8; 2 * 4 * 33 / 2]);
    repeat(&mut || Ok(write.plan(&[3, 8])?.write_bytes(&mut cache, &update).map(drop)?))
}
