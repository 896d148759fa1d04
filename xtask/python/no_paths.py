"""Fails if a wheel contains a path of the machine that built it.

    python3 no_paths.py WHEELS PATH...

`WHEELS` is a pattern of file names. No file inside a wheel may contain one of the paths, as text or in the strings of a
compiled module. Paths of one component, such as /src, are ignored because they are part of other paths.
"""

import glob
import sys
import zipfile


def found(wheel: str, paths: list[str]) -> list[str]:
    """Returns the files in `wheel` that contain one of `paths`, each with the first such path."""
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
