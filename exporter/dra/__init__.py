"""Facts of Dynamic Resource Allocation: slices and claims of the API server, CDI specifications."""
