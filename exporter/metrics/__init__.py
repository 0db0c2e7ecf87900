"""Metric families, and the exposition that is rendered once for each snapshot and format."""
