"""Whole engines under test, one in a file: each adapter translates, and decides nothing."""
