"""The recorder process: child, signals, ring discovery, drain loop, status line."""
