"""What runs on a node, told what to do by the launcher: probes it, runs its msrun, leaves no process."""
