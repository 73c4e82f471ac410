"""Running ordinary Python on symbols: values, and the executor that takes every feasible path.

Entry points: `values.SymInt` and `executor.Executor`.
"""
