"""Reads the machine code of a CUDA image from the output of cuobjdump."""

import dataclasses
import re
import subprocess

FUNCTION = re.compile(r"\s*Function : (\w+)")
#: A line with an instruction: the address, the predicate (`@P0`), the name, the operands.
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@\S+\s+)?([A-Z][\w.]*)([^;]*);")
REGISTER = re.compile(r"\bR(\d+)\b")
USAGE = re.compile(r"\s*Function (\w+):\n.*\bSTACK:(\d+) .*\bLOCAL:(\d+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a listing."""

    name: str
    operands: str

    def named(self) -> set[int]:
        """Returns the numbers of the registers that it names. A vector is named by its first register."""
        return {int(number) for number in REGISTER.findall(self.operands)}

    def filled(self) -> set[int]:
        """Returns the registers that a load fills: from the first operand, as many as the name has bits for."""
        width = re.search(r"\.(64|128)\b", self.name)
        first = int(REGISTER.findall(self.operands)[0])
        return set(range(first, first + (int(width[1]) // 32 if width else 1)))


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A function of an image."""

    name: str
    #: Bytes of local memory for each thread, which hold the values that do not fit into registers.
    local_bytes: int
    code: list[Instruction]

    def places(self, prefix: str) -> list[int]:
        """Returns the positions of the instructions whose names begin with `prefix`."""
        return [place for place, one in enumerate(self.code) if one.name.startswith(prefix)]


def dump(cuobjdump: str, image: str, architecture: str, what: str) -> str:
    """Returns the tool's output for the part of `image` for `architecture`, such as `sm_90`."""
    command = [cuobjdump, what, "-arch", architecture, image]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kernels(cuobjdump: str, image: str, architecture: str) -> list[Kernel]:
    """Returns the kernels in `image` for devices of `architecture`."""
    usage = USAGE.findall(dump(cuobjdump, image, architecture, "-res-usage"))
    local_bytes = {name: int(stack) + int(local) for name, stack, local in usage}
    code: dict[str, list[Instruction]] = {}
    name = ""
    for line in dump(cuobjdump, image, architecture, "-sass").splitlines():
        if function := FUNCTION.match(line):
            name = function[1]
            code[name] = []
        elif instruction := INSTRUCTION.match(line):
            code[name].append(Instruction(instruction[1], instruction[2]))
    return [Kernel(name, local_bytes[name], code[name]) for name in code]
