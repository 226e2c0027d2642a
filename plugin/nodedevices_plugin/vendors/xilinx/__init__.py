"""Xilinx (AMD): FPGA cards, and MA35D media accelerators."""
