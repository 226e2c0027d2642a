"""The node agent."""
