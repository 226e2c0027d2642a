"""NICs of every maker: physical and virtual functions, RDMA devices."""
