//! An engine whose logits are a hash of exactly the rows that a query sees, of their positions, of the states and of
//! what an encoder has computed. So one wrong byte in one row, one wrong position or one hidden slot changes every
//! later logit. [`Expected`] computes the same hashes from the tokens and the text alone, without caches.

use std::panic::resume_unwind;
use std::time::Duration;

use kvscatter_onnx::decoder::Decoder;
use kvscatter_onnx::{Model, ModelFile};
use kvscatter_session::{
    CachePort, EncoderOutputs, EncoderPort, Engine, Interface, LoadOptions, Purpose, Sample, Session,
    SessionError, Step, StepOutput, Tensor,
};

use super::random::faults::{Fault, PANIC, Plan};
use super::random::int64s;
use super::random::oracle::Oracle;

pub(crate) struct Exact(pub(crate) Plan);

struct ExactSession {
    interface: Interface,
    plan: Plan,
}

impl Engine for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn device(&self) -> &'static str {
        "CPU"
    }

    fn load(&self, file: &ModelFile, _: LoadOptions) -> Result<Box<dyn Session>, SessionError> {
        let model = Model::load(file.path())?;
        let graph = model.graph()?;
        let interface = Interface::new(&model, &Decoder::from_graph(&graph)?)?;
        Ok(Box::new(ExactSession { interface, plan: self.0.clone() }))
    }
}

impl Session for ExactSession {
    fn takes_some_samples(&self) -> bool {
        true
    }

