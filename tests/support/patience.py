"""How long a test waits for what is going to happen: so long that only a hang ends the wait, on any machine."""

PATIENCE_SECONDS = 120.0
CLUSTER_PATIENCE_SECONDS = 300.0  # where an API server and several processes take part
