"""What people and programs see over HTTP. Everything is rendered from the states's state; nothing here asks
the kubelet.

api        the JSON documents: their shapes, how they are made, and who serves them
pages      the HTML pages: what they show, their templates, and who serves them
static     the pages' style, module and icon

Shared, pure, without aiohttp:
links      the addresses of the pages of devices, pods, claims and the past
words      times, ages, sizes and text from outside, as a person reads them
moments    times as people and programs write them
negotiation
           what a client says it takes and has
standing   how far the mapping can be trusted, in words
query      filters and paging, read from an address and written into one
matching   which devices, pods, claims and containers a filter keeps

With aiohttp:
app        the application: every route
site       what the application is given
probes     /-/healthy, /-/ready and /metrics
events     /api/v1/events, server-sent
assets     the folder static, served
answers    answers kept small: gzip, ETag, 304
"""
