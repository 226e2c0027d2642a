"""Intel's GPUs, by what the kernel's i915 and xe drivers show."""
