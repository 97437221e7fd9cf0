"""What a device computes, Ascend and CPU side by side; which of them is used is chosen in ``devices``."""