    fn run(&mut self, mut step: Step<'_>) -> Result<StepOutput, SessionError> {
        let fault = self.plan.of_run();
        let refused = || SessionError::Run { engine: "exact 1".to_owned(), message: "no".to_owned() };
        if fault == Some(Fault::Refuses) {
            return Err(refused());
        }
        if fault == Some(Fault::PanicsFirst) {
            resume_unwind(Box::new(PANIC));
        }
        let inputs = || step.inputs.iter().chain(&step.of_batch);
        let find = |name: &str| inputs().find(|(input, _)| *input == name).map(|(_, tensor)| *tensor);
        let input = |name: &str| find(name).unwrap();
        let tokens = int64s(input("input_ids"));
        let [batch, width] = *input("input_ids").shape() else { panic!() };
        let starts = match find("write_indices") {
            Some(indices) => int64s(indices),
            None => starts_of_mask(&int64s(input("attention_mask")), batch, width).ok_or_else(refused)?,
        };
        let fed = |purpose| {
            let port = self.interface.feeds.iter().find(|port| port.purpose == purpose);
            port.and_then(|port| find(&port.name))
        };
        if let Some(lengths) = fed(Purpose::NonpadKvSeqlen) {
            let ends = starts.iter().map(|start| start + width as i64);
            assert!(ends.eq(int64s(lengths)), "{lengths:?}");
        }
        let positions = fed(Purpose::Positions).map(int64s);
        let mask = fed(Purpose::Mask);
        let first = step.samples.as_ref().map_or(0, |samples| samples.start);
        let states = self.interface.states.iter().map(|port| {
            let past = input(&port.past);
            (first..first + batch).map(|sample| Columns::of_sample(past, sample)).collect::<Vec<_>>()
        });
        let mut states: Vec<_> = states.collect();
        let texts = first..first + batch;
        let texts: Vec<_> = texts.map(|sample| text(&self.interface.encoder, input, sample)).collect();
        let mut logits = Tensor::zeros(self.interface.logits_element, &[batch, width, 256]).unwrap();
        let caches: Vec<_> = self.interface.caches.iter().map(|port| Rows::new(port, &step)).collect();
        for sample in 0..batch {
            for column in 0..width {
                let (token, position) = (tokens[sample * width + column], starts[sample] as usize + column);
                let fed_position =
                    positions.as_ref().map_or(position, |fed| fed[sample * width + column] as usize);
                let state = states.iter_mut().map(|of| &mut of[sample]);
                let mut context =
                    state.fold(texts[sample], |context, state| mix(context, state.push(token as u64)));
                let caches = caches.chunks(2).zip(self.interface.caches.chunks(2));
                for (layer, (pair, ports)) in caches.enumerate() {
                    for (part, rows) in pair.iter().enumerate() {
                        let value = row(&ports[part], [layer, part], token, fed_position, context);
                        let cache = step.shared[rows.shared].cache.bytes_mut();
                        rows.write(cache, first + sample, position, value);
                    }
                    if fault == Some(Fault::FailsLate) && (sample + column + layer) % 3 == 2 {
                        return Err(refused());
                    }
                    if fault == Some(Fault::Panics) && (sample + column + layer) % 3 == 2 {
                        resume_unwind(Box::new(PANIC));
                    }
                    let bytes = [0, 1].map(|part: usize| step.shared[pair[part].shared].cache.bytes());
                    let is_shown = |seen| mask.is_none_or(|mask| is_shown(mask, first + sample, seen));
                    for seen in (first_seen(&ports[0], position)..=position).filter(|seen| is_shown(*seen)) {
                        for (rows, bytes) in pair.iter().zip(bytes) {
                            context = mix(context, rows.read(bytes, first + sample, seen));
                        }
                    }
                }
                let target = &mut logits.bytes_mut()[(sample * width + column) * 256 * 4..][..8];
                target.copy_from_slice(&scores(context, fault == Some(Fault::Nan)));
            }
        }
        match fault {
            Some(Fault::FailsLate) => return Err(refused()),
            Some(Fault::Panics) => resume_unwind(Box::new(PANIC)),
            _ => {}
        }
        let mut columns = Vec::new();
        for (port, states) in self.interface.states.iter().zip(&states) {
            let present = step.outputs.iter_mut().find(|(name, _)| *name == port.present);
            let present = &mut present.unwrap().1;
            (first..).zip(states).for_each(|(sample, state)| state.write_last(present, sample));
            if let Some(name) = port.columns.as_deref().filter(|name| step.returned.contains(name)) {
                assert_eq!(step.returned[1 + columns.len()], name);
                let shape = [batch, present.shape()[1], present.shape()[2] + width];
                let mut tensor = Tensor::zeros(port.element, &shape).unwrap();
                (0..).zip(states).for_each(|(sample, state)| state.write_last(&mut tensor, sample));
                columns.push(tensor);
            }
        }
        if fault == Some(Fault::WrongShape) {
            logits = Tensor::zeros(self.interface.logits_element, &[batch, width + 1, 256]).unwrap();
        }
        let part = |cache: &Tensor| cache.part(&(first..first + batch)).unwrap().0;
        let at = step.shared.iter().map(|shared| shared.cache.address() + part(shared.cache).start);
        let present_at = at.collect();
        let returned = std::iter::once(logits).chain(columns).collect();
        Ok(StepOutput { present_at, returned, elapsed: Duration::from_micros(1) })
    }
}

/// The columns of a sample's state and of new tokens, `[channels, columns]`, in float32. A column is a hash of its
/// token and of the columns before it, of which the first two channels have one half each.
struct Columns(Vec<u64>);

impl Columns {
    fn of_sample(state: &Tensor, sample: usize) -> Self {
        let [_, channels, columns] = *state.shape() else { panic!() };
        let half = |channel: usize, column: usize| {
            let place = ((sample * channels + channel) * columns + column) * 4;
            u64::from(u32::from_le_bytes(state.bytes()[place..][..4].try_into().unwrap()))
        };
        Self((0..columns).map(|column| half(0, column) | half(1, column) << 32).collect())
    }

    /// Adds the column of a token, and returns it.
    fn push(&mut self, token: u64) -> u64 {
        let column = column(&self.0, token);
        self.0.push(column);
        column
    }

    /// Writes the last columns, as many as the tensor has.
    fn write_last(&self, tensor: &mut Tensor, sample: usize) {
        let [_, channels, columns] = *tensor.shape() else { panic!() };
        for (at, column) in self.0[self.0.len() - columns..].iter().enumerate() {
            for (channel, half) in [*column as u32, (column >> 32) as u32].into_iter().enumerate() {
                let place = ((sample * channels + channel) * columns + at) * 4;
                tensor.bytes_mut()[place..][..4].copy_from_slice(&half.to_le_bytes());
            }
        }
    }
}

