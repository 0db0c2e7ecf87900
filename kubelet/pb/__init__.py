"""Generated from proto/deviceplugin and proto/pluginregistration by `make proto`; do not edit."""
