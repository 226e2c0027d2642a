"""Programs that observe hardware and write one line of JSON about it; they import nothing of the agent."""
