"""The ``.mtr`` file: one Arrow IPC stream of one schema, a CRC a batch."""
