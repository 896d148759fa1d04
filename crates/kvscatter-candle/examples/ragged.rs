//! Decodes two sequences of different lengths in one batch. Every step writes keys and values at each
//! sequence's own position, and each sequence attends to its part of the cache.
//!
//! `cargo run -p kvscatter-candle --example ragged`

use candle_core::{D, DType, Device, Result, Tensor};
use kvscatter_candle::{CacheWrite, TensorScatter, WriteAt, Writer, write_many};

const CAPACITY: usize = 8;
const HEADS: usize = 2;
const HEAD_SIZE: usize = 4;

/// The keys and values of one layer, and the number of tokens of each sequence.
struct Layer {
    k: Writer,
    v: Writer,
    lengths: Vec<i64>,
}

impl Layer {
    fn new(sequences: usize) -> Result<Self> {
        let cache = || -> Result<Writer> {
            let slots = Tensor::zeros((sequences, HEADS, CAPACITY, HEAD_SIZE), DType::F32, &Device::Cpu)?;
            Ok(Writer::new(TensorScatter::new(), &slots)?)
        };
        Ok(Self { k: cache()?, v: cache()?, lengths: vec![0; sequences] })
    }

    /// Writes the first `new[i]` tokens of each sequence. The others are padding.
    fn append(&mut self, k: &Tensor, v: &Tensor, new: &[i64]) -> Result<()> {
        let at = WriteAt::new(&self.lengths).lengths(new);
        let _ = write_many(&mut [
            CacheWrite { writer: &mut self.k, update: k, at: at.clone() },
            CacheWrite { writer: &mut self.v, update: v, at },
        ])?;
        self.lengths.iter_mut().zip(new).for_each(|(length, new)| *length += new);
        Ok(())
    }

    /// Returns the attention of one query of each sequence.
    fn attend(&self, query: &Tensor) -> Result<Tensor> {
        let hides =
            |&length: &i64| (0..CAPACITY as i64).map(move |slot| if slot < length { 0.0 } else { f32::MIN });
        let mask: Vec<f32> = self.lengths.iter().flat_map(hides).collect();
        let mask = Tensor::from_vec(mask, (self.lengths.len(), 1, 1, CAPACITY), &Device::Cpu)?;
        let scores = query.matmul(&self.k.cache().transpose(D::Minus1, D::Minus2)?)?.broadcast_add(&mask)?;
        let weights = (&scores - scores.max_keepdim(D::Minus1)?.broadcast_as(scores.shape())?)?.exp()?;
        weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?.matmul(self.v.cache())
    }
}

fn main() -> Result<()> {
    let tokens = |count| Tensor::rand(-1f32, 1., (2, HEADS, count, HEAD_SIZE), &Device::Cpu);
    let (mut batch, prompt) = (Layer::new(2)?, tokens(3)?);
    batch.append(&prompt, &prompt, &[3, 1])?;
    let (mut alone, second) = (Layer::new(1)?, prompt.narrow(0, 1, 1)?);
    alone.append(&second, &second, &[1])?;
    for step in 1..=4 {
        let token = tokens(1)?;
        batch.append(&token, &token, &[1, 1])?;
        let (both, second) = (batch.attend(&token)?, token.narrow(0, 1, 1)?);
        alone.append(&second, &second, &[1])?;
        let difference =
            (both.narrow(0, 1, 1)? - alone.attend(&second)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
        println!(
            "step {step}: lengths {:?}, the second differs from itself alone by {difference:e}",
            batch.lengths
        );
        if difference > 1e-6 {
            candle_core::bail!("the batch is not what its sequences are alone");
        }
    }
    Ok(())
}
