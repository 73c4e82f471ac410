"""Mutants of the specification and of our engine, one small edit each, and what becomes of them.

What edits there are stands in `operators`, where they are made in `mutants`. The command is
`schedcheck mutate --systematic`.
"""
