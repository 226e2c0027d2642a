"""AMD's GPUs, by what the kernel's amdgpu driver and KFD show."""
