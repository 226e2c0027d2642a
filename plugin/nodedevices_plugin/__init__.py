"""The node agent and its probes."""

__version__ = "0.1.0"  # a test holds it equal to the distribution's
