"""Pools that live elsewhere: what a node offers of devices on other machines, by a configuration file."""
