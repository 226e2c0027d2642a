"""Sharing by memory: the mode, what a container gets, and the variables and mounts that policies add."""
