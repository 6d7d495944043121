"""Traces for others: Perfetto's viewer, CSV, Parquet."""

from megatrace.export.capture import decode_shown
from megatrace.export.perfetto import ExportResult, export_perfetto
from megatrace.export.picture import PerfettoOptions
from megatrace.export.tabular import TableName, TableResult, export_table
from megatrace.export.viewer import First, sql_package, sql_text, startup_commands, viewer_address

__all__ = [
    "ExportResult",
    "First",
    "PerfettoOptions",
    "TableName",
    "TableResult",
    "decode_shown",
    "export_perfetto",
    "export_table",
    "sql_package",
    "sql_text",
    "startup_commands",
    "viewer_address",
]
