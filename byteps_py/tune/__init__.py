"""Experiments: which settings make a job faster, and how sure that is."""
