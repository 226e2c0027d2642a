"""What the node offers to the kubelet, and what it answers: the plan, its ids and names, sharing, injection, and which
devices to prefer. Everything here is pure, and knows nothing of gRPC.
"""