/// Returns the column of a token after earlier ones. Before the first token, there are columns of zeros.
fn column(earlier: &[u64], token: u64) -> u64 {
    let last = |back: &usize| earlier.len().checked_sub(*back).map_or(0, |at| earlier[at]);
    [3, 2, 1].iter().map(last).fold(token, mix)
}

/// Returns a hash of what an encoder has computed for a sample of a batch, or 0 if there are no such inputs.
///
/// With a mask, the hash does not depend on zeros after the last position, because shorter texts of a batch have them.
fn text<'t>(ports: &[EncoderPort], tensor: impl Fn(&str) -> &'t Tensor, sample: usize) -> u64 {
    let is_masked = ports.iter().any(EncoderPort::is_mask);
    ports.iter().fold(0, |text, port| {
        let tensor = tensor(&port.name);
        let (outer, length) = (tensor.shape()[1..port.axis].iter().product(), tensor.shape()[port.axis]);
        let run = tensor.len() / (tensor.shape()[0] * outer * length);
        let row = |position| {
            let runs = (0..outer).map(move |of: usize| ((sample * outer + of) * length + position) * run);
            runs.flat_map(|first| &tensor.bytes()[first..first + run])
        };
        let is_real = |position: &usize| !is_masked || row(*position).any(|byte| *byte != 0);
        let end = (0..length).rev().find(is_real).map_or(0, |last| last + 1);
        (0..end).flat_map(row).fold(mix(text, end as u64), |text, byte| mix(text, u64::from(*byte)))
    })
}

/// Returns `true` if a mask of a whole batch shows a position of a sample.
fn is_shown(mask: &Tensor, sample: usize, position: usize) -> bool {
    mask.bytes()[(sample * mask.shape()[1] + position) * 8] == 1
}

/// Returns the first slots that `GroupQueryAttention` writes, from a mask of lengths. A first run writes from slot 0,
/// and may be padded on the right. Returns `None` for a run that the operator refuses.
fn starts_of_mask(mask: &[i64], batch: usize, width: usize) -> Option<Vec<i64>> {
    let longest = mask.len() / batch;
    if width == longest {
        return Some(vec![0; batch]);
    }
    let starts = mask.chunks(longest).map(|mask| mask.iter().sum::<i64>() - width as i64);
    (batch == 1 || width == 1).then(|| starts.collect())
}

/// Where the rows of a cache lie, `[batch, outer…, slots, inner…]`. The first bytes of a row and the last ones are
/// used.
struct Rows {
    /// The index of the cache in `Step::shared`.
    shared: usize,
    outer: usize,
    slots: usize,
    run: usize,
    /// The number of bytes that are used at each end of a row.
    used: usize,
}

impl Rows {
    fn new(port: &CachePort, step: &Step<'_>) -> Self {
        let shared = step.shared.iter().position(|shared| shared.past == port.past).unwrap();
        let shape = step.shared[shared].cache.shape();
        let run = shape[port.axis + 1..].iter().product::<usize>() * port.element.bits().unwrap() / 8;
        let outer = shape[1..port.axis].iter().product();
        Self { shared, outer, slots: shape[port.axis], run, used: used(port) }
    }

    fn ends(&self, sample: usize, position: usize) -> [usize; 2] {
        let slot = position % self.slots;
        let first = (sample * self.outer * self.slots + slot) * self.run;
        [first, first + (self.outer - 1) * self.slots * self.run + self.run - self.used]
    }

    fn write(&self, cache: &mut [u8], sample: usize, position: usize, value: u64) {
        let [first, last] = self.ends(sample, position);
        cache[first..first + self.used].copy_from_slice(&value.to_le_bytes()[..self.used]);
        cache[last..last + self.used].copy_from_slice(&(!value).to_le_bytes()[..self.used]);
    }

    fn read(&self, cache: &[u8], sample: usize, position: usize) -> u64 {
        let [first, last] = self.ends(sample, position);
        let value = |begin: usize| {
            let mut bytes = [0; 8];
            bytes[..self.used].copy_from_slice(&cache[begin..begin + self.used]);
            u64::from_le_bytes(bytes)
        };
        let (first, last) = (value(first), value(last));
        if last == !first & mask(self.used) { first } else { mix(first, last) }
    }
}

