"""`devicelens who`, `history`, `explain` and `completion`: which pod holds which device, which did, and what
is known of one, from an exporter, straight from a kubelet, or from Prometheus for a whole fleet.

cli        the command `who`; history, explain and completion are the others
sources    whom to ask: the flags, and the one that counts
common     what the commands share: exit codes, the one clear line when it cannot be asked
model      what every source answers with
select     which of it is asked for
show       the answer as a table or as JSON; table/ makes it fit
watch/     what changes, as it does

present    the present, by whichever source
ask, exporter
           an exporter's documents, and its present
kubelet    a kubelet's answer, made into the same
prometheus/
           a fleet's, made of its exporters' series
door, door_words, access
           HTTP to one server, why it failed, and how to be let in

past_cli, past, past_show
           what an exporter remembers
moments    times as people write them
complete, completion
           what can be typed next

gRPC, rich, asyncio and each source are imported only where they are used: the command is to start quickly.
"""

from exporter.cli.who import who

__all__ = ["who"]
