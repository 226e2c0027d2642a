"""Inputs, each with its latest good value: lines of probes, configuration files, the node's own object, its pods."""
