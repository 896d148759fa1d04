//! Tests the C interface as C and C++ programmers use it: installed into a folder, compiled against and run.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{cargo, cargo_shared, root, target_dir};
use crate::command::{self, With, prefixed};
use crate::step::{NIGHTLY, Step, Tool};

pub(crate) const GCC: Tool = Tool { name: "gcc", probe: "gcc --version", install: "apt-get install gcc" };
pub(crate) const GXX: Tool = Tool { name: "g++", probe: "g++ --version", install: "apt-get install g++" };
const VALGRIND: Tool =
    Tool { name: "valgrind", probe: "valgrind --version", install: "apt-get install valgrind" };
const PKG_CONFIG: Tool =
    Tool { name: "pkg-config", probe: "pkg-config --version", install: "apt-get install pkg-config" };
const CMAKE: Tool = Tool { name: "cmake", probe: "cmake --version", install: "pip install cmake" };

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The soname of the shared library, from its build script.
const SONAME: &str = "libkvscatter.so.0.1";

/// The libraries that a static library needs from the linker, from `rustc --print=native-static-libs`.
/// `-lgcc_s` is left out because it has no static library, and a C compiler adds the matching one.
const NATIVE_LIBRARIES: &str = "-lutil -lrt -lpthread -lm -ldl -lc";

/// The target is named so that flags apply to the library and not to build scripts.
const SANITIZED_TARGET: &str = "x86_64-unknown-linux-gnu";

/// The number of cases that the generator makes. Most cases have a dense and a strided variant.
const CASES: &str = "5000";

const TESTS: &str = "crates/kvscatter-capi/tests-c";
const EXAMPLES: &str = "examples/c";

/// A test program or an example, with its sources.
struct Program {
    name: &'static str,
    folder: &'static str,
    sources: &'static [&'static str],
}

const CASES_PROGRAM: Program = Program {
    name: "cases",
    folder: TESTS,
    sources: &["cases.c", "case_file.c", "rules.c", "blocks.c", "memory.c", "check.c"],
};

const BAD_INPUT: Program = Program {
    name: "bad-input",
    folder: TESTS,
    sources: &[
        "bad_input.c",
        "bad_prepare.c",
        "bad_run.c",
        "bad_memory.c",
        "bad_dlpack.c",
        "spoilt.c",
        "memory.c",
        "check.c",
    ],
};

/// The tests that take no arguments.
const OTHER_TESTS: &[Program] = &[
    BAD_INPUT,
    Program { name: "valid", folder: TESTS, sources: &["valid.c", "spoilt.c", "memory.c", "check.c"] },
    Program { name: "threads", folder: TESTS, sources: &["threads.c", "memory.c", "check.c"] },
    Program { name: "attention", folder: TESTS, sources: &["attention.c", "memory.c", "check.c"] },
    Program { name: "paged", folder: TESTS, sources: &["paged.c", "memory.c", "check.c"] },
    Program { name: "ring", folder: TESTS, sources: &["ring.c", "check.c"] },
    Program { name: "header", folder: TESTS, sources: &["header.cpp"] },
];

const FIRST: Program = Program { name: "first", folder: EXAMPLES, sources: &["first.c"] };

const OTHER_EXAMPLES: &[Program] = &[
    Program { name: "decode-c", folder: EXAMPLES, sources: &["decode.c"] },
    Program { name: "decode-cpp", folder: EXAMPLES, sources: &["decode.cpp"] },
    Program { name: "attend-c", folder: EXAMPLES, sources: &["attend.c"] },
    Program { name: "attend-cpp", folder: EXAMPLES, sources: &["attend.cpp"] },
];

/// How a program links the library, and which sanitizers check it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Build {
    Shared,
    /// The shared library of `install-c`.
    Released,
    Static,
    /// The C compiler's address and undefined behaviour sanitizers, with the ordinary library.
    Sanitized,
    /// The same sanitizers, with a library that also contains the address sanitizer's checks.
    SanitizedThroughout,
}

