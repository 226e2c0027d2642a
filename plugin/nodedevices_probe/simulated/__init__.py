"""The probe simulated: devices as a file or a profile describes them."""
