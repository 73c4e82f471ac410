"""What must always hold, for every scheduler: each invariant judges one transition from outside.

The four promises of the project stand first: budgets, no block used twice, head-of-line admission,
monotone counters. To add one, write a decorated function in the module of its kind: its name is its
identity, its first line the rule, and it yields one sentence of evidence per breach.
"""

# The order is that of reports: the first broken rule names a finding.
from spec.invariants import budgets, blocks, queues, counters, grants, drafts  # noqa: F401, I001
from spec.invariants import worker, outputs, controls, loads, streaming, claims  # noqa: F401
