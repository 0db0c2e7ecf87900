"""The HTML pages.

Pure, without aiohttp:
status     the whole status page, made of the state and of what its address asks for
findings   anomalies as plain sentences
resources  resources and their bars
rows       devices, claims, containers
templating the HTML; imported for the first page alone

With aiohttp:
serving    every page's address
"""
