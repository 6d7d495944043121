"""Files that exist whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from megatrace.errors import MegatraceError

PART_SUFFIX = ".part"
_GZIP_LEVEL = 4
"""A sixth larger than at 6, three times as fast."""


class OutputError(MegatraceError):
    """A file that exists, or cannot be written."""


@contextlib.contextmanager
def output_file(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """A file to write, which is ``path`` (0600) once the block ends without an error.

    Until then it is ``<path>.part``, which an error removes. A name that ends in
    ``.gz`` is compressed.

    Raises OutputError where ``path`` exists, unless ``force``, cannot be written, or
    fills the disk.
    """
    check_output(path, force=force)
    part = path.with_name(path.name + PART_SUFFIX)
    try:
        try:
            with _open(part) as raw, _compressed(path, raw) as file:
                yield file
            if not force and path.exists():
                raise _exists(path)
            part.rename(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OutputError(
            f"no space left for {path}", hint="free some, or export fewer steps"
        ) from error


def check_output(path: Path, *, force: bool = False) -> None:
    """Raise OutputError where :func:`output_file` would refuse ``path`` at once."""
    if path.is_dir():
        raise OutputError(f"{path} is a directory", hint="give the name of a file")
    if path.exists() and not force:
        raise _exists(path)
    if not path.parent.is_dir():
        raise OutputError(f"no directory {path.parent}", hint="make it, or choose another name")


def _exists(path: Path) -> OutputError:
    return OutputError(f"{path} exists", hint="choose another name, or overwrite it with --force")


def _open(part: Path) -> BinaryIO:
    # Whoever still writes an older .part of this name keeps its file, without a name.
    part.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.fdopen(os.open(part, flags, 0o600), "wb")
    except OSError as error:
        raise OutputError(
            f"cannot write {part}: {error.strerror}", hint="choose another name"
        ) from error


@contextlib.contextmanager
def _compressed(path: Path, raw: BinaryIO) -> Iterator[BinaryIO]:
    if path.suffix != ".gz":
        yield raw
        return
    # Neither name nor time inside: the same trace is the same file.
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as file:
        yield cast(BinaryIO, file)
