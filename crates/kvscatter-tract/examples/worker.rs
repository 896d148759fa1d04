//! Runs a decoder in tract for `cargo xtask bench-real`, which sends requests and measures several engines in turn.
//!
//! `cargo run --release -p kvscatter-tract --example worker -- MODEL THREADS CAPACITY CHUNK`
//!
//! Each line of the standard input is a request, and has one line as its answer. `bench/real/worker.py` serves the same
//! requests in Python, and describes them.

use std::env;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use kvscatter_session::{KvSession, Logits, Sample, SessionError, SessionOptions};
use kvscatter_tract::Tract;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [model, threads, capacity, chunk] = arguments.as_slice() else {
        return Err("usage: worker MODEL THREADS CAPACITY CHUNK".into());
    };
    let options = SessionOptions { threads: Some(threads.parse()?), ..SessionOptions::default() };
    let session = match KvSession::open(&Tract, model, options) {
        Err(SessionError::CapacityOpen) => {
            let capacity = Some(capacity.parse()?);
            KvSession::open(&Tract, model, SessionOptions { capacity, ..options })?
        }
        fixed => fixed?,
    };
    let mut worker = Worker::new(session, chunk.parse()?)?;
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        writeln!(out, "{}", worker.answer(&line?)?)?;
        out.flush()?;
    }
    Ok(())
}

struct Worker {
    session: KvSession,
    sample: Sample,
    chunk: usize,
    /// The most likely token after those in the cache.
    next: i64,
}

impl Worker {
    fn new(mut session: KvSession, chunk: usize) -> Result<Self, Box<dyn Error>> {
        let sample = session.add()?;
        Ok(Self { session, sample, chunk, next: 0 })
    }

    fn answer(&mut self, request: &str) -> Result<String, Box<dyn Error>> {
        let (verb, argument) = request.split_once(' ').unwrap_or((request, ""));
        match verb {
            "reset" => {
                self.session.truncate(self.sample, 0)?;
                Ok("done".to_owned())
            }
            "feed" => {
                let tokens = argument.split(',').map(str::parse).collect::<Result<Vec<i64>, _>>()?;
                let seconds = self.feed(&tokens)?;
                Ok(format!("{seconds} {}", self.next))
            }
            "decode" => {
                let (mut seconds, mut tokens) = (Vec::new(), Vec::new());
                for _ in 0..argument.parse::<usize>()? {
                    seconds.push(self.feed(&[self.next])?.to_string());
                    tokens.push(self.next.to_string());
                }
                Ok(format!("{} {}", seconds.join(","), tokens.join(",")))
            }
            "caches" => Ok(self.session.memory().total.to_string()),
            _ => Err(format!("no such request: {verb}").into()),
        }
    }

    /// Feeds tokens, chooses the next one, and returns the seconds that both took.
    fn feed(&mut self, tokens: &[i64]) -> Result<f64, Box<dyn Error>> {
        let began = Instant::now();
        let logits = self.session.prefill(&[(self.sample, tokens)], self.chunk)?;
        self.next = most_likely(&logits, self.sample)?;
        Ok(began.elapsed().as_secs_f64())
    }
}

/// Returns the token with the largest logit, the first one of several.
fn most_likely(logits: &Logits, sample: Sample) -> Result<i64, Box<dyn Error>> {
    let of_last = logits.last(sample).unwrap_or_default().iter().enumerate().rev();
    let best = of_last.max_by(|(_, a), (_, b)| a.total_cmp(b));
    let (token, _) = best.ok_or("a step without logits")?;
    Ok(i64::try_from(token)?)
}
