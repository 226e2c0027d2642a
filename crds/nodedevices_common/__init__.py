"""What agent, probes and operator all need and none of them is: logs, the HTTP server, back-off, files, errors.

Nothing in this package knows a device, a kind of the contract, or a library that only one of them has: a probe imports
from it and stays small.
"""
