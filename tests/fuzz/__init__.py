"""Random blocks under random layouts, held against the plain block and against MindSpore's own recompute.

    python -m tests.fuzz --programs 5000        # counts by verdict; every failure as the smallest program that shows it

A program is plain data (:mod:`tests.fuzz.program`), made into a Cell (:mod:`tests.fuzz.cell`), run three ways
(:mod:`tests.fuzz.runs`) and judged (:mod:`tests.fuzz.verdict`).
"""
