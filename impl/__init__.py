"""What is checked. Imports `spec.interface` only, so that nothing right can leak in from the spec.

Entry point: `impl.scheduler.FastScheduler`, our own engine and the default one.
"""
