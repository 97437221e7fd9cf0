"""The pipeline regression: every schedule, layout and session rule against an unpipelined reference, bit for bit."""
