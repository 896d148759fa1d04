//! What is timed in a write, by name, and how its result is checked.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::case::{Form, Temperature, Write};
use super::copies::Copies;
use super::expected::after;
use super::scene::{Scene, checksum};
use super::writer::{Task, Writer};
use super::{candle, candle_caches, ndarray, onnxruntime, writers};
use crate::measure::{Failed, Prepared, Subject};
use crate::runtimes::Runtimes;

/// Prepares the subject with this name. An error is the reason why it does not do the case.
pub(super) fn prepare(name: &str, case: &Write, runtimes: &Runtimes) -> Prepared<Scene> {
    let (name, reads) = match name.strip_suffix(", then read") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let task = match name {
        "memcpy" | "2 × memcpy" => Task::Memcpy,
        "kvscatter, unwrapped" => Task::Unwrapped,
        _ => Task::Write,
    };
    let writer: Box<dyn Writer> = match name {
        "memcpy" => writers::memcpy(case, 1)?,
        "2 × memcpy" => writers::memcpy(case, 2)?,
        "hand loop" => writers::hand_loop(case)?,
        "kvscatter" => writers::kvscatter(case, task, case.threads)?,
        "kvscatter, 1 thread" | "kvscatter, unwrapped" => writers::kvscatter(case, task, 1)?,
        "ndarray assign" => ndarray::assign(case)?,
        "onnxruntime, shared buffer" => onnxruntime::node(case, runtimes.stock()?, true)?,
        "onnxruntime, run()" => onnxruntime::node(case, runtimes.stock()?, false)?,
        _ => match candle_caches::prepare(name, case) {
            Some(prepared) => prepared?,
            None => candle::prepare(name, case)?,
        },
    };
    Ok(Box::new(Writing {
        writer,
        task,
        reads,
        aimed: None,
        copies: Copies::new(case, task, &case.starts_at(0)),
    }))
}

struct Writing {
    writer: Box<dyn Writer>,
    task: Task,
    /// Whether the time includes reading the written rows, as attention does after a write.
    reads: bool,
    /// The step for whose positions the writer is prepared.
    aimed: Option<usize>,
    copies: Copies,
}

impl Writing {
    fn aim(&mut self, scene: &Scene) {
        if self.aimed.replace(scene.step) != Some(scene.step) {
            self.writer.aim(&scene.starts);
            self.copies = Copies::new(scene.case(), self.task, &scene.starts);
        }
    }

    /// Compares whole buffers of the first layer.
    fn compare(&self, scene: &mut Scene) -> Result<(), String> {
        let (case, starts) = (scene.case().clone(), scene.starts.clone());
        for side in 0..case.caches_per_call() {
            let [cache, update] = scene.painted(side);
            let call = scene.call(0);
            let buffers = if side == 0 { Some(call.keys) } else { call.values };
            let Some(buffers) = buffers else { continue };
            let name = ["keys", "values"][side];
            same("the update", buffers.update, &update)?;
            let changed = match case.form {
                Form::InPlace => buffers.cache,
                Form::Functional => {
                    same("the past", buffers.cache, &cache)?;
                    buffers.present
                }
            };
            same(name, changed, &after(&case, self.task, &starts, cache, &update))?;
        }
        Ok(())
    }
}

impl Subject<Scene> for Writing {
    fn time(&mut self, scene: &mut Scene, calls: usize) -> Result<Duration, Failed> {
        self.aim(scene);
        let [layer, previous] = scene.layers;
        scene.sweep();
        if scene.case().temperature == Temperature::FlushedRows {
            self.writer.write(&mut scene.call(previous))?;
        }
        if scene.case().is_cold() {
            scene.touch_updates();
        }
        let mut call = scene.call(layer);
        let began = Instant::now();
        for _ in 0..calls {
            self.writer.write(&mut call)?;
        }
        if self.reads {
            call.each(|buffers| {
                for [to, _] in self.copies.ranges() {
                    black_box(checksum(&buffers.cache[to]));
                }
                Ok::<_, Failed>(())
            })?;
        }
        let elapsed = began.elapsed();
        Ok(self.writer.elapsed().unwrap_or(elapsed))
    }

