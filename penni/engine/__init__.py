"""The runtime for packed networks: numpy and the native kernels, no torch."""
