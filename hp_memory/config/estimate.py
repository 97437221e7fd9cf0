"""What a dry run assumes of the device, the optimizer and the routing; what a search may spend. No MindSpore here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from omegaconf import MISSING

from hp_memory.amounts import bytes_of, positive_bytes_of
from hp_memory.errors import ConfigError
from hp_memory.layout import REGIONS
from hp_memory.runs.region_times import read_times

# A layout of this name stands for what the file of `yaml` says.
OF_YAML = "yaml"
SHARDS = ("optim", "optim_grads", "optim_params", "optim_grads_params")
ACCUMULATION = ("default", "sharded", "whole")
RESHARD = ("default", "always", "never")
VIEWS = ("shared", "copied")
COSTS = ("time", "flops", "given")
GRANULARITY = ("layer", "stage")
FREEDOMS = ("layout", "stages", "micro_batch", "schedule")
MOST_BUDGETS = 100
DTYPES = {"bfloat16": 2, "float16": 2, "float32": 4}


_HOST_SPEEDS = ("host_link_bandwidth", "host_bandwidth")


@dataclass
class DeviceSettings:
    """The device a plan is made for. The step's time comes from its speeds; no figure of memory uses them."""

    name: str = "Ascend 910B, 64 GiB"
    memory: str = "64GiB"
    peak_teraflops: float = 313.0
    """Matrix products in the compute dtype at best, for the utilisation."""
    teraflops: float = 280.0
    """Sustained matrix products in the compute dtype."""
    memory_bandwidth: float = 1.2e12
    """Sustained bytes per second that element-wise operations and permutations reach."""
    link_bandwidth: float = 4.0e10
    """Bytes per second that one rank reaches in an all-to-all; taken for the other collectives and messages too."""
    host_link_bandwidth: float = 2.0e10
    """Bytes per second between a device and its host in each direction, when no other device copies."""
    host_bandwidth: float = 1.6e11
    """Bytes per second in each direction that a host reaches for all of its devices together."""
    ranks_per_host: int = 8
    """Ranks that share a host's bandwidth and memory."""
    host_memory: str = "1536GiB"
    """What a host has for tensors that wait there, of all its ranks."""
    communicator_buffer: str = "200MiB"
    """What one communicator allocates per direction (HCCL_BUFFSIZE); twice this per communicator."""
    times: str | None = None
    """A file of ``hp-memory calibrate``: what each region really took, which corrects what these speeds say."""
    sources: dict[str, str] = field(default_factory=dict)
    """Where each figure is from, for whoever reads the result."""

    @property
    def host_bandwidth_of_a_rank(self) -> float:
        """Bytes per second in each direction while all ranks of a host copy."""
        return min(self.host_link_bandwidth, self.host_bandwidth / self.ranks_per_host)

    def validate(self, path: str) -> None:
        """Raises ConfigError for amounts that can't be read or aren't positive."""
        positive_bytes_of(self.memory, f"{path}.memory")
        positive_bytes_of(self.host_memory, f"{path}.host_memory")
        if self.ranks_per_host < 1:
            raise ConfigError(f"{path}.ranks_per_host", self.ranks_per_host, "must be at least 1")
        bytes_of(self.communicator_buffer, f"{path}.communicator_buffer")
        for name in ("peak_teraflops", "teraflops", "memory_bandwidth", "link_bandwidth", *_HOST_SPEEDS):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{path}.{name}", getattr(self, name), "must be above 0")
        if self.teraflops > self.peak_teraflops:
            raise ConfigError(
                f"{path}.teraflops", self.teraflops, f"is above {path}.peak_teraflops={self.peak_teraflops:g}"
            )
        if self.times is not None:
            read_times(self.times, f"{path}.times")
        own = [f.name for f in fields(self) if f.name not in ("name", "times", "sources")]
        for name in self.sources:
            if name not in own:
                raise ConfigError(f"{path}.sources.{name}", self.sources[name], "no such figure", own, meant=name)


