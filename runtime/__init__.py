"""What both processes share: flags, logs, process life, directory watching, and HTTP serving."""
