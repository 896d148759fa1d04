"""Fails if a wheel tells where it was built.

    python3 no_paths.py WHEELS PATH...

`WHEELS` is a pattern of file names. Each file inside each wheel must hold none of the paths, as text or in the strings
of a compiled module. Paths of one name, such as /src, are passed over: they are part of others.
"""

import glob
import sys
import zipfile


def found(wheel: str, paths: list[str]) -> list[str]:
    """The files in `wheel` that hold one of `paths`, each with the first of them."""
    lines = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            holds = [path for path in paths if path.encode() in content]
            lines += [f"{wheel}: {name} holds {path}" for path in holds[:1]]
    return lines


if __name__ == "__main__":
    pattern, *paths = sys.argv[1:]
    wheels = glob.glob(pattern)
    if not wheels:
        raise SystemExit(f"{pattern}: there is no such file")
    telling = [path for path in paths if path.strip("/").count("/")]
    lines = [line for wheel in wheels for line in found(wheel, telling)]
    if lines:
        raise SystemExit("\n".join(lines))
