"""Running ordinary Python on symbols: values, the executor that takes every path, and states.

Entry points: `values.SymInt`, `executor.Executor`, and `state.make_state`.
"""
