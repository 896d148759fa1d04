//! Tests the Python package as users get it: as a wheel that is installed into virtual environments.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use crate::cargo::{cargo, root, target_dir};
use crate::command::{With, program};
use crate::python::{Environment, INDEX, PYTHON, needs};
use crate::step::{Step, Tool};
use crate::steps_ort;
use crate::steps_package::unpack;

const CRATE: &str = "crates/kvscatter-python";
const PYPROJECT: &str = "crates/kvscatter-python/pyproject.toml";
const PACKAGE: &str = "crates/kvscatter-python/python/kvscatter";
const PLUGIN: &str = "crates/kvscatter-python/python/kvscatter_histories_pytest";
const TESTS: &str = "crates/kvscatter-python/tests";
const PLUGIN_TESTS: &str = "crates/kvscatter-python/tests/test_onnxruntime.py";
const TORCH_PACKAGE: &str = "crates/kvscatter-python/python/kvscatter/torch";
const TORCH_TESTS: &str = "crates/kvscatter-python/tests/torch";
const XLA_TESTS: [&str; 2] =
    ["crates/kvscatter-python/tests/test_jax.py", "crates/kvscatter-python/tests/test_jax_attention.py"];
const ATTENTION_TESTS: &str = "crates/kvscatter-python/tests/test_attention.py";
const CUDA_TESTS: &str = "crates/kvscatter-python/tests/test_cuda.py";
const GENAI_TESTS: &str = "crates/kvscatter-python/tests/genai";
const BENCH: &str = "crates/kvscatter-python/bench";
/// The modules that all benchmarks share.
const SHARED: [&str; 3] = ["bench/pages.py", "bench/draw.py", "bench/paired.py"];
const TYPING_TESTS: &str = "crates/kvscatter-python/tests/typing";

/// The folders that ruff checks.
const SOURCES: [&str; 9] = [
    CRATE,
    "bench",
    "conformance",
    "crates/kvscatter-cuda/bench",
    "crates/kvscatter-onnx/python-tests",
    "crates/kvscatter-ort-plugin/python-tests",
    "examples/models",
    "examples/sharded",
    "xtask",
];

/// Documents whose examples need only NumPy.
const PLAIN: [&str; 5] = [
    "README.md",
    "crates/kvscatter-python/README.md",
    "docs/attention.md",
    "docs/python.md",
    "docs/python/numpy.md",
];
const MODELS: &str = "docs/python/models.md";
const ONNX: &str = "docs/python/onnx.md";
const SESSION: &str = "docs/python/session.md";
const TEXT: &str = "docs/python/text.md";
const SESSIONS: &str = "docs/sessions.md";
const ENCODERS: &str = "docs/encoder-decoders.md";
const JAX: &str = "docs/python/jax.md";
const PYTORCH: &str = "docs/python/pytorch.md";

/// The package and its version as pip and file names spell them. The version is that of the workspace.
const REQUIREMENT: &str = concat!("kvscatter==", env!("CARGO_PKG_VERSION"));
const SOURCE_FOLDER: &str = concat!("kvscatter-", env!("CARGO_PKG_VERSION"));
const WHEEL: &str = concat!("kvscatter-", env!("CARGO_PKG_VERSION"), "-*.whl");

const LOCK: &str = "crates/kvscatter-python/locks/python.txt";
const WHEEL_LOCK: &str = "crates/kvscatter-python/locks/wheel.txt";

/// The disk space of PyTorch, its CUDA libraries and the downloads of both.
macro_rules! torch_gigabytes {
    () => {
        12
    };
}
const TORCH_DISK: Tool = Tool {
    name: concat!(torch_gigabytes!(), " GB of disk for PyTorch"),
    probe: concat!(
        "python3 -c assert(",
        torch_gigabytes!(),
        "e9<=__import__('shutil').disk_usage(__import__('os').getenv('CARGO_TARGET_DIR','.')).free)"
    ),
    install: "CARGO_TARGET_DIR can be on another disk",
};

