"""Gates: each reason why a new container may not get an id is a function, with one line in the registry.

The shape of a plan (offering.shape) says which ids exist under which names; it follows from devices and configuration
alone. A gate is given that shape and the facts of now, and says of an id whether it blocks it, and why. `apply` asks
all of them, and its plan is what the kubelet is sent: an id that no gate blocks is Healthy.
"""
