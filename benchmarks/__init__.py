"""Benchmarks: one file a question; `python -m benchmarks.bench_log [--json]`."""
