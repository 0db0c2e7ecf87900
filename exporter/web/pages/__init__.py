"""The HTML pages for people. Imported for the first page that a client requests.

handlers   the addresses: reads the request, queries history, renders (Jinja2), caches, answers
status     the status page; rows: its rows, their order and groups
device     the page of one device
pod        the page of one pod and of earlier pods of its name, with the NUMA drawing
history    the history page
past       holdings of the past: the section that the pages share; timeline: the drawing of holdings
parts      view models that several pages share: freshness, holders, findings, links
times      times and ages on a page
"""
