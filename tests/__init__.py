"""The tests of byteps_py; the folders are explained in CONTRIBUTING.md."""
