"""Compiles the CUDA kernels into the images that the crate contains, or checks that the images are current.

    python cuda_images.py FOLDER [--check]

The script compiles everything into FOLDER and checks the machine code. It then replaces the checked-in images, or
compares with them. Run it in an environment with the packages of kernels/requirements.txt. nvcc also needs gcc.
"""

import argparse
import gzip
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sysconfig

import machine_code

ROOT = pathlib.Path(__file__).parents[2]
KERNELS = ROOT / "crates/kvscatter-cuda/kernels"
IMAGES = KERNELS / "images"
SOURCE = "kvscatter.cu"
#: The files that it consists of.
SOURCES = (SOURCE, "abi.cuh", "rule.cuh", "walk.cuh")
FATBIN_FILE, PTX_FILE = "kvscatter.fatbin", "kvscatter.ptx"
#: The checked-in files. They are compared after decompression, because the compressed bytes depend on the
#: version of zlib.
CHECKED_IN = (FATBIN_FILE, f"{PTX_FILE}.gz", "made-by.txt")
TOOLS = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/bin"
CUOBJDUMP = str(TOOLS / "cuobjdump")

#: The architectures with separate machine code. It also runs on later devices of the same generation.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")

NVCC = ("nvcc", "-std=c++17", "-allow-unsupported-compiler")
FATBIN = (
    *(*NVCC, "-fatbin", "--compress-mode=size"),
    *(f"-gencode=arch={name.replace('sm', 'compute')},code={name}" for name in ARCHITECTURES),
)
#: The PTX is for devices without machine code here, and for drivers that are older than this compiler. It has
#: the compiler's oldest target, in the oldest PTX version with that target.
PTX = (*NVCC, "-ptx", "-arch=compute_75")
PTX_VERSION = "6.3"
#: A hint to ptxas about which bytes of a vector are used. Older versions of ptxas do not support it.
PTX_HINT = re.compile(r'\t\.pragma "used_bytes_mask \d+";\n')

#: The instruction that loads the moved elements, by the end of a kernel's name, and the one for an index.
LOADS = {"16": "LDG.E.128", "8": "LDG.E.64", "4": "LDG.E", "2": "LDG.E.U16", "1": "LDG.E.U8"}
INDEX = re.compile(r"LDG\..*\.CONSTANT")

DIVISION = re.compile(r"\b(?:div|rem)\.")


def build(folder: pathlib.Path) -> None:
    """Makes the images and `made-by.txt` in `folder`. Paths are relative, so that images contain no local path."""
    compiled = folder / "compiled.ptx"
    run(*FATBIN, SOURCE, "-o", str(folder / FATBIN_FILE))
    run(*PTX, SOURCE, "-o", str(compiled))
    lowered = folder / PTX_FILE
    lowered.write_text(lower(compiled.read_text()))
    same_code(compiled, lowered)
    (folder / f"{PTX_FILE}.gz").write_bytes(gzip.compress(lowered.read_bytes(), mtime=0))
    (folder / "made-by.txt").write_text(made_by(folder))


def run(tool: str, *arguments: str) -> None:
    """Runs a tool of the wheels in the kernels' folder, with only these options."""
    print("  $", shlex.join([tool, *arguments]), flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NVCC_")}
    subprocess.run([str(TOOLS / tool), *arguments], check=True, cwd=KERNELS, env=environment)


def lower(ptx: str) -> str:
    """Returns the same program for drivers that are older than the compiler."""
    lowered, count = re.subn(
        r"^\.version \d+\.\d+$", f".version {PTX_VERSION}", PTX_HINT.sub("", ptx), flags=re.M
    )
    if count != 1:
        raise SystemExit(f"{SOURCE}: the compiler wrote {count} lines of .version instead of one")
    return lowered


def same_code(compiled: pathlib.Path, lowered: pathlib.Path) -> None:
    """Fails unless ptxas makes the same machine code from both. ptxas refuses features that a version lacks."""
    code = []
    for ptx in (compiled, lowered):
        cubin = ptx.with_suffix(".cubin")
        run("ptxas", "-arch=sm_90", str(ptx), "-o", str(cubin))
        code.append(machine_code.dump(CUOBJDUMP, str(cubin), "sm_90", "-sass"))
    if code[0] != code[1]:
        raise SystemExit(f"{lowered}: other machine code than what the compiler wrote")


def made_by(folder: pathlib.Path) -> str:
    """Returns a text about the tools and the images that a later build can be compared with."""
    commands = [shlex.join([*options, SOURCE]) for options in (FATBIN, PTX)]
    wheels = re.findall(r"^\S+==\S+", (KERNELS / "requirements.txt").read_text(), flags=re.M)
    files = {f"../{name}": KERNELS / name for name in SOURCES}
    files |= {name: folder / name for name in (FATBIN_FILE, PTX_FILE)}
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}" for name, path in files.items()]
    indented = ["\n".join(f"    {line}" for line in lines) for lines in (commands, wheels)]
    return "\n\n".join(
        [
            "Made by `cargo xtask cuda-images`, which runs",
            indented[0],
            f"and takes the PTX back to version {PTX_VERSION}, without the hint `used_bytes_mask`. What compiled it:",
            indented[1],
            f"SHA-256, as `sha256sum` writes it; {PTX_FILE} is checked in as {PTX_FILE}.gz:",
            "\n".join(sums) + "\n",
        ]
    )


