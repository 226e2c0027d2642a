"""Rows to text: a table as kubectl prints it, JSON, YAML, names. Nothing here knows a device or does I/O."""
