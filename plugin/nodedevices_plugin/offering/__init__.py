"""The shape of what a node offers: which ids exist under which names, and what a change of that would take away."""