impl Build {
    fn is_sanitized(self) -> bool {
        matches!(self, Self::Sanitized | Self::SanitizedThroughout)
    }
}

/// Returns the steps of `cargo xtask c`.
pub(crate) fn all() -> Vec<Step> {
    [c(), c_valgrind()].into_iter().chain(thorough()).collect()
}

/// Returns the steps that need more than compilers.
pub(crate) fn thorough() -> [Step; 2] {
    [c_pkg_config(), c_cmake()]
}

/// Installs the header, the libraries, and the files of pkg-config and CMake, from an optimised build.
pub(crate) fn install_c(prefix: &Path) -> Step {
    // A relative folder is relative to the current directory, and the commands run in the root.
    let prefix = env::current_dir().map_or_else(|_| prefix.to_owned(), |here| here.join(prefix));
    Step::new("install-c", install(&prefix, "release"))
}

/// Runs every program with the shared library, and with the static library under sanitizers. One program
/// without sanitizers shows that the static library needs no other library.
pub(crate) fn c() -> Step {
    let mut commands = build();
    commands.extend(compile_and_run(Build::Shared));
    commands.extend([compile(&FIRST, Build::Static), Command::new(program(&FIRST, Build::Static))]);
    commands.extend(compile_and_run(Build::Sanitized));
    Step::new("c", commands).needs(&[GCC, GXX])
}

/// Builds the program that checks the C interface on a file of cases. Also returns the program that writes the file,
/// and this one.
pub(crate) fn cases(name: &'static str) -> (Step, [OsString; 2]) {
    let mut commands = install(&prefix(Build::Shared), "dev");
    commands.push(build_exporter());
    commands.push(compile(&CASES_PROGRAM, Build::Shared));
    let files = [exporter(), program(&CASES_PROGRAM, Build::Shared)].map(PathBuf::into_os_string);
    (Step::new(name, commands).skipped_without(&[GCC]), files)
}

/// Runs the interface's own tests and every program, with the address sanitizer's checks in both Rust and C
/// code.
pub(crate) fn c_asan() -> Step {
    let sanitized = |line| {
        cargo(line).with_all(["--target", SANITIZED_TARGET]).with_env("RUSTFLAGS", "-Zsanitizer=address")
    };
    let tests = sanitized("+nightly test -p kvscatter-capi --tests");
    let library = sanitized("+nightly rustc --quiet -p kvscatter-capi --lib --crate-type=staticlib");
    let mut commands = build();
    commands.extend([tests, library]);
    commands.extend(compile_and_run(Build::SanitizedThroughout));
    Step::new("c-asan", commands).needs(&[GCC, GXX, NIGHTLY])
}

/// Runs the tests with the library of `install-c` under valgrind. Only every twentieth case is run because
/// valgrind is that much slower.
pub(crate) fn c_valgrind() -> Step {
    let valgrind = |each| {
        command::program("valgrind --quiet --error-exitcode=1 --leak-check=full")
            .with(program(each, Build::Released))
    };
    let cases = valgrind(&CASES_PROGRAM).with(cases_file()).with_all(["20", "exact"]);
    let mut commands = install(&prefix(Build::Released), "release");
    commands.extend(export());
    commands.extend([compile(&CASES_PROGRAM, Build::Released), cases]);
    for each in OTHER_TESTS {
        commands.extend([compile(each, Build::Released), valgrind(each)]);
    }
    Step::new("c-valgrind", commands).needs(&[GCC, GXX]).skipped_without(&[VALGRIND])
}

