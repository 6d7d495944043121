"""Compiles kernels to cubins and reads what the compiler made of them.

``nvcc`` and ``nvdisasm`` come from PATH, else from the NVIDIA packages of the ``dev``
extra; there is no GPU in any of this.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "megatrace" / "include"
SHT_NOBITS = 8
ARCHS = ("sm_90a", "sm_103a")

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_LABEL = re.compile(r"\.L_x_\d+|\$__internal_\d+_")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")


def tool(name: str) -> Path:
    """The path of a CUDA program; FileNotFoundError names where it was looked for."""
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    packaged = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / name
    if packaged.is_file():
        return packaged
    raise FileNotFoundError(f"no {name} on PATH, none at {packaged}: pip install -e '.[dev]'")


@dataclass(frozen=True, slots=True)
class Usage:
    """What ptxas says of one kernel."""

    registers: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of SASS: ``LDS.128`` and ``R4, [R2+0x200]``."""

    opcode: str
    operands: str

    def registers(self) -> list[int]:
        """Numbers of the registers named, in order."""
        return [int(n) for n in re.findall(r"(?<![\w])R(\d+)", self.operands)]


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled file; kernels are named by their mangled names."""

    path: Path
    usage: dict[str, Usage]

    def text(self, kernel: str) -> bytes:
        """The machine code of a kernel, from its ELF section."""
        return sections(self.path.read_bytes())[f".text.{kernel}"]

    def kernel(self, *parts: str) -> str:
        """The one kernel whose mangled name holds every part."""
        found = [name for name in self.usage if all(part in name for part in parts)]
        if len(found) != 1:
            raise LookupError(f"{len(found)} kernels match {parts}: {sorted(self.usage)}")
        return found[0]

    def instructions(self, kernel: str) -> list[Instruction]:
        """The kernel's SASS in the order of addresses."""
        listing = run([tool("nvdisasm"), "-c", self.path])
        start = listing.index(f".text.{kernel}:")
        body = listing[start:].split(".section", 1)[0].replace(kernel, "kernel")
        # Labels are numbered through the whole file; here from the kernel's first one, so
        # that kernels of two files compare.
        labels = {name: f".L{i}" for i, name in enumerate(dict.fromkeys(_LABEL.findall(body)))}
        body = _LABEL.sub(lambda match: labels[match[0]], body)
        # Comments are moved right by the length of the kernel's name.
        found = (match.groups() for match in _INSTRUCTION.finditer(body))
        return [Instruction(opcode, " ".join(operands.split())) for opcode, operands in found]


def run(command: list[str | Path]) -> str:
    """stdout and stderr of a compiler; its words are in the error where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout + done.stderr


def compile_cubin(source: Path, arch: str, *options: str) -> Cubin:
    """``source`` for one architecture, as ``nvcc -O3`` makes it."""
    out = source.with_suffix(f".{arch}.cubin")
    command: list[str | Path] = [
        tool("nvcc"),
        "-std=c++20",
        "-O3",
        f"-arch={arch}",
        "-cubin",
        "-Xptxas",
        "-v",
    ]
    said = run([*command, "-I", INCLUDE, "-I", source.parent, *options, "-o", out, source])
    return Cubin(out, parse_usage(said))


def parse_usage(said: str) -> dict[str, Usage]:
    """Kernel -> usage, from the words of ``ptxas -v``."""
    usage = {}
    for part in re.split(r"(?=ptxas info\s+: Compiling entry)", said)[1:]:
        entry, frame, registers = (p.search(part) for p in (_ENTRY, _FRAME, _REGISTERS))
        if not (entry and frame and registers):
            raise ValueError(f"ptxas says something new: {part}")
        stack, *spills = (int(n) for n in frame.groups())
        usage[entry.group(1)] = Usage(int(registers.group(1)), stack, sum(spills))
    return usage


def sections(elf: bytes) -> dict[str, bytes]:
    """Name -> bytes of the sections of a 64-bit little-endian ELF file."""
    assert elf[:6] == b"\x7fELF\x02\x01", "not a 64-bit little-endian ELF file"
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names_at = headers[names_index][4]
    found = {}
    for name, kind, _, _, offset, length in headers:
        end = elf.index(b"\0", names_at + name)
        in_file = 0 if kind == SHT_NOBITS else length
        found[elf[names_at + name : end].decode()] = elf[offset : offset + in_file]
    return found


def load_batches(code: list[Instruction]) -> list[int]:
    """Shared-memory loads in flight each time arithmetic first needs one of them.

    A compiler that interleaves loads and adds one by one gives many ones; a batched loop
    gives its unrolling. Only the 128-bit loads of data count.
    """
    batches, pending, loads = [], set[int](), 0
    for instruction in code:
        registers = instruction.registers()
        if instruction.opcode.startswith("LDS.128"):
            pending.update(range(registers[0], registers[0] + 4))
            loads += 1
        elif instruction.opcode.startswith(("FADD", "FFMA")) and pending & set(registers[1:]):
            batches.append(loads)
            pending, loads = set(), 0
    return batches
