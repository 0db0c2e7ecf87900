"""The way to the kubelet: its PodResources socket, and the host's CPU topology."""