def look_through(folder: pathlib.Path) -> list[str]:
    """Returns the faults of the machine code, one a line."""
    source = (KERNELS / SOURCE).read_text()
    wanted = set(re.findall(r"\b(kvscatter_(?:write|present)_\w+)\b", source))
    loads = int(re.findall(r"\bMAX_VECTORS_PER_THREAD = (\d+);", (KERNELS / "abi.cuh").read_text())[0])
    faults = []
    for architecture in ARCHITECTURES:
        kernels = machine_code.kernels(CUOBJDUMP, str(folder / FATBIN_FILE), architecture)
        names = {kernel.name for kernel in kernels}
        found = [f"there is no {name}" for name in sorted(wanted - names)]
        for kernel in kernels:
            late = late_loads(kernel, loads)
            # The source of a present depends on the indices, so its loads must be late.
            if kernel.name == "kvscatter_present_16" and not late:
                raise SystemExit("no load is found to be late even where it must be")
            of_update = late if kernel.name.startswith("kvscatter_write_") else []
            found += [f"{kernel.name} {fault}" for fault in faults_of(kernel) + of_update]
        faults += [f"{architecture}: {fault}" for fault in found]
    return faults


def faults_of(kernel: machine_code.Kernel) -> list[str]:
    """Returns the faults of a kernel."""
    faults = []
    if kernel.local_bytes or kernel.places("LDL") or kernel.places("STL"):
        faults.append(f"keeps {kernel.local_bytes} bytes of a thread in local memory")
    if kernel.name.endswith("_16"):
        loads, stores = kernel.places("LDG.E.128"), kernel.places("STG.E.128")
        if not loads or not stores:
            faults.append(f"has {len(loads)} LDG.E.128 and {len(stores)} STG.E.128")
        elif kernel.name.startswith("kvscatter_write_") and max(loads) > min(stores):
            faults.append("loads some of the update after it has begun to write")
    if kernel.name == "kvscatter_write_nibbles" and not kernel.places("ATOMG.E.CAS"):
        faults.append("writes words that rows share without an atomic exchange")
    return faults


def late_loads(kernel: machine_code.Kernel, most: int) -> list[str]:
    """Returns the reason why a load of an index may wait for a load of the update.

    A warp issues instructions in the order of the code. It waits at an instruction that names a register which a load
    has not filled yet. No such instruction may be between the first load of the update and the load of an index.
    """
    if not (name := LOADS.get(kernel.name.rpartition("_")[2])):
        return []
    first_index = next(place for place, one in enumerate(kernel.code) if INDEX.fullmatch(one.name))
    loads = [place for place, one in enumerate(kernel.code[:first_index]) if one.name == name]
    if len(loads) != most:
        return [f"has {len(loads)} {name} before it loads an index, instead of {most}"]
    filled: set[int] = set()
    for one in kernel.code[loads[0] : first_index + 1]:
        if filled & one.named():
            return [f"uses what it moves ({one.name}{one.operands}) before it loads an index"]
        filled |= one.filled() if one.name == name else set()
    return []


def divisions(folder: pathlib.Path) -> list[str]:
    """Returns the faults of the path for starts that need no division. A division would dominate the time."""
    good, any_start = (slots(folder, *options) for options in (["-DIS_GOOD"], []))
    if not good or not all(DIVISION.search(text) for name, text in any_start.items() if "ring" in name):
        raise SystemExit("straight.cu: no division is found even where there must be one")
    faults = [
        f"{name} of straight.cu divides a good start" for name, text in good.items() if DIVISION.search(text)
    ]
    ptx = (folder / PTX_FILE).read_text()
    # The only 64-bit division is that of a start by the ring's capacity. The compiler adds a 32-bit variant.
    if "div." in ptx or ptx.count("rem.") != 2 * ptx.count("rem.s64"):
        faults.append(f"{SOURCE} divides by more than the capacity of a ring")
    return faults


def slots(folder: pathlib.Path, *options: str) -> dict[str, str]:
    """Returns the functions of `straight.cu` in PTX."""
    ptx = folder / "straight.ptx"
    run(*PTX, *options, "straight.cu", "-o", str(ptx))
    return dict(re.findall(r"^\.visible \.entry (straight_\w+)(.*?)^}", ptx.read_text(), flags=re.M | re.S))


def compare(folder: pathlib.Path) -> list[str]:
    """Returns a line for each file that differs from the checked-in one."""
    names = {*CHECKED_IN, *(path.name for path in IMAGES.glob("*"))}
    other = sorted(name for name in names if content(folder / name) != content(IMAGES / name))
    return [f"{IMAGES / name} is not what `cargo xtask cuda-images` makes of {SOURCE} now" for name in other]


def replace(folder: pathlib.Path) -> None:
    """Copies the new images over the checked-in ones."""
    IMAGES.mkdir(exist_ok=True)
    for name in CHECKED_IN:
        if content(folder / name) != content(IMAGES / name):
            shutil.copyfile(folder / name, IMAGES / name)


def content(path: pathlib.Path) -> bytes | None:
    """Returns the decompressed contents of a file, or None if there is no file."""
    if not path.exists():
        return None
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("--check", action="store_true")
    given = options.parse_args()
    built = given.folder.resolve()
    built.mkdir(parents=True, exist_ok=True)
    build(built)
    if faults := look_through(built) + divisions(built):
        raise SystemExit("\n".join(faults))
    if not given.check:
        replace(built)
    elif differences := compare(built):
        raise SystemExit("\n".join(differences))
