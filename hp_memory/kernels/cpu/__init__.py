"""Stand-ins for Ascend-only kernels and collectives, so that every path can be run and tested on a CPU."""
