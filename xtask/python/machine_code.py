"""What the machine code of a CUDA image consists of, as cuobjdump tells it."""

import dataclasses
import re
import subprocess

FUNCTION = re.compile(r"\s*Function : (\w+)")
#: A line that begins with an instruction: its address, its predicate (`@P0`), its name, its operands.
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@\S+\s+)?([A-Z][\w.]*)([^;]*);")
REGISTER = re.compile(r"\bR(\d+)\b")
USAGE = re.compile(r"\s*Function (\w+):\n.*\bSTACK:(\d+) .*\bLOCAL:(\d+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a listing."""

    name: str
    operands: str

    def named(self) -> set[int]:
        """The numbers of the registers that it names. A vector in several registers is named by its first."""
        return {int(number) for number in REGISTER.findall(self.operands)}

    def filled(self) -> set[int]:
        """The registers that a load fills: as many as its name has bits for, from the first operand on."""
        width = re.search(r"\.(64|128)\b", self.name)
        first = int(REGISTER.findall(self.operands)[0])
        return set(range(first, first + (int(width[1]) // 32 if width else 1)))


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A function of an image."""

    name: str
    #: Bytes of local memory for each thread: what does not fit into registers.
    local_bytes: int
    code: list[Instruction]

    def places(self, prefix: str) -> list[int]:
        """Where in the code there are instructions whose names begin with `prefix`."""
        return [place for place, one in enumerate(self.code) if one.name.startswith(prefix)]


def dump(cuobjdump: str, image: str, architecture: str, what: str) -> str:
    """What the tool says about the part of `image` that devices of `architecture`, such as `sm_90`, run."""
    command = [cuobjdump, what, "-arch", architecture, image]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kernels(cuobjdump: str, image: str, architecture: str) -> list[Kernel]:
    """The kernels that `image` has for devices of `architecture`."""
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
