"""What the end-to-end tests stand on: nodes, processes, and waiting for a condition.

node       a node as a test sees it, whichever kubelet is behind it
simulated  a node of the simulated kubelet, as a process of its own
cluster    a node of a real cluster
processes  devicelens' processes, started and ended
stack      the plugin and the exporter beside a node's kubelet
served     a plugin without its process, for tests that look inside
waiting    waiting for a condition, with a limit
dealing    which tests each worker begins with
stopwatch  how long something takes, whoever else has the machine
owners     who holds what, read from each place that tells it
answers    a kubelet's answers, made up by hypothesis
lives      exporters' histories, without exporters
showcase   a node's night, made up, for the pictures of the documentation
browser    Chromium
tasks      a person before the pages: by mouse, by keyboard, without JavaScript
hosttree   a host's file system, made for a test
hostile    names as an enemy would choose them
machines   parts of machines as sysfs shows them, put into a host tree
preset     a preset served from a host tree to a simulated kubelet
openapi_reference, http_api_reference
           exporter/web/openapi.json; the examples of docs/http-api.md, made from the code
metrics_reference
           docs/metrics.md, made from what both processes expose
tools      programs that some tests need
"""