/// The last three minor versions of PyTorch. The lock file of the oldest has the last transformers 4, that of the
/// middle one the first transformers 5, and that of the newest the newest.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Torch {
    #[value(name = "2.13")]
    Oldest,
    #[value(name = "2.14")]
    Middle,
    #[value(name = "2.15")]
    Newest,
}

impl Torch {
    pub(crate) fn environment(self) -> Environment {
        let name = self.step().trim_start_matches("python-");
        let lock = format!("crates/kvscatter-python/locks/{name}.txt");
        Environment::new(format!("python/{name}"), lock).gigabytes(torch_gigabytes!())
    }

    fn step(self) -> &'static str {
        match self {
            Self::Oldest => "python-torch-2.13",
            Self::Middle => "python-torch-2.14",
            Self::Newest => "python-torch-2.15",
        }
    }

    /// Returns the tools that the environment needs.
    pub(crate) fn needs(self) -> &'static [Tool] {
        if self.environment().is_made() { needs(&[tools()]) } else { &[PYTHON, INDEX, TORCH_DISK] }
    }
}

/// A Python version that the wheel supports.
struct Version {
    step: &'static str,
    number: &'static str,
    is_here: [Tool; 1],
}

static VERSIONS: [Version; 5] = [
    Version::new("python-3.10", "3.10", "env PYENV_VERSION=3.10 python3.10 -m ensurepip --version"),
    Version::new("python-3.11", "3.11", "env PYENV_VERSION=3.11 python3.11 -m ensurepip --version"),
    Version::new("python-3.12", "3.12", "env PYENV_VERSION=3.12 python3.12 -m ensurepip --version"),
    Version::new("python-3.13", "3.13", "env PYENV_VERSION=3.13 python3.13 -m ensurepip --version"),
    Version::new("python-3.14", "3.14", "env PYENV_VERSION=3.14 python3.14 -m ensurepip --version"),
];

impl Version {
    const fn new(step: &'static str, number: &'static str, probe: &'static str) -> Self {
        let install = "apt-get install, pyenv install or python.org";
        Self { step, number, is_here: [Tool { name: step, probe, install }] }
    }
}

/// Returns every step that does not need PyTorch.
pub(crate) fn all(every_version: bool) -> Vec<Step> {
    let versions = versions(every_version).map(in_empty_environment);
    let steps = [build(), lint(), test(), plugin(every_version), genai(every_version)]
        .into_iter()
        .chain(versions)
        .chain([sdist()]);
    let others = every_version.then(|| [accelerators(), sdist_build()]);
    steps.chain(others.into_iter().flatten()).collect()
}

/// Returns the versions of Python. Unless `every_version` is `true`, leaves out those between the oldest and the newest
/// that are installed, because all of them get the same wheel.
fn versions(every_version: bool) -> impl Iterator<Item = &'static Version> {
    let is_here = |version: &Version| !every_version && version.is_here[0].is_installed();
    let oldest = VERSIONS.iter().position(is_here);
    let newest = VERSIONS.iter().rposition(is_here);
    let is_between = move |at| oldest < Some(at) && Some(at) < newest;
    VERSIONS.iter().enumerate().filter(move |&(at, _)| !is_between(at)).map(|(_, version)| version)
}

/// Tests the package with a version of PyTorch and with the packages that are often used with it.
pub(crate) fn torch(version: Torch) -> Step {
    let environment = version.environment();
    let mut commands = wheel_in(&environment);
    commands.extend([
        mypy(&environment, &[TORCH_PACKAGE, BENCH, SHARED[0], SHARED[1], SHARED[2]]),
        pyright(&environment, TORCH_TESTS),
        pytest(&environment, &[TORCH_TESTS]),
        documents(&environment, &[PYTORCH]),
    ]);
    Step::new(version.step(), commands).needs(version.needs())
}

/// Builds the wheel for a release.
pub(crate) fn release(out: &Path) -> Step {
    let out = env::current_dir().map_or_else(|_| out.to_owned(), |here| here.join(out));
    Step::new("wheel", wheel(&out)).needs(needs(&[tools()]))
}

/// Builds the wheel and installs it. Also returns the interpreter that has it.
pub(crate) fn package(name: &'static str) -> (Step, OsString) {
    let tools = tools();
    let commands = wheel_in(&tools);
    let python = tools.python().get_program().to_owned();
    (Step::new(name, commands).skipped_without(needs(&[tools])), python)
}

