"""What comes in from outside, each as its latest good value: lines of probes, configuration files, the own object."""
