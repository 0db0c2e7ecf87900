"""The HTML pages.

Pure, without aiohttp:
status     the whole status page, made of the state and of what its address asks for
banner     how fresh the mapping is
findings   anomalies as plain sentences
resources  resources and their bars
form       what can be asked for, and what is
sorting    in which order rows stand
grouping   which rows stand together, and what of them is on one page
headers    the groups' headings, which count
rows       devices and claimed devices
containers containers with CPUs or memory of their own
whens      moments, and pages whose ages are filled in when they are sent
templating the HTML, its rows kept; imported for the first page alone

With aiohttp:
serving    every page's address
"""
