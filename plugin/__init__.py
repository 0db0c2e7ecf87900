"""The device plugin: discovery, health, allocation, registration. Never imports exporter.

core       what decides, without I/O
discovery  what looks at the host
services   what acts: one actor for each resource, registration, HTTP
presets    ready-made configurations
main       the composition root; cli the command `devicelens plugin`
check      the command `devicelens check`
discover   the command `devicelens discover`
"""
