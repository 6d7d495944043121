"""megatrace makes GPU megakernels legible: warp records, a recorder, reports, Perfetto."""

__version__ = "0.1.0"
