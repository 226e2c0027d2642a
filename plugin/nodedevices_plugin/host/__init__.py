"""The agent's I/O on its node: CDI files, device nodes, helpers of sharing modes, the state file."""
