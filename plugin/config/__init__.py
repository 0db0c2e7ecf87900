"""The YAML language of the plugin: document model, templates, checks, schema, and compiled plan."""
