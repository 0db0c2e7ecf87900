"""What both processes share and nothing else.

flags       command-line flags with their environment variables, and the types behind them
log         structured logging, one event a line; failures told once
paths       where the kubelet keeps its sockets
process     one TaskGroup a process: start, signals, an end within two seconds
directory   directories followed by inotify, or by polling where there is none
listing     what polling sees of a directory, and what changed between two looks
http        serving aiohttp applications on TCP and unix sockets, out of hostile clients' reach
protection  what --web.config.file asks for: TLS, client certificates, passwords, headers, a rate
exposition  content negotiation and kept renderings of Prometheus metrics
yaml_document, places, errors
            YAML files with line numbers, checked against a model; one clear error for what is wrong in them
memory      how the C library keeps memory
engine      gRPC's engine, kept for as long as a process runs
healthy     the command that asks this container's process whether it is well
reach       what a process can reach, what it cannot, and what to do about each; probe looks at it
text        making text from outside harmless
"""
