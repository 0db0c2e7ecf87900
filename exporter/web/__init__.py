"""What people and programs see over HTTP. Everything is rendered from the board's state; nothing here asks
the kubelet.

Pure, without aiohttp:
words      times, ages, sizes and text from outside, as a person reads them
standing   how far the mapping can be trusted, in words
query      filters and paging, read from an address and written into one
matching   which devices, pods, claims and containers a filter keeps
schema     the shapes of the JSON API's documents; `devicelens who` reads and writes the same
documents  those documents, made of the state
entries    what plugins tell, and what is wrong, in those documents
explain_schema, explain_documents
           one device explained
moments    times as people and programs write them
history_query, history_schema, history_documents
           the same of the past
findings   anomalies as plain sentences
resources  the status page's resources and their bars
rows       its rows: devices, claims, containers
view       the whole status page
templating its HTML; imported for the first page alone

With aiohttp:
app        the application: every route
site       what the application is given
probes     /-/healthy, /-/ready and /metrics
api        /api/v1/…
explain    /api/v1/explain
history    /api/v1/history
events     /api/v1/events, server-sent
pages      the status page
assets     the page's style, module and icon
answers    answers kept small: gzip, ETag, 304
"""
