"""Access to the API server: by the service account or a kubeconfig, and lists and watches of one kind."""

from pathlib import Path
from typing import Final

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts a pod's token and the API server's CA."""
