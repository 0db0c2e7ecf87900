"""A simulated kubelet: what the demo, the tests and plugin authors run against."""
