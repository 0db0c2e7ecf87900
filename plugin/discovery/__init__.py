"""Sources of devices, the host's file system below its root, and the survey that joins them."""
