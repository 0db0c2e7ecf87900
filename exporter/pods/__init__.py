"""Who the pods of the node are: the kubelet's Pods API, or the API server."""
