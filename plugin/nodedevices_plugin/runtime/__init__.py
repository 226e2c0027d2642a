"""What the agent's process stands on: worker threads, supervision, memory."""
