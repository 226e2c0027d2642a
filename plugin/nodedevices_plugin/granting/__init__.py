"""What the kubelet is answered: who gets which ids, which devices go together, and what a container needs for them."""
