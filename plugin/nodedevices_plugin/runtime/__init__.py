"""What the agent's process is built on: worker threads, supervision, memory."""
