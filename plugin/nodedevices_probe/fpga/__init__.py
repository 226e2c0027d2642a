"""FPGA cards and media accelerators of Xilinx (AMD), and those that Advantech, Arista and AWS make with its FPGAs."""
