"""`devicelens who --watch`: what changes, as it does.

Pure:
changes  what is different between two answers
words    a change as a line, or as JSON
stream   server-sent events read

With clocks, threads and terminals:
flag     --watch, with a duration behind it or without
feed     answers, whenever there may be a new one: by an exporter's events, or by asking again
lines    changes written one by one, for pipes
screen   the table redrawn in place, for terminals
cli      all together
"""
