"""The frames of a Trace as CSV or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from megatrace import __version__
from megatrace.analysis import Trace
from megatrace.errors import UsageError
from megatrace.export.about import loss_text
from megatrace.export.output import check_output, output_file
from megatrace.export.select import within
from megatrace.schema.processes import rank_text

TableName = Literal["records", "launches", "host"]
SUFFIXES = (".csv", ".csv.gz", ".parquet")
_ROWS_A_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class TableResult:
    """What was written: ``table`` with ``rows`` to ``path``, ``size_bytes`` long.

    ``left_out`` is one phrase for each thing that the budget has cut off.
    """

    path: Path
    table: TableName
    rows: int
    size_bytes: int
    loss: str
    left_out: tuple[str, ...] = ()


def export_table(
    trace: Trace,
    path: Path,
    table: TableName = "records",
    *,
    budget: int | None = None,
    force: bool = False,
    command: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> TableResult:
    """Write one frame of ``trace``, columns as :class:`megatrace.analysis.Trace` has them.

    Args:
        trace: From :func:`megatrace.analysis.decode`.
        path: ``*.csv``, ``*.csv.gz`` or ``*.parquet``; made whole or not at all, mode 0600.
        table: Which frame.
        budget: Rows at most, None: all. Of records and launches whole launches are left
            out beyond it, never all of them; of the host its later events.
        force: Whether an existing file is overwritten.
        command: What was recorded; kept in the metadata of Parquet with loss, clock
            errors and version. CSV has no place for them.
        progress: Called with (rows written, rows in all).

    Raises:
        UsageError: ``path`` has another suffix.
        OutputError: ``path`` exists or cannot be written.
    """
    if not path.name.endswith(SUFFIXES):
        raise UsageError(f"{path.name} is neither CSV nor Parquet", hint="name it *.parquet")
    check_output(path, force=force)
    frame, left_out = _within_budget(trace, table, budget)
    loss = loss_text(trace.loss)
    facts = {
        "loss": loss,
        "clock": "; ".join(
            f"rank {rank_text(rank)}: error {model.error_ns:.0f} ns"
            for rank, model in trace.clock.items()
        ),
        "complete": str(trace.complete).lower(),
        "version": f"megatrace {__version__}",
        "command": command,
    }
    write = _write_parquet if path.suffix == ".parquet" else _write_csv
    with output_file(path, force=force) as file:
        write(file, _chunks(frame, progress), _schema(frame, facts))
    return TableResult(path, table, len(frame), path.stat().st_size, loss, left_out)


def _within_budget(
    trace: Trace, table: TableName, budget: int | None
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The frame, cut to ``budget`` rows, and a phrase for what that cut off."""
    frame: pd.DataFrame = getattr(trace, table)
    if budget is None or len(frame) <= budget:
        return frame, ()
    if table == "host":
        first = frame["host_begin_ns"].argsort(kind="stable")[:budget]
        cut = f"{len(frame) - budget:,} of {len(frame):,} rows (budget of {budget:,} rows)"
        return frame.iloc[np.sort(first.to_numpy())], (cut,)
    size = len(trace.launches)
    owner = frame["launch_row"].to_numpy() if table == "records" else np.arange(size)
    cost = np.bincount(owner, minlength=size)
    kept, cuts = within(trace.launches, cost, np.ones(size, np.bool_), budget, "rows")
    return frame[kept[owner]], cuts


def _schema(frame: pd.DataFrame, facts: dict[str, str]) -> pa.Schema:
    schema = pa.Schema.from_pandas(frame.head(0), preserve_index=False)
    plain = [
        # Chunks of one table have to agree, and dictionaries of chunks do not.
        field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(plain, {f"megatrace.{name}": text for name, text in facts.items() if text})


def _chunks(
    frame: pd.DataFrame, progress: Callable[[int, int], None] | None
) -> Iterator[pd.DataFrame]:
    """The frame in parts, at least one."""
    for begin in range(0, max(len(frame), 1), _ROWS_A_CHUNK):
        part = frame.iloc[begin : begin + _ROWS_A_CHUNK]
        yield part
        if progress is not None:
            progress(begin + len(part), len(frame))


def _write_parquet(file: BinaryIO, chunks: Iterator[pd.DataFrame], schema: pa.Schema) -> None:
    with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for chunk in chunks:
            writer.write_table(_table(chunk, schema))


def _write_csv(file: BinaryIO, chunks: Iterator[pd.DataFrame], schema: pa.Schema) -> None:
    options = pa.csv.WriteOptions(quoting_style="needed")
    with pa.csv.CSVWriter(file, schema, write_options=options) as writer:
        for chunk in chunks:
            writer.write_table(_table(chunk, schema))


def _table(chunk: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pandas(chunk, schema=schema, preserve_index=False)
