"""Benchmarks: each module measures one thing and returns plain figures."""
