"""Bugs planted in our engine, which the checkers must notice: what shows that they can see.

A bug is a decorated function in `bugs/`, one file a kind. The command is `schedcheck mutate`.
"""
