"""The device plugin: discovery, health, allocation, registration. Never imports exporter."""
