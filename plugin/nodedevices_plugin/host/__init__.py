"""The agent's I/O on its node: CDI files, device nodes, MPS daemons, the state file."""
