"""Engines that people run, one in a file: each adapter translates, and decides nothing."""
