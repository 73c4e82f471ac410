"""What a change to an engine breaks, mends or alters: the engine before it beside the one after it.

Entry point: `checkers.patch.command.check_patch`.
"""
