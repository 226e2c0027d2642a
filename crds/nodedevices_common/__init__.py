"""Code that agent, probes and operator share, one of each.

logs; http: metrics and health; options: flags and variables; backoff; periodic: what is polled; files: replaced
atomically; conditions; errors: the tree; text; times; quantity; raw: JSON that anybody wrote, and records of it;
safe_yaml: YAML that people wrote; pod_requests: what a pod's containers request, and which device gets it; loading: of
a program's modules. Nothing in this package knows a device, a kind of the contract, or
a library that only one of them has: a probe imports from it and stays small.
"""

__version__ = "0.1.0"  # `make version V=...` writes it, and wherever else it stands
