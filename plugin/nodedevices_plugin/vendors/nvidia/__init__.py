"""NVIDIA's GPUs: what is handed out of them, under which names, and what a container gets."""
