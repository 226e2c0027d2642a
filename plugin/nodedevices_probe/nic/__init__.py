"""Network cards by what the kernel shows: RDMA, SR-IOV functions, Solarflare and plain ones, of any maker."""
