//! The machine that the measurements run on.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// The facts about a machine that its times depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The name of the processor. Empty if the system does not report it.
    pub cpu: String,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The sizes in bytes of the CPU caches through which a core reads data, first level first.
    pub caches: Vec<usize>,
}

impl Machine {
    /// Reads the facts from the system.
    #[must_use]
    pub fn read() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            cpu: cpu.map_or(String::new(), |(_, name)| name.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            caches: data_caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
        }
    }

    /// Returns the size of the last-level CPU cache in bytes, or `None` if the system does not report it.
    #[must_use]
    pub fn last_level_cache(&self) -> Option<usize> {
        self.caches.last().copied()
    }
}

fn data_caches(folder: &Path) -> Vec<usize> {
    let mut caches: Vec<(u32, usize)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let of = |fact: &str| fs::read_to_string(entry.as_ref().ok()?.path().join(fact)).ok();
            if of("type")?.trim() == "Instruction" {
                return None;
            }
            Some((of("level")?.trim().parse().ok()?, size(of("size")?.trim())?))
        })
        .collect();
    caches.sort_unstable();
    caches.into_iter().map(|(_, bytes)| bytes).collect()
}

/// Parses a size such as `48K`.
fn size(text: &str) -> Option<usize> {
    match text.strip_suffix('K') {
        Some(kib) => kib.parse::<usize>().ok()?.checked_mul(1 << 10),
        None => match text.strip_suffix('M') {
            Some(mib) => mib.parse::<usize>().ok()?.checked_mul(1 << 20),
            None => text.parse().ok(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{data_caches, size};

    #[test]
    fn sizes_as_the_kernel_writes_them() {
        assert_eq!(size("48K"), Some(48 << 10));
        assert_eq!(size("512"), Some(512));
        assert_eq!(size("2M"), Some(2 << 20));
        assert_eq!(size("many"), None);
    }

    #[test]
    fn data_caches_by_level() {
        let folder = tempfile::tempdir().unwrap();
        for (index, level, kind, bytes) in
            [(3, 3, "Unified", "8192K"), (0, 1, "Data", "48K"), (1, 1, "Instruction", "64K")]
        {
            let index = folder.path().join(format!("index{index}"));
            fs::create_dir(&index).unwrap();
            for (fact, text) in [
                ("level", format!("{level}\n")),
                ("type", format!("{kind}\n")),
                ("size", format!("{bytes}\n")),
            ] {
                fs::write(index.join(fact), text).unwrap();
            }
        }
        assert_eq!(data_caches(folder.path()), [48 << 10, 8 << 20]);
        assert_eq!(data_caches(&folder.path().join("none")), []);
    }
}
