"""The answers to the kubelet: the ids of a container, devices that go together, and what a container needs for them."""