@dataclass
class EstimateSettings:
    """Assumptions of the dry run. Each is printed with the result."""

    device: DeviceSettings = field(default_factory=DeviceSettings)
    dtype: str = "bfloat16"
    """Of compute, and of parameters where nothing else is said."""
    parameters_dtype: str | None = None
    """Of parameters, if another than that of compute; MindFormers' own default is float32."""
    gradient_dtype: str = "float32"
    """Of the main gradients that micro-batches are added into."""
    views: str = "shared"
    """``shared``: kernels read views in place, as on Ascend. ``copied``: they copy view operands first, as on a CPU."""
    imbalance: float = 1.0
    """Rows that the fullest rank's experts get, over the average. It scales every tensor between the exchanges."""
    shard: str = "optim_grads_params"
    """What FSDP spreads: optimizer states, gradients, parameters. The graph Trainer spreads ``optim_params``, and the
    gradients too where ``gradient_accumulation_shard`` is set."""
    gradient_accumulation: str = "default"
    """Gradients that micro-batches are added into: ``sharded`` (reduced each time) or ``whole`` (reduced once a step).
    ``default`` is whole under a pipeline, where HyperParallel's schedules reduce at the end."""
    reshard_after_forward: str = "default"
    """Whether gathered parameters are dropped after a layer's forward; ``default`` keeps them under a pipeline."""
    optimizer_on_host: bool = False
    """Optimizer states live on the host and visit the device for the update only (MindFormers' ``optimizer.swap``)."""
    prefetch: int = 1
    """Layers whose parameters are gathered ahead of their use."""
    reserve: str = "3GiB"
    """Runtime, kernels' workspaces and everything outside the allocator."""
    fragmentation: float = 0.05
    """What the allocator loses between blocks, as a share of activations and gradients at the peak."""
    run_tokens: float = 1.0e12
    """Tokens of the run whose cost in device hours is said."""

    def validate(self, path: str = "estimate") -> None:
        """Raises ConfigError for an assumption that can't be used."""
        self.device.validate(f"{path}.device")
        bytes_of(self.reserve, f"{path}.reserve")
        choices = {"dtype": DTYPES, "gradient_dtype": DTYPES, "views": VIEWS, "shard": SHARDS}
        choices |= {"reshard_after_forward": RESHARD, "gradient_accumulation": ACCUMULATION}
        for name, accepted in choices.items():
            if getattr(self, name) not in accepted:
                raise ConfigError(f"{path}.{name}", getattr(self, name), "not a choice", accepted)
        if self.parameters_dtype is not None and self.parameters_dtype not in DTYPES:
            raise ConfigError(f"{path}.parameters_dtype", self.parameters_dtype, "not a choice", DTYPES)
        if self.imbalance < 1:
            raise ConfigError(
                f"{path}.imbalance", self.imbalance, "the fullest rank gets at least the average: 1 or more"
            )
        if self.run_tokens <= 0:
            raise ConfigError(f"{path}.run_tokens", self.run_tokens, "must be above 0")
        for name in ("prefetch", "fragmentation"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{path}.{name}", getattr(self, name), "must not be negative")


@dataclass
class SearchSettings:
    """What the search may choose, and what it pays."""

    over: list[str] = field(default_factory=lambda: ["layout"])
    """What may be chosen beside each layer's layout: ``stages`` (where they begin), ``micro_batch`` (at the same global
    batch), ``schedule``."""
    cost: str = "time"
    """What a replay costs: ``time`` (from FLOPs, bytes moved and exchanged, and the device's speeds), ``flops``, or
    ``given`` (``times`` per region)."""
    times: dict[str, float] = field(default_factory=dict)
    """Milliseconds that one replay of a region takes in one layer, for ``cost=given``."""
    per: str = "layer"
    """Choose a layout for each layer, or one per kind of layer in a ``stage``."""
    curve: int = 6
    """Budgets at which the trade-off curve is computed."""
    seconds: float = 60.0
    """About how long the solver may take for a plan. What isn't proven by then is printed with its gap."""

    def validate(self, path: str = "search") -> None:
        """Raises ConfigError for a choice that doesn't exist, or times that have no effect or are missing."""
        for name, accepted in (("cost", COSTS), ("per", GRANULARITY)):
            if getattr(self, name) not in accepted:
                raise ConfigError(f"{path}.{name}", getattr(self, name), "not a choice", accepted)
        self._check_over(path)
        if self.times and self.cost != "given":
            raise ConfigError(f"{path}.times", dict(self.times), f"has no effect with {path}.cost={self.cost}")
        if not self.times and self.cost == "given":
            raise ConfigError(f"{path}.times", {}, f"{path}.cost=given needs times per region")
        for region, time in self.times.items():
            if region not in REGIONS:
                raise ConfigError(f"{path}.times.{region}", time, "no such region", REGIONS, meant=region)
            if time < 0:
                raise ConfigError(f"{path}.times.{region}", time, "must not be negative")
        if not self.seconds > 0:
            raise ConfigError(f"{path}.seconds", self.seconds, "must be above 0")
        if not 2 <= self.curve <= MOST_BUDGETS:
            raise ConfigError(f"{path}.curve", self.curve, f"a curve has 2 to {MOST_BUDGETS} budgets")

    def _check_over(self, path: str) -> None:
        for i, freedom in enumerate(self.over):
            if freedom not in FREEDOMS:
                raise ConfigError(f"{path}.over[{i}]", freedom, "not a choice", FREEDOMS, meant=freedom)
        if "layout" not in self.over:
            raise ConfigError(f"{path}.over", list(self.over), "layouts are always chosen: name layout too", FREEDOMS)
        if len(self.over) > 1 and self.cost != "time":
            why = f"{path}.cost={self.cost} doesn't say what a step takes"
            raise ConfigError(f"{path}.over", list(self.over), why, (["layout"],))


@dataclass
class DryrunFields:
    """Top-level keys of ``hp-memory dryrun`` beside those of every command."""

    estimate: EstimateSettings = field(default_factory=EstimateSettings)
    yaml: str | None = None
    """A MindFormers YAML that replaces the recipe's model, parallel sizes, pipeline and layout."""
    devices: int | None = None
    """With ``yaml``: how many devices the job has; MindFormers' own files often leave it to the launch."""
    ignore: list[str] = field(default_factory=list)
    """With ``yaml``: its keys that are known to change neither memory nor time, e.g. ``callbacks.MyMonitor``."""
    report: str | None = None
    """``compare-run``: the JSON report of a real run, with allocated and reserved bytes per rank."""
    band: float | None = None
    """``compare-run``: the share by which a peak may differ; above it the command ends with 1."""
    installed: bool = True
    """Trace every kind of layer with its plan installed too, and compare with what the rules say it holds."""


@dataclass
class SearchFields:
    """Top-level keys of ``hp-memory search`` beside those of every command."""

    budget: str = MISSING
    """What one device may hold, e.g. ``58GiB``."""
    estimate: EstimateSettings = field(default_factory=EstimateSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    yaml: str | None = None
    """As for ``dryrun``."""
    devices: int | None = None
    """As for ``dryrun``."""
    ignore: list[str] = field(default_factory=list)
    """As for ``dryrun``."""
