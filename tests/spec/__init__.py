"""Tests of `spec`: the lesson, the numbered facts, the dialects, and the snapshots."""
