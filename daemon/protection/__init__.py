"""What `--web.config.file` asks for: TLS, passwords, headers, a rate. Knows no HTTP server.

model       the file's keys as Prometheus' exporters have them
language    a file read and checked: what is asked for, or one clear error
suites      names of cipher suites and curves, as Go has them and as OpenSSL has them
tls         an SSLContext of certificates that were read
names       whose certificates are let in
passwords   who is let in by a password; hashing off the event loop, bounded
rate        a token bucket
material    the file and the files that it names, read together
rules       what is in force at a moment
reload      keeps that to what the files say
"""
