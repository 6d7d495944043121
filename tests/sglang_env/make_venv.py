"""Make a virtual environment that runs a real SGLang 0.5.23 server without a GPU.

    python make_venv.py DIR

About a minute and 2.7 GB; a second call with the same requirements returns at once: a
stamp in DIR holds their hash. Two callers at once build once. The stand-ins in site/ are
not installed: put that directory on PYTHONPATH.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAMP = "megatrace-sglang-env.stamp"
OLDEST = (3, 11)

# PyPI's torchvision is built against CUDA torch; beside a CPU torch its C++ half does
# not load, and its Python half then registers fakes for operators nobody declared.
TORCHVISION_PATCH = """
# megatrace test environment: declare what the missing C++ half would have.
if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def wanted() -> str:
    """Hash of everything that decides what the environment holds."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}{TORCHVISION_PATCH}".encode())
    for name in ("requirements.txt", "requirements-nodeps.txt"):
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()


def ready(target: Path) -> bool:
    """Whether ``target`` holds the environment these requirements ask for."""
    try:
        return (target / STAMP).read_text() == wanted()
    except FileNotFoundError:
        return False


def build(target: Path) -> None:
    """Fill ``target``; the stamp comes last, so that half an environment is no environment."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(target)], check=True)
    python = target / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(HERE / "requirements.txt")], check=True)
    subprocess.run([*pip, "--no-deps", "-r", str(HERE / "requirements-nodeps.txt")], check=True)
    site = next((target / "lib").glob("python3.*")) / "site-packages"
    extension = site / "torchvision" / "extension.py"
    extension.write_text(extension.read_text() + TORCHVISION_PATCH)
    (target / STAMP).write_text(wanted())


def ensure(target: Path) -> Path:
    """The environment's Python, built first where it is missing or out of date.

    Raises subprocess.CalledProcessError where pip fails, RuntimeError on an older Python.
    """
    if sys.version_info < OLDEST:
        raise RuntimeError(f"needs Python {OLDEST[0]}.{OLDEST[1]} or newer, this is {sys.version}")
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{target}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready(target):
            build(target)
    return target / "bin" / "python"


def main() -> int:
    """Build or reuse; prints the Python of the environment."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    print(ensure(Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main())
