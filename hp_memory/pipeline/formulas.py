"""What the papers say about a schedule: bubble and peak, with the convention each figure is given in.

Time is counted per rank and per micro-batch of the whole stage: F, B (dx alone), W (dw alone), and F+B+W of work per
micro-batch, whatever the number of chunks. p = ranks, m = micro-batches, v = chunks per rank.

DualPipe's papers and README call the whole backward B; in the letters used here that is B+W. Its own figures, for
comparison only (no DualPipe here): 1F1B (p-1)(F+B+W), ZB1P (p-1)(F+B-W), DualPipe (p/2-1)(F&BW+B-2W).
"""

from __future__ import annotations

from dataclasses import dataclass

from hp_memory.pipeline.simulate import Costs


@dataclass(frozen=True)
class Published:
    """A published claim.

    Attributes:
        bubble: idle time of a rank, in the unit of the costs.
        view: ``iteration`` (makespan minus work) or ``own`` (between the rank's own first and last step).
        in_flight: largest number of chunk forwards alive, per rank.
        source: where the formula stands, and its convention.
    """

    bubble: float
    view: str
    in_flight: tuple[int, ...]
    source: str


def _flush(ranks: int, costs: Costs) -> float:
    return (ranks - 1) * (costs.forward + costs.dx + costs.dw)


def gpipe(ranks: int, micros: int, costs: Costs) -> Published:
    return Published(
        _flush(ranks, costs),
        "iteration",
        (micros,) * ranks,
        "arXiv 1811.06965: (p-1)/(m+p-1) of the total, i.e. (p-1)(F+B+W) idle; all m in flight",
    )


def one_f_one_b(ranks: int, micros: int, costs: Costs) -> Published:
    return Published(
        _flush(ranks, costs),
        "iteration",
        tuple(min(ranks - r, micros) for r in range(ranks)),
        "arXiv 2104.04473 section 2.2.1: (p-1)/m of the ideal time; at most p-r in flight on rank r",
    )


def interleaved_1f1b(ranks: int, micros: int, costs: Costs, interleave: int) -> Published:
    """``costs`` are those of a whole stage; a chunk takes 1/v of them."""
    warm = (2 * (ranks - 1 - r) + (interleave - 1) * ranks + 1 for r in range(ranks))
    return Published(
        _flush(ranks, costs) / interleave,
        "iteration",
        tuple(min(w, micros * interleave) for w in warm),
        "arXiv 2104.04473 section 2.2.2: (p-1)/(v m) of the ideal time; in flight, in chunks of 1/v stage: "
        "2(p-1-r)+(v-1)p+1",
    )


def zb_h1(ranks: int, micros: int, costs: Costs) -> Published:
    return Published(
        (ranks - 1) * (costs.forward + costs.dx - costs.dw),
        "iteration",
        (min(ranks, micros),) * ranks,
        "arXiv 2401.10241 table 2: (p-1)(F+B-W) with B = dx alone; peak p, that of 1F1B's first rank",
    )


def zb_v(ranks: int, micros: int, costs: Costs) -> Published:
    """Holds for F = B = W and m >= 2p-1; other costs leave a bubble."""
    return Published(
        0.0,
        "own",
        (2 * ranks,) * ranks,
        "arXiv 2405.15362: no bubble between a rank's first and last step when F = B = W; 2p half stages in flight",
    )


def published(name: str, ranks: int, micros: int, costs: Costs, interleave: int = 1) -> Published:
    """The published figures for a schedule. ``costs`` are those of one rank's whole stage."""
    if name == "gpipe":
        return gpipe(ranks, micros, costs)
    if name == "1f1b":
        return one_f_one_b(ranks, micros, costs)
    if name == "interleaved_1f1b":
        return interleaved_1f1b(ranks, micros, costs, interleave)
    if name == "zb_h1":
        return zb_h1(ranks, micros, costs)
    if name == "zb_v":
        return zb_v(ranks, micros, costs)
    raise ValueError(f"no schedule is called {name!r}")
