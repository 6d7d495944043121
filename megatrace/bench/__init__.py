"""Measures a running server from outside, through its own HTTP interface."""
