"""What the agent shows: its report and who publishes it, metrics, readiness."""
