//! Describes the machine of a run.

use std::env;
use std::fs;
use std::process::Command;

use kvscatter_bench::Machine;
use kvscatter_onnx::text::units;
use serde::{Deserialize, Serialize};

/// The environment variable that limits the library's instructions.
pub(crate) const MAX_ISA: &str = "KVSCATTER_MAX_ISA";

/// The environment variable that limits libc's instructions.
pub(crate) const TUNABLES: &str = "GLIBC_TUNABLES";

/// Facts that a reader needs to interpret the times. Facts that the system does not report are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Host {
    /// The name and the value of each fact.
    pub(crate) facts: Vec<(String, String)>,
}

impl Host {
    pub(crate) fn read() -> Self {
        let Machine { cpu, cores, caches } = Machine::read();
        let levels: Vec<_> = caches.into_iter().map(|bytes| units::bytes(bytes as u64)).collect();
        let facts = [
            ("CPU", Some(cpu).filter(|name| !name.is_empty())),
            ("cores", Some(cores.to_string())),
            ("data caches", Some(levels.join(", ")).filter(|levels| !levels.is_empty())),
            ("memory", memory()),
            ("kernel", fs::read_to_string("/proc/sys/kernel/osrelease").ok()),
            ("libc", output("getconf", &["GNU_LIBC_VERSION"])),
            ("compiler", output("rustc", &["--version"])),
            ("limited to", env::var(MAX_ISA).ok()),
            ("libc limited by", env::var(TUNABLES).ok()),
            ("commit", output("git", &["log", "-1", "--format=%h, %cs"])),
        ];
        let known = |(name, fact): (&str, Option<String>)| Some((name.to_owned(), fact?.trim().to_owned()));
        Self { facts: facts.into_iter().filter_map(known).collect() }
    }

    /// Returns the name of the processor, as in tables and plots.
    pub(crate) fn cpu(&self) -> &str {
        let cpu = self.facts.iter().find(|(name, _)| name == "CPU");
        cpu.map_or("unknown processor", |(_, cpu)| cpu)
    }
}

fn memory() -> Option<String> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next())?
        .parse()
        .ok()?;
    Some(units::bytes(kib << 10))
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::Host;

    #[test]
    fn the_machine_is_named() {
        let Host { facts } = Host::read();
        assert!(facts.iter().any(|(name, _)| name == "cores"));
        assert!(facts.iter().all(|(_, fact)| !fact.is_empty() && fact.trim() == fact));
    }
}
