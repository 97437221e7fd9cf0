"""How long a step takes: operations, layers, ranks, the whole schedule. MODELLED, from the trace and stated speeds."""
