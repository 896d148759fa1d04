"""What the machine code of a CUDA image does, as far as its instructions tell."""

import dataclasses
import re
import subprocess

#: An instruction: its address, its predicate (`@P0`), its name, and what it works on.
LINE = re.compile(
    r"\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<predicate>@!?U?P\w+\s+)?(?P<name>[A-Z]\S*)(?P<rest>.*?);"
)
FUNCTION = re.compile(r"\s*Function : (\w+)")
USAGE = re.compile(r"\s*Function (\w+):\n.*\bSTACK:(\d+) .*\bLOCAL:(\d+)")

#: After these the next instruction is not run. What is jumped to through a register is not followed either.
LEAVES = ("BRA", "BRX", "JMP", "JMX", "CALL", "RET", "EXIT")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction, with the address that it may branch to."""

    address: int
    name: str
    is_conditional: bool
    target: int | None

    @property
    def is_store(self) -> bool:
        """Whether it writes to memory that outlives the launch."""
        return self.name.startswith(("STG.", "ST.", "ATOM"))


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A function of an image."""

    name: str
    #: Bytes of local memory for each thread: what does not fit into registers.
    local_bytes: int
    code: list[Instruction]

    def named(self, prefix: str) -> list[int]:
        """The addresses of the instructions whose names begin with `prefix`."""
        return [each.address for each in self.code if each.name.startswith(prefix)]

    def reached_without_a_call(self) -> set[int]:
        """The addresses of all instructions that some path leads to on which nothing is called."""
        places = {each.address: place for place, each in enumerate(self.code)}
        reached: set[int] = set()
        open_places = [0]
        while open_places:
            place = open_places.pop()
            each = self.code[place]
            if each.address in reached:
                continue
            reached.add(each.address)
            if each.target is not None:
                open_places.append(places[each.target])
            if each.is_conditional or not each.name.startswith(LEAVES):
                open_places.append(place + 1)
        return reached


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
        elif found := LINE.match(line):
            code[name].append(instruction(found))
    return [Kernel(name, local_bytes[name], code[name]) for name in code]


def instruction(found: re.Match[str]) -> Instruction:
    """A line that [`LINE`] describes."""
    name, rest = found["name"], found["rest"]
    # A branch may also have its condition among its operands: `BRA.U UP0, 0x120`.
    is_conditional = bool(found["predicate"] or re.search(r"\bU?P\d", rest) or ".DIV" in name)
    addresses = re.findall(r"\b0x[0-9a-f]+\b", rest)
    target = int(addresses[-1], 16) if name.startswith(("BRA", "JMP")) and addresses else None
    return Instruction(int(found["address"], 16), name, is_conditional, target)
