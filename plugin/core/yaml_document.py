"""A YAML document with its line numbers: daemon.yaml_document, which both processes share."""

from daemon.yaml_document import MAX_BYTES, MAX_DEPTH, MAX_NODES, Document, Node, Plain, Scalar, parse

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_NODES", "Document", "Node", "Plain", "Scalar", "parse"]
