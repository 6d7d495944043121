"""The child: which program a command line means, how it is started, what it exits with.

A command is a path, a program on PATH, or a dotted Python module (``sglang.launch_server``
is no executable). No shell ever sees it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatrace.errors import ExitCode, RecordError

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_FIND_SPEC = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
# A word that ends so: --api-key and --hfToken are secrets, --max-total-tokens and --tokenizer-path
# are none.
_SECRET_FLAG = re.compile(
    r"--?(?:[a-z0-9]+[_-])*[a-z0-9]*(?:key|api-?keys|token|secrets?|password|passwd)"
    r"(?:[_-][a-z0-9]+)*",
    re.IGNORECASE,
)


class ProgramNotFound(RecordError):
    """No program, path or module of that name."""

    exit_code = ExitCode.NOT_FOUND


class ProgramNotExecutable(RecordError):
    """There is such a file, and it cannot be run."""

    exit_code = ExitCode.NOT_EXECUTABLE


@dataclass(frozen=True, slots=True)
class Program:
    """A command that can be started: ``path`` to execute and the whole ``argv``."""

    path: str
    argv: tuple[str, ...]
    name: str
    """Short name for files and lists."""
    as_module: bool = False


def resolve(command: Sequence[str], env: Mapping[str, str] | None = None) -> Program:
    """The program ``command`` means.

    Raises ProgramNotFound (127) and ProgramNotExecutable (126).
    """
    env = os.environ if env is None else env
    word = command[0]
    if "/" in word:
        _check_file(Path(word))
        return Program(word, tuple(command), _name(command))
    found, blocked = _search(word, env.get("PATH", os.defpath))
    if found:
        return Program(found, tuple(command), _name(command))
    if blocked:
        raise ProgramNotExecutable(
            f"{blocked} is not executable", hint=f"chmod +x {blocked}, or name its interpreter"
        )
    # `train.py` of this folder also is the module `train` with a tail: ask, do not guess.
    if _MODULE.fullmatch(word) and not Path(word).exists():
        python = env.get("MEGATRACE_PYTHON") or sys.executable
        if _has_module(python, word):
            argv = (python, "-m", *command)
            return Program(_python_path(python, env), argv, word, as_module=True)
    raise ProgramNotFound(f"no program or Python module named {word!r}", hint=_not_found_hint(word))


def redacted(command: Sequence[str]) -> list[str]:
    """``command`` with the values of flags such as ``--api-key`` left out."""
    out: list[str] = []
    hide = False
    for word in command:
        flag, equals, _ = word.partition("=")
        secret = _SECRET_FLAG.fullmatch(flag) is not None
        if hide and not word.startswith("-"):
            out.append("***")
        elif secret and equals:
            out.append(f"{flag}=***")
        else:
            out.append(word)
        hide = secret and not equals
    return out


class Child:
    """One started child process. It keeps this process's stdin, stdout, stderr and group."""

    def __init__(self, pid: int, program: Program) -> None:
        self.pid = pid
        self.program = program
        self.status: int | None = None
        """0-255 as it exited, or -N where signal N ended it; None while it runs."""

    @classmethod
    def start(cls, program: Program, env: Mapping[str, str]) -> Child:
        """Start ``program`` with no signal blocked and SIGPIPE as a shell would leave it.

        Raises ProgramNotFound and ProgramNotExecutable.
        """
        try:
            pid = os.posix_spawn(
                program.path,
                list(program.argv),
                dict(env),
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        except FileNotFoundError:
            raise ProgramNotFound(
                f"{program.path}: the interpreter its first line names does not exist",
                hint="correct the #! line, or name the interpreter in the command",
            ) from None
        except OSError as error:
            raise ProgramNotExecutable(
                f"{program.path}: {error.strerror}",
                hint="it needs the right format or a #! line, and execute permission",
            ) from None
        return cls(pid, program)

    def poll(self) -> int | None:
        """Reap it if it has ended; ``status`` or None."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.status = int(ExitCode.TOOL_FAILED)
                return self.status
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def send(self, number: int) -> bool:
        """Send signal ``number`` to this one process; False where it has ended."""
        if self.poll() is not None:
            return False
        os.kill(self.pid, number)
        return True


def exit_code(status: int) -> int:
    """``status`` of a child as a shell gives it: 128 + N for signal N."""
    return 128 - status if status < 0 else status


def describe_exit(status: int) -> str:
    """``status`` in words: ``exited 3``, ``was ended by SIGSEGV``."""
    if status >= 0:
        return f"exited {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _check_file(path: Path) -> None:
    if not path.exists():
        raise ProgramNotFound(f"no such file: {path}", hint="check the path")
    if path.is_dir():
        raise ProgramNotExecutable(f"{path} is a directory", hint="name a program in it")
    if not os.access(path, os.X_OK):
        raise ProgramNotExecutable(
            f"{path} is not executable", hint=f"chmod +x {path}, or name its interpreter"
        )


def _search(word: str, path: str) -> tuple[str | None, str | None]:
    blocked = None
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder or ".", word)
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate, None
            blocked = blocked or candidate
    return None, blocked


def _python_path(python: str, env: Mapping[str, str]) -> str:
    if "/" in python:
        _check_file(Path(python))
        return python
    found, _ = _search(python, env.get("PATH", os.defpath))
    if found is None:
        raise ProgramNotFound(
            f"MEGATRACE_PYTHON={python} is not on PATH", hint="set it to a Python's full path"
        )
    return found


def _has_module(python: str, module: str) -> bool:
    # The top package alone: to look further would import it.
    top = module.partition(".")[0]
    try:
        done = subprocess.run(
            [python, "-c", _FIND_SPEC, top],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _not_found_hint(word: str) -> str:
    if Path(word).exists():
        return f"./{word} runs the file here"
    if _MODULE.fullmatch(word):
        return "is the package installed in this Python? MEGATRACE_PYTHON names another one"
    return "check the spelling and PATH"


def _name(command: Sequence[str]) -> str:
    name = os.path.basename(command[0])
    if re.fullmatch(r"python[\d.]*", name) and len(command) > 1:
        if command[1] == "-m" and len(command) > 2:
            return command[2]
        if not command[1].startswith("-"):
            return os.path.basename(command[1]).removesuffix(".py")
    return name
