"""Devices of each maker, as their real probes report them: a file for each, data mostly."""