/// Returns the commands that build the wheel and install it into an environment.
pub(crate) fn wheel_in(environment: &Environment) -> Vec<Command> {
    let mut commands = wheel(&wheels());
    commands.extend(installed(environment));
    commands
}

/// Builds the wheel and searches planted faults with it.
pub(crate) fn histories(options: &[OsString]) -> Vec<Step> {
    vec![build(), planted_faults(options)]
}

/// Plants faults in sessions, and searches for histories that show them.
fn planted_faults(options: &[OsString]) -> Step {
    let tools = tools();
    let program = tools.python().with("xtask/python/planted_faults.py").with(target_dir().join("faults"));
    let mut commands = installed(&tools);
    commands.push(program.with_all(options));
    Step::new("histories", commands).needs(needs(&[tools]))
}

/// Runs one of the benchmarks of the package, with the newest PyTorch.
pub(crate) fn bench(name: &'static str, options: &[OsString]) -> Step {
    let environment = Torch::Newest.environment();
    let mut commands = wheel_in(&environment);
    let bench = environment.python().with(format!("{BENCH}/{name}.py")).with_all(options);
    commands.push(bench.with_env("PYTHONPATH", root().join("bench")));
    Step::new(name, commands).needs(Torch::Newest.needs())
}

/// Builds the wheel for the tests that follow. It shares its build with the tests of the crates.
fn build() -> Step {
    let tools = tools();
    let build = maturin(&tools, "build --features shared-build").with("--out").with(wheels());
    Step::new("python-wheel", vec![script("notices"), tools.make(), build]).needs(needs(&[tools]))
}

/// Tests the wheel and the source distribution as users install them.
pub(crate) fn nightly() -> [Step; 8] {
    let optimised = Step::new("python-wheel-optimised", wheel(&wheels())).needs(needs(&[tools()]));
    let torch = torch(Torch::Oldest);
    [optimised, test(), planted_faults(&[]), attention(), genai(true), accelerators(), torch, sdist_build()]
}

/// Checks the format, lints and types, and that the stub matches the compiled module.
fn lint() -> Step {
    let tools = tools();
    let ruff = |words: &[&str]| {
        let ruff = tools.program("ruff").with_all(words).with("--cache-dir");
        ruff.with(target_dir().join("python/ruff")).with_all(SOURCES)
    };
    let stubs = tools.program("stubtest").with_all(["kvscatter._native", "--mypy-config-file", PYPROJECT]);
    let mypy = mypy(&tools, &[PACKAGE, PLUGIN, TYPING_TESTS, "--exclude=/kvscatter/torch/"]);
    let mut commands = installed(&tools);
    commands.extend([ruff(&["format", "--check"]), ruff(&["check"]), mypy]);
    commands.extend([pyright(&tools, TYPING_TESTS), stubs]);
    Step::new("python-lint", commands).needs(needs(&[tools]))
}

fn test() -> Step {
    let tools = tools();
    let mut commands = installed(&tools);
    let ignored = [TORCH_TESTS, XLA_TESTS[0], XLA_TESTS[1], CUDA_TESTS, GENAI_TESTS];
    let ignored = ignored.map(|tests| format!("--ignore={tests}"));
    commands.push(pytest(&tools, &[TESTS]).with_all(ignored));
    // These import packages that the environment lacks.
    let others =
        ["torch", "histories/adapters"].map(|folder| format!("--ignore-glob=/*/kvscatter/{folder}/*"));
    commands.push(pytest(&tools, &["--doctest-modules", "--pyargs", "kvscatter"]).with_all(others));
    commands.push(documents(&tools, &[MODELS, ONNX, SESSION, TEXT, SESSIONS, ENCODERS]));
    Step::new("python-test", commands).needs(needs(&[tools]))
}

/// Compares attention with the oracle on many random calls.
fn attention() -> Step {
    let tools = tools();
    let mut commands = installed(&tools);
    commands.push(pytest(&tools, &[ATTENTION_TESTS]).with_env("KVSCATTER_ATTENTION_CALLS", "20000"));
    Step::new("python-attention", commands).needs(needs(&[tools]))
}

