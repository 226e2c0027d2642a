"""What the agent reads and writes on its node: CDI files, device nodes, helpers of sharing modes, the state file."""