    /// A cold case is checked in a later step as well, because its positions move.
    fn check(&mut self, scene: &mut Scene) -> Result<(), String> {
        let steps: &[usize] = if scene.case().is_cold() { &[0, 5] } else { &[0] };
        for &step in steps {
            scene.go_to(step);
            scene.repaint();
            self.aim(scene);
            let mut call = scene.call(0);
            let written = self.writer.write(&mut call).and_then(|()| self.writer.publish(&mut call));
            written.map_err(|error| format!("it failed: {error}"))?;
            self.compare(scene).map_err(|difference| format!("step {step}: {difference}"))?;
        }
        scene.go_to(0);
        self.aim(scene);
        Ok(())
    }
}

fn same(name: &str, is: &[u8], must: &[u8]) -> Result<(), String> {
    if is == must {
        return Ok(());
    }
    let wrong = || (0..is.len().min(must.len())).filter(|&byte| is[byte] != must[byte]);
    Err(match wrong().next() {
        None => format!("{name}: {} bytes, must be {}", is.len(), must.len()),
        Some(first) => format!(
            "{name}: byte {first} of {} is {:#04x}, must be {:#04x}; {} bytes differ",
            is.len(),
            is[first],
            must[first],
            wrong().count()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::{Task, Writer, Writing};
    use crate::measure::{Failed, Subject};
    use crate::write::case::Write;
    use crate::write::copies::Copies;
    use crate::write::scene::{Call, Scene};
    use crate::write::writers;

    /// A writer that is right, and then does something else.
    struct Slip<F> {
        right: Box<dyn Writer>,
        slip: F,
        /// Whether it does not follow new positions.
        stays: bool,
    }

    impl<F: Fn(&mut Call<'_>) -> Result<(), Failed>> Writer for Slip<F> {
        fn aim(&mut self, starts: &[i64]) {
            if !self.stays {
                self.right.aim(starts);
            }
        }

        fn write(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
            self.right.write(call)?;
            (self.slip)(call)
        }
    }

    /// Checks such a writer in a case, and returns the error.
    fn check(
        text: &str,
        stays: bool,
        slip: impl Fn(&mut Call<'_>) -> Result<(), Failed> + 'static,
    ) -> String {
        let text = format!("name = 'a'\nshape = [3, 2, 16, 8]\nrows = 3\npages = '4k'\n{text}");
        let case: Write = toml::from_str(&text).unwrap();
        let writer = Box::new(Slip { right: writers::hand_loop(&case).unwrap(), slip, stays });
        let copies = Copies::new(&case, Task::Write, &case.starts_at(0));
        let mut writing = Writing { writer, task: Task::Write, reads: false, aimed: None, copies };
        writing.check(&mut Scene::new(&case).unwrap()).err().unwrap_or_default()
    }

    #[test]
    fn a_wrong_result_is_found_in_every_buffer() {
        const COLD: &str = "temperature = 'unflushed'\nlayers = 4";
        const FUNCTIONAL: &str = "form = 'functional'";
        assert_eq!(check("", false, |_| Ok(())), "");
        let slips: [(_, fn(&mut Call<'_>), _); 5] = [
            ("", |call| call.keys.cache[0] ^= 1, "step 0: keys: byte 0 of 1536 is"),
            ("", |call| call.keys.cache[1535] ^= 0x80, "step 0: keys: byte 1535 of 1536 is"),
            (COLD, |call| call.values.as_mut().unwrap().cache[7] ^= 1, "step 0: values: byte 7 of 1536 is"),
            (FUNCTIONAL, |call| call.keys.cache[0] ^= 1, "step 0: the past: byte 0 of 1536 is"),
            (FUNCTIONAL, |call| call.keys.present[9] ^= 1, "step 0: keys: byte 9 of 1536 is"),
        ];
        for (text, slip, expected) in slips {
            let error = check(text, false, move |call| {
                slip(call);
                Ok(())
            });
            assert!(error.starts_with(expected) && error.ends_with("1 bytes differ"), "{text}: {error}");
        }
        let stays = check(COLD, true, |_| Ok(()));
        assert!(stays.starts_with("step 5: keys: "), "{stays}");
        assert_eq!(check("", false, |_| Err("out of order".into())), "it failed: out of order");
    }
}
