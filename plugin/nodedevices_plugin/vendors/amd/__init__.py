"""AMD: GPUs and their compute partitions."""
