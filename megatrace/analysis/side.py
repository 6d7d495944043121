"""Work on chunks side by side, with results in their order and few in flight."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
Write = Callable[[Callable[[], None]], None]
"""Takes what is left to do of an item: soon done, and certainly by the end."""

MAX_THREADS = 4
"""More only wait for the memory."""


def in_order(items: Iterable[T], work: Callable[[T], R]) -> Iterator[tuple[T, R, Write]]:
    """Each item with what ``work`` makes of it, in the order of ``items``.

    ``work`` and what is handed to the third of the three run on threads. Raises what they
    raise.
    """
    threads = min(MAX_THREADS, os.cpu_count() or 1)
    begun: deque[tuple[T, Future[R]]] = deque()
    writing: deque[Future[None]] = deque()
    with ThreadPoolExecutor(threads) as pool:

        def write(job: Callable[[], None]) -> None:
            writing.append(pool.submit(job))
            if len(writing) > threads:
                writing.popleft().result()

        for item in items:
            begun.append((item, pool.submit(work, item)))
            if len(begun) > threads:
                first, made = begun.popleft()
                yield first, made.result(), write
        for first, made in begun:
            yield first, made.result(), write
        for job in writing:
            job.result()
