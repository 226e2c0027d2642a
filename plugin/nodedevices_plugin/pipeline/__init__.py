"""One step of the agent, pure: everything that follows from the latest of everything in."""
