"""Not there in a release: import-linter brings rich for those who develop, and structlog loads it where it finds it."""

raise ImportError("rich is no requirement of the agent")