/// Returns the number of bytes that are used of each end of a row, of which each head has at most 8.
fn used(port: &CachePort) -> usize {
    let inner = port.dims[port.axis + 1..].iter().map(|dim| dim.unwrap()).product::<usize>();
    (inner * port.element.bits().unwrap() / 8).min(8)
}

/// Returns a mask of the lowest bytes.
fn mask(bytes: usize) -> u64 {
    u64::MAX >> (64 - 8 * bytes)
}

/// Returns the first position that a query at `position` sees.
fn first_seen(port: &CachePort, position: usize) -> usize {
    port.ring.map_or(0, |ring| (position + 1).saturating_sub(ring.window))
}

fn row(port: &CachePort, [layer, part]: [usize; 2], token: i64, position: usize, context: u64) -> u64 {
    let row = [layer as u64, part as u64, token as u64, position as u64].into_iter().fold(context, mix);
    row & mask(used(port))
}

/// Returns two logits, which are finite unless they are to be NaN.
fn scores(context: u64, is_nan: bool) -> [u8; 8] {
    let halves = [context as u32, (context >> 32) as u32];
    let float = |half: u32| if is_nan { f32::NAN } else { (half >> 8) as f32 };
    let [a, b] = halves.map(|half| float(half).to_le_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

/// The mixing of `SplitMix64`.
fn mix(a: u64, b: u64) -> u64 {
    let mut mixed =
        a.rotate_left(23) ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9ABC_DEF1);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// What a sample of these tokens and this text must score. The rows are kept by position, and no slot is computed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// The hash of what an encoder has computed.
    text: u64,
    tokens: Vec<i64>,
    /// The rows of each layer by position: keys and values.
    rows: Vec<Vec<[u64; 2]>>,
    /// The state after each token.
    states: Vec<u64>,
    /// The first logits after each token: those of the tokens 0 and 1.
    pub(crate) scores: Vec<[u8; 8]>,
}

impl Expected {
    pub(crate) fn extend(&mut self, interface: &Interface, tokens: &[i64]) {
        self.rows.resize(interface.caches.len() / 2, Vec::new());
        for &token in tokens {
            let position = self.tokens.len();
            let mut context = self.text;
            if !interface.states.is_empty() {
                let state = column(&self.states, token as u64);
                self.states.push(state);
                context = mix(context, state);
            }
            for (layer, pair) in interface.caches.chunks(2).enumerate() {
                let row = |part| row(&pair[part], [layer, part], token, position, context);
                self.rows[layer].push([0, 1].map(row));
                let seen = &self.rows[layer][first_seen(&pair[0], position)..=position];
                context = seen.iter().flatten().fold(context, |context, row| mix(context, *row));
            }
            self.scores.push(scores(context, false));
            self.tokens.push(token);
        }
    }
}

/// Computes what samples must score from their tokens and texts.
pub(crate) struct FromTokens;

impl Oracle for FromTokens {
    type Past = Expected;

    fn tokens<'p>(&self, past: &'p Expected) -> &'p [i64] {
        &past.tokens
    }

    fn attend(&mut self, past: &mut Expected, interface: &Interface, outputs: &EncoderOutputs) {
        let output = |name: &str| &outputs.iter().find(|(output, _)| output == name).unwrap().1;
        past.text = text(&interface.encoder, output, 0);
    }

    fn extend(&mut self, past: &mut Expected, interface: &Interface, _: Sample, tokens: &[i64]) {
        past.extend(interface, tokens);
    }

    fn truncate(&mut self, past: &mut Expected, to: usize) {
        past.tokens.truncate(to);
        past.scores.truncate(to);
        past.states.truncate(to);
        past.rows.iter_mut().for_each(|rows| rows.truncate(to));
    }

    fn scores(&self, past: &Expected, position: usize, logits: &[f32]) -> bool {
        let (first, rest) = bytemuck::cast_slice::<f32, u8>(logits).split_at(8);
        first == past.scores[position] && rest == [0; 254 * 4]
    }
}
