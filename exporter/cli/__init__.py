"""Commands that query an exporter, a kubelet or Prometheus: `devicelens who`, `anomalies`, `history`,
`explain` and `completion`. They only read.

who         the command `who`
watch       `who --watch`: a live table, or one line for each change
history     the command `history`
holdings    output of `who` and `history`: the present holders, and holdings in the past
explain     the command `explain`
anomalies   the command `anomalies`
completion  the command `completion`, and completion of names
sources     the flags that choose the source, its address and its credentials
query       queries of the chosen source: the current mapping, one device explained, the history
client      HTTP with a limit on time and size
kubelet     queries of a kubelet's PodResources socket
prometheus  queries of a Prometheus
select      which devices match RESOURCE=DEVICE and --pod
table       tables: their rows, and their text for pipes
terminal    tables for terminals
common      flags of the output, exit codes, errors and notes on standard error

The commands import `query` (an HTTP client), `kubelet` (gRPC, asyncio), `terminal` (rich) and `watch` (rich,
asyncio) when they use them, so that each starts quickly. None imports aiohttp.
"""