/// Tests the package on accelerators: the custom call of XLA, on the CPU, and CUDA arrays, on a simulated driver.
fn accelerators() -> Step {
    let tools = tools();
    let mut commands = installed(&tools);
    commands.push(pytest(&tools, &[XLA_TESTS[0], XLA_TESTS[1], CUDA_TESTS]));
    commands.push(documents(&tools, &[JAX]));
    Step::new("python-accelerators", commands).needs(needs(&[tools]))
}

/// Tests the plugin that the wheel contains in the oldest and the newest version of ONNX Runtime, or in all that the
/// step `ort` tests. That step tests the code of the plugin in each of them.
fn plugin(every_version: bool) -> Step {
    let environments = steps_ort::environments(every_version);
    let commands = environments.iter().flat_map(|environment| {
        let mut commands = installed(environment);
        commands.push(pytest(environment, &[PLUGIN_TESTS]));
        commands
    });
    Step::new("python-onnxruntime", commands.collect()).needs(needs(&environments))
}

/// Tests the plugin in the newest version of ONNX Runtime GenAI, and with `every_version` in the oldest too.
fn genai(every_version: bool) -> Step {
    let oldest = every_version.then_some("genai-0.13");
    let environments: Vec<_> = oldest.into_iter().chain(["genai-0.18"]).map(genai_environment).collect();
    let commands = environments.iter().flat_map(|environment| {
        let mut commands = installed(environment);
        commands.push(pytest(environment, &[GENAI_TESTS]));
        commands
    });
    Step::new("python-genai", commands.collect()).needs(needs(&environments))
}

fn genai_environment(name: &str) -> Environment {
    Environment::new(format!("python/{name}"), format!("crates/kvscatter-python/locks/{name}.txt"))
}

/// Installs the wheel with only the packages that it requires, and runs the examples of the documents.
fn in_empty_environment(version: &'static Version) -> Step {
    let folder = format!("python/{}", version.number);
    let environment = Environment::new(folder, WHEEL_LOCK).version(version.number);
    let mut commands = installed(&environment);
    commands.push(documents(&environment, &PLAIN));
    Step::new(version.step, commands).needs(needs(&[environment])).skipped_without(&version.is_here)
}

/// Packs the source distribution, and checks that it has every source file of its crates and that Cargo accepts its
/// manifests.
fn sdist() -> Step {
    let [remove, pack, unpack] = unpacked_sdist();
    let files = script("sdist_files").with(sdist_folder());
    let tree = cargo("tree --quiet --offline --package kvscatter-python --depth 0 --manifest-path");
    let tree = tree.with(sdist_folder().join(CRATE).join("Cargo.toml"));
    let tools = tools();
    Step::new("python-sdist", vec![tools.make(), remove, pack, unpack, files, tree]).needs(needs(&[tools]))
}

/// Installs the source distribution in an environment with only the build tools.
fn sdist_build() -> Step {
    let tools = tools();
    let [remove, pack, unpack] = unpacked_sdist();
    let install = pip(&tools, "install --no-index --no-build-isolation")
        .with(sdist_folder())
        .with_env("PATH", tools.search_path())
        // A separate build folder is needed because cargo identifies these crates by their paths within the
        // workspace. In the same folder it would confuse them with the original crates.
        .with_env("CARGO_TARGET_DIR", target_dir().join("python/sdist-build"))
        // This second build of the package only needs to be fast, because the wheel's tests have used the
        // optimised build.
        .with_env("MATURIN_PEP517_ARGS", "--profile=dev");
    let prepare = [tools.make(), remove, pack, unpack, uninstall(&tools)];
    let commands = prepare.into_iter().chain([install, documents(&tools, &PLAIN)]).collect();
    Step::new("python-sdist-build", commands).needs(needs(&[tools]))
}

