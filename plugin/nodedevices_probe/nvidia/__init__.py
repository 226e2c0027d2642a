"""The probe nvml: NVIDIA's GPUs, through their driver's management library."""
