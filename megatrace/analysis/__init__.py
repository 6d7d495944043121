"""Captures as frames and as reports: launches, spans, stalls, prefetch slack, loss."""

from megatrace.analysis.loss import LossRow, LossTable
from megatrace.analysis.render import to_text
from megatrace.analysis.report import Report
from megatrace.analysis.summary import summarise
from megatrace.analysis.trace import Trace, decode

__all__ = ["LossRow", "LossTable", "Report", "Trace", "decode", "summarise", "to_text"]
