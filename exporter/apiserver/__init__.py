"""Access to the API server: by the service account or a kubeconfig, and lists and watches of one kind."""
