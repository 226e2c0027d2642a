"""Intel: GPUs and their virtual functions."""
