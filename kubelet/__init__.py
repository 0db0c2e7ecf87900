"""Everything about speaking with a kubelet: its paths, clients, registration, checkpoint, and gRPC stubs."""
