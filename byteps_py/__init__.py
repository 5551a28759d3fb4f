"""A parameter server for data-parallel training: workers push gradients, servers sum them, workers pull the sum."""