/// Builds the example with pkg-config's flags for the installed library.
fn c_pkg_config() -> Step {
    let built = folder().join("decode-pkg-config");
    let prefix = prefix(Build::Shared);
    let line = format!(
        "gcc -std=c11 {EXAMPLES}/decode.c -o '{}' $(pkg-config --cflags --libs 'kvscatter = {VERSION}')",
        built.display()
    );
    let compile = command::program("sh -c").with(line);
    let compile = compile.with_env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let run = Command::new(built).with_env("LD_LIBRARY_PATH", prefix.join("lib"));
    let mut commands = install(&prefix, "dev");
    commands.extend([compile, run]);
    Step::new("c-pkg-config", commands).needs(&[GCC]).skipped_without(&[PKG_CONFIG])
}

/// Checks that the examples' CMake project finds the installed library.
fn c_cmake() -> Step {
    let built = folder().join("cmake");
    let configure = command::program("cmake --fresh -S").with_all([EXAMPLES, "-B"]).with(&built);
    let configure = configure.with(prefixed("-DCMAKE_PREFIX_PATH=", &prefix(Build::Shared)));
    let build = command::program("cmake --build").with(&built);
    let mut commands = install(&prefix(Build::Shared), "dev");
    commands.extend([configure, build]);
    commands.extend(
        ["first", "decode_c", "decode_cpp", "attend_c", "attend_cpp"]
            .map(|name| Command::new(built.join(name))),
    );
    Step::new("c-cmake", commands).needs(&[GCC, GXX]).skipped_without(&[CMAKE])
}

/// Returns the commands that install a development build of the library and write the file of cases.
fn build() -> Vec<Command> {
    let mut commands = install(&prefix(Build::Shared), "dev");
    commands.extend(export());
    commands
}

/// Returns the commands that write the file of cases.
fn export() -> [Command; 2] {
    [build_exporter(), Command::new(exporter()).with(cases_file()).with(CASES)]
}

fn build_exporter() -> Command {
    cargo_shared("build --quiet", "-p kvscatter-oracle --example export-cases")
}

fn exporter() -> PathBuf {
    target_dir().join("debug/examples/export-cases")
}

/// Returns the commands that build both libraries and install them in the layout of cargo-c, with the header
/// and the files of pkg-config and CMake.
fn install(prefix: &Path, profile: &str) -> Vec<Command> {
    const PACKAGE: &str = "crates/kvscatter-capi";
    // A user's build needs no features of other crates.
    let libraries = match profile {
        "release" => cargo("build --quiet --release -p kvscatter-capi --lib"),
        _ => cargo_shared("build --quiet", "-p kvscatter-capi --lib"),
    };
    let built = target_dir().join(if profile == "dev" { "debug" } else { profile });
    let versioned = format!("libkvscatter.so.{VERSION}");
    let packaging = |name| root().join(PACKAGE).join("packaging").join(name);
    let files = [
        (root().join(PACKAGE).join("include/kvscatter.h"), "include/kvscatter.h"),
        (built.join("libkvscatter_capi.a"), "lib/libkvscatter.a"),
        (built.join("libkvscatter_capi.so"), &format!("lib/{versioned}")),
        (packaging("kvscatter.pc"), "lib/pkgconfig/kvscatter.pc"),
        (packaging("kvscatterConfig.cmake"), "share/kvscatter/cmake/kvscatterConfig.cmake"),
        (packaging("kvscatterConfigVersion.cmake"), "share/kvscatter/cmake/kvscatterConfigVersion.cmake"),
    ];
    let copy =
        |(from, to): (PathBuf, &str)| command::program("install -D -m644").with(from).with(prefix.join(to));
    let link = |(to, from)| command::program("ln -sf").with(to).with(prefix.join("lib").join(from));
    let links = [(versioned.as_str(), SONAME), (SONAME, "libkvscatter.so")];
    let installed = [libraries].into_iter().chain(files.map(copy)).chain(links.map(link));
    // An archive is never linked, so no linker has stripped the debug information. Linking needs binutils in
    // any case.
    let strip = command::program("strip --strip-debug").with(prefix.join("lib/libkvscatter.a"));
    let strip = (profile == "release").then_some(strip);
    installed.chain(strip).collect()
}

