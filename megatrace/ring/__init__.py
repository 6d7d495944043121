"""Shared-memory rings: files, drain, control page, aggregate page, sessions of this host."""
