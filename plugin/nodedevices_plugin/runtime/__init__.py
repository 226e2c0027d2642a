"""The base of the agent's process: worker threads, supervision."""
