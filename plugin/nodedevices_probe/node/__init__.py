"""The node as probes read it: its roots, PCI functions and display adapters."""
