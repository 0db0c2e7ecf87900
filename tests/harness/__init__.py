"""Helpers of the tests.

Nodes and processes
  node, simulated, cluster   one interface to a simulated kubelet and to a real cluster
  processes, stack, served   devicelens processes; both beside a node; a plugin or preset inside a test
  hosttree, machines         files of a host; parts of machines as sysfs shows them
  waiting                    waits for a condition with a limit
  callbacks                  what holds an event loop, and for how long
  trials                     the fault suite

Data
  recordings                 answers of a real kubelet, from tests/data/recordings
  answers, mutation          generated and mutated answers
  lives, past, showcase      exporter histories without exporters
  hostile                    hostile names

What the tests compare with
  owners, truth              holders from every output of the exporter, and the true ones
  *_reference                references in docs/ that the code generates
  manifests                  deploy/ rendered by kustomize
  markdown                   fenced blocks of documents

Other programs
  browser, prometheus, grafana, exporters, oci, tools
"""
