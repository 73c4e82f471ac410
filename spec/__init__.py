"""What is right. Imports nothing of ours, and neither torch nor z3.

Entry point: `spec.scheduler.ReferenceScheduler`. `spec.interface` is the boundary that every engine
shares.
"""
