"""Who holds what: asks the kubelet, and tells Prometheus, people and programs. Never imports plugin."""
