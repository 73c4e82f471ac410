"""How a scheduler is checked. Imports spec; reaches engines by name, at run time.

Entry points: the command line (`checkers.cli`), pytest (`checkers.machine`), one module per verb.
"""