/// Returns the commands that pack the source distribution, and unpack it into [`sdist_folder()`].
fn unpacked_sdist() -> [Command; 3] {
    let folder = target_dir().join("python/sdist");
    // Files of an earlier archive would hide that this one lacks them.
    let remove = program("rm -rf").with(&folder);
    let pack = maturin(&tools(), "sdist").with("--out").with(&folder);
    [remove, pack, unpack(&format!("{SOURCE_FOLDER}.tar.gz"), &folder)]
}

fn sdist_folder() -> PathBuf {
    target_dir().join("python/sdist").join(SOURCE_FOLDER)
}

/// Returns the environment that builds, checks and tests the package, and tests conversions of models.
pub(crate) fn tools() -> Environment {
    Environment::new("python/tools", LOCK)
}

fn wheels() -> PathBuf {
    target_dir().join("python/wheels")
}

/// Returns the commands that build a wheel. They check that the wheel's list of third-party code is current,
/// and that the wheel contains no paths of this machine.
fn wheel(out: &Path) -> Vec<Command> {
    let tools = tools();
    let build = maturin(&tools, "build --release").with_all(["--config", &other_names(), "--out"]).with(out);
    let no_paths = script("no_paths").with(out.join(WHEEL)).with(root()).with(target_dir());
    let no_paths = no_paths
        .with_all([toolchain_folder("CARGO_HOME", ".cargo"), toolchain_folder("RUSTUP_HOME", ".rustup")]);
    vec![script("notices"), tools.make(), build, no_paths]
}

fn script(name: &str) -> Command {
    program("python3").with(format!("xtask/python/{name}.py"))
}

/// Returns the setting that replaces this machine's folders in the compiled module by other names.
fn other_names() -> String {
    let name = |path: &Path, name: &str| format!("--remap-path-prefix={}={name}", path.display());
    let flags = [name(&toolchain_folder("CARGO_HOME", ".cargo"), "cargo"), name(root(), "kvscatter")];
    format!("build.rustflags={flags:?}")
}

/// Returns a folder of the toolchain, from its variable or in its default place.
fn toolchain_folder(variable: &str, usual: &str) -> PathBuf {
    let usual = || env::home_dir().unwrap_or_default().join(usual);
    env::var_os(variable).map_or_else(usual, PathBuf::from)
}

/// Returns the commands that make the environment and install the wheel into it. All packages that the wheel
/// requires must be there.
fn installed(environment: &Environment) -> Vec<Command> {
    let install = pip(environment, "install --no-index --find-links").with(wheels()).with(REQUIREMENT);
    vec![environment.make(), uninstall(environment), install]
}

/// Uninstalls the package first. Another build has the same version, so pip would otherwise keep the
/// installed one.
fn uninstall(environment: &Environment) -> Command {
    pip(environment, "uninstall --yes kvscatter")
}

fn maturin(tools: &Environment, line: &str) -> Command {
    let maturin = tools.program("maturin").with_all(line.split(' '));
    let maturin = maturin.with("--manifest-path").with(format!("{CRATE}/Cargo.toml"));
    maturin.with_env("CARGO_TARGET_DIR", target_dir())
}

fn pip(environment: &Environment, line: &str) -> Command {
    let pip = environment.python().with_all(["-m", "pip", "--disable-pip-version-check", "--quiet"]);
    pip.with_all(line.split(' '))
}

fn mypy(environment: &Environment, arguments: &[&str]) -> Command {
    let mypy = environment.program("mypy").with_all(["--config-file", PYPROJECT]).with_all(arguments);
    mypy.with("--cache-dir").with(target_dir().join("python/mypy"))
}

/// Runs basedpyright. The folder's `pyrightconfig.json` names the files and the rules.
fn pyright(environment: &Environment, folder: &str) -> Command {
    let pyright = environment.program("basedpyright").with_all(["--project", folder, "--pythonpath"]);
    pyright.with(environment.python().get_program())
}

fn pytest(environment: &Environment, arguments: &[&str]) -> Command {
    let words = ["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--config-file", PYPROJECT];
    environment.python().with_all(words).with_all(arguments)
}

/// Runs the examples of documents and compares their output.
fn documents(environment: &Environment, files: &[&str]) -> Command {
    environment.python().with(format!("{TESTS}/documents.py")).with_all(files)
}
