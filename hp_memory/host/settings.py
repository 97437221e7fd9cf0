"""What a config says of the host's side of ``offload``. No MindSpore here."""

from __future__ import annotations

from dataclasses import dataclass

from hp_memory.amounts import bytes_of, positive_bytes_of
from hp_memory.errors import ConfigError


@dataclass
class HostSettings:
    """Memory for the tensors that wait on the host, which tensors go there, and when they come back."""

    memory: str = "64GiB"
    """The most that one rank keeps on the host. What doesn't fit stays on the device and is counted."""
    min_bytes: str = "1MiB"
    """Smaller tensors stay on the device: a copy of little data costs its start."""
    prefetch: int = 2
    """How many regions (that move something) before its backward a region's tensors start to come back."""
    pending: int = 4
    """How many regions' copies to the host may be under way; a forward that is further ahead waits."""

    def validate(self, path: str) -> None:
        """Raises ConfigError for amounts that can't be read, and numbers that can't be kept."""
        positive_bytes_of(self.memory, f"{path}.memory")
        if bytes_of(self.min_bytes, f"{path}.min_bytes") > bytes_of(self.memory, f"{path}.memory"):
            raise ConfigError(f"{path}.min_bytes", self.min_bytes, f"is more than {path}.memory: nothing would move")
        if self.prefetch < 0:
            raise ConfigError(f"{path}.prefetch", self.prefetch, "must be at least 0")
        if self.pending < 1:
            raise ConfigError(f"{path}.pending", self.pending, "must be at least 1")
