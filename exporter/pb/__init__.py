"""Generated from proto/podresources, proto/pods and proto/core by `make proto`; do not edit."""
