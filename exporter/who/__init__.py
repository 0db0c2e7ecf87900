"""`devicelens who`, `history` and `explain`: which pod holds which device, which did, and what is known of
one, from an exporter or straight from a kubelet.

cli      the command
common   what it shares with other commands: flags, exit codes, the one clear line when it cannot
ask      an exporter's answer, over HTTP
kubelet  a kubelet's answer, made into the same document
select   which of the devices are asked for
show     the answer as a table or as JSON

explain  the command `devicelens explain`
history  the command `devicelens history`
past_cli `devicelens who --at`
past     what an exporter remembers, page by page
past_show
         the past as a table
moments  times as people write them

gRPC and rich are imported only where they are used: the command is to start quickly.
"""

from exporter.who.cli import who

__all__ = ["who"]
