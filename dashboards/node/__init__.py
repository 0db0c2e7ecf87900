"""One node: the page's table, the holdings over time, and how well the exporter and the plugin do.

A module for each topic, which adds its rows to the board.
"""
