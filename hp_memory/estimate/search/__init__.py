"""Which plan fits a budget at the least cost."""
