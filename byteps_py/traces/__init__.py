"""Traces after the job: all processes in one file, and what they say in numbers."""