fn compile_and_run(build: Build) -> Vec<Command> {
    let options = if build.is_sanitized() { &["1", "exact"][..] } else { &[] };
    let cases = Command::new(program(&CASES_PROGRAM, build)).with(cases_file()).with_all(options);
    let others = OTHER_TESTS.iter().chain([&FIRST]).chain(OTHER_EXAMPLES);
    let others = others.flat_map(|each| [compile(each, build), Command::new(program(each, build))]);
    [compile(&CASES_PROGRAM, build), cases].into_iter().chain(others).collect()
}

fn compile(source: &Program, build: Build) -> Command {
    let is_cpp = source.sources.iter().any(|file| file.ends_with(".cpp"));
    let mut compile = command::program(if is_cpp { "g++ -std=c++17" } else { "gcc -std=c11" });
    compile.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1", "-pthread"]);
    compile.arg(format!("-DKVS_TESTS_VERSION=\"{VERSION}\""));
    compile.arg("-I").arg(prefix(build).join("include"));
    compile.args(source.sources.iter().map(|file| Path::new(source.folder).join(file)));
    compile.arg("-o").arg(program(source, build));
    let library = prefix(build).join("lib");
    match build {
        Build::Shared | Build::Released => {
            compile.arg("-L").arg(&library).arg("-lkvscatter").arg(prefixed("-Wl,-rpath,", &library));
        }
        Build::Static | Build::Sanitized => {
            compile.arg(library.join("libkvscatter.a")).args(NATIVE_LIBRARIES.split(' '));
        }
        Build::SanitizedThroughout => {
            let built = target_dir().join(SANITIZED_TARGET).join("debug/libkvscatter_capi.a");
            compile.arg(built).args(NATIVE_LIBRARIES.split(' '));
        }
    }
    if build.is_sanitized() {
        compile.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    compile
}

fn program(source: &Program, build: Build) -> PathBuf {
    let kind = match build {
        Build::Shared => "shared",
        Build::Released => "released",
        Build::Static => "static",
        Build::Sanitized => "sanitized",
        Build::SanitizedThroughout => "sanitized-throughout",
    };
    folder().join(format!("{}-{kind}", source.name))
}

fn folder() -> PathBuf {
    target_dir().join("c")
}

fn prefix(build: Build) -> PathBuf {
    folder().join(if build == Build::Released { "released" } else { "prefix" })
}

fn cases_file() -> PathBuf {
    folder().join("cases.bin")
}

#[cfg(test)]
mod tests {
    use super::{NATIVE_LIBRARIES, SONAME, VERSION};

    #[test]
    fn the_pages_show_the_programs_that_are_tested() {
        let page = include_str!("../../docs/c.md");
        let program = include_str!("../../examples/c/first.c");
        assert!(page.contains(&format!("```c\n{program}```\n")));
        let attend = include_str!("../../examples/c/attend.c");
        let step = attend.split("\n\n").find(|part| part.contains("static kvs_status step("));
        let step = step.map(|step| format!("```c\n{step}\n```\n"));
        for page in [page, include_str!("../../docs/attention.md")] {
            assert!(step.as_ref().is_some_and(|step| page.contains(step)));
        }
    }

    #[test]
    fn files_for_pkg_config_and_cmake_have_the_version_of_the_library() {
        let pkg_config = include_str!("../../crates/kvscatter-capi/packaging/kvscatter.pc");
        assert!(pkg_config.contains(&format!("\nVersion: {VERSION}\n")));
        assert!(pkg_config.contains(&format!("\nLibs.private: {NATIVE_LIBRARIES}\n")));
        let cmake = include_str!("../../crates/kvscatter-capi/packaging/kvscatterConfigVersion.cmake");
        assert!(cmake.contains(&format!("set(PACKAGE_VERSION {VERSION})\n")));
        assert!(format!("libkvscatter.so.{VERSION}.").starts_with(&format!("{SONAME}.")));
    }
}
